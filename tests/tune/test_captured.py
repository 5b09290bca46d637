"""What a program ran is searched the costliest first, and no longer than it can gain anything."""

from __future__ import annotations

from typing import Any

import pytest

from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.options import SearchOptions, Silent, WorkloadOptions
from fa_tune.core.workload import DType, Workload
from fa_tune.store.capture.schema import Served, Usage
from fa_tune.store.capture.workloads import tuned_for, wishes_of
from fa_tune.tune.captured import CapturedSearch, search_captured
from tests.commands.fakes import search_result
from tests.store.capture.captures import capture, usage

OPTIONS = SearchOptions(WorkloadOptions())


def searched(*usages: Usage, seconds: float | None = None, **others: Any) -> Any:
    """What was asked for in order, and the outcome; a search takes ten seconds."""
    asked: list[Workload] = []
    now = [0.0]

    def search(options: SearchOptions) -> Any:
        asked.extend(options.workloads.workloads())
        now[0] += 10
        if error := others.get("error"):
            raise error
        return search_result()

    wishes = wishes_of(capture(*usages))
    found = search_captured(OPTIONS, wishes, seconds, search, Silent(), lambda: now[0])
    return asked, found


LENGTHS = (16384, 4096, 1024)
THREE = [
    usage(100, 2e-2 / 10**i, seq_len_q=n, seq_len_kv=n, lse=True) for i, n in enumerate(LENGTHS)
]


def test_the_costliest_first_until_no_gain_is_left() -> None:
    asked, found = searched(*reversed(THREE), usage(1, 1e-7, d_head=64, d_head_v=64))
    assert [w.seq_len_q for w in asked] == [16384, 4096], "the third costs less than 1 %"
    assert found.result is not None
    assert len(found.result.results) == len(asked) * len(search_result().results)
    assert all(w.lse and w.kv_heads == 4 for w in asked)


def test_a_budget_is_for_all() -> None:
    flat = [usage(100, 1e-2, seq_len_q=n, seq_len_kv=n) for n in LENGTHS]
    assert [len(searched(*flat, seconds=s)[0]) for s in (None, 100, 15, 5)] == [3, 3, 2, 1]
    assert "budget" in searched(*flat, seconds=15)[1].ended
    flat = [usage(100, 1e-2, seq_len_q=n, seq_len_kv=n) for n in LENGTHS]
    asked, found = searched(*flat, error=NoUsableVariant("none"))
    assert (len(asked), found.result) == (3, None)
    assert isinstance(found, CapturedSearch)


def test_near_ones_are_merged_and_others_are_not() -> None:
    near = [usage(10, 1e-3, seq_len_q=n, seq_len_kv=n) for n in (1000, 1024, 1100)]
    other = usage(10, 1e-3, seq_len_q=1024, seq_len_kv=1024, mask="causal")
    wishes = wishes_of(capture(near[1], *near, other))
    assert sorted(len(w.others) for w in wishes.wanted) == [0, 2]
    assert wishes.wanted[0].workload.seq_len_q == 1024, "the costliest stands for all"
    assert wishes.wanted[0].time_s == pytest.approx(4e-2)
    exact = usage(10, 1e-3, served=Served("fa_tune", "k", "exact", "measured"))
    fp32 = usage(10, 2e-3, dtype="float32")
    padded = usage(10, 3e-3, mask="tensor", masks={"causal+padding": 2})
    drop = usage(10, 4e-3, dropout=True)
    wishes = wishes_of(capture(exact, fp32, padded, drop))
    assert wishes.wanted == ()
    assert wishes.tuned_s == pytest.approx(1e-2)
    assert sorted(wishes.refused_s.values()) == pytest.approx([2e-2, 3e-2, 4e-2])
    asked, found = searched(exact, fp32)
    assert (asked, found.result) == ([], None)


def test_nothing_runs_faster_than_the_gpu_can() -> None:
    """At the roof nothing is left to gain, whatever it costs."""
    flop = 4 * 16 * 16 * 4096**2 * 128
    at_roof = usage(1, flop / 989.4e12, batch=16, seq_len_q=4096, seq_len_kv=4096)
    assert wishes_of(capture(at_roof)).left_s(0) == pytest.approx(0, abs=1e-9)
    assert searched(at_roof)[0] == []


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"mask": "causal"}, "b2_h16_kv4_q1024_k1024_d128_bf16_causal"),
        (
            {"mask": "tensor", "masks": {"causal_br": 2}, "seq_len_q": 9},
            "b2_h16_kv4_q9_k1024_d128_bf16_causal_br",
        ),
        (
            {"mask": "tensor", "masks": {"window_100": 2}},
            "b2_h16_kv4_q1024_k1024_d128_bf16_causal_left100",
        ),
        ({"mask": "tensor", "masks": {"full": 1}}, "b2_h16_kv4_q1024_k1024_d128_bf16_full"),
        (
            {"op": "backward", "dtype": "float16", "d_head_v": 64, "softcap": 5.0},
            "backward_b2_h16_kv4_q1024_k1024_d128_fp16_full_softcap5.0_dv64",
        ),
    ],
)
def test_masks_and_kinds_become_workloads(given: dict[str, Any], key: str) -> None:
    assert tuned_for(usage(**given)) == Workload.from_key(key)


def test_lengths_are_those_that_were_seen() -> None:
    eighths = (10, 10, 20, 20, 30, 40, 60, 90, 200)
    packed = usage(
        kind="packed",
        batch=5,
        mask="causal",
        seq_len_q=200,
        seq_len_kv=200,
        total_q=310,
        total_kv=310,
        lengths_q=eighths,
        lengths_kv=eighths,
    )
    found = tuned_for(packed)
    assert [q for q, _ in found.members] == [10, 20, 30, 60, 200]
    assert (found.packed, found.dtype, found.causal) == (True, DType.BF16, True)
    cached = tuned_for(usage(kind="cached", batch=3, seq_len_q=1, lengths_kv=eighths, page_size=16))
    assert [kv for _, kv in cached.members] == [10, 30, 200]
    assert cached.page_size == 16
