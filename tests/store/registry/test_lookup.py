"""Looking up: the exact workload, the nearest, or a reason."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

import pytest

from fa_tune import families
from fa_tune.core.workload import DType, Workload, benchmark_workload
from fa_tune.families.equal_sources import kind_of
from fa_tune.store.registry import lookup
from fa_tune.store.registry.lookup import (
    EntryMatch,
    NoEntry,
    Target,
    alike,
    distance,
    find_match,
    in_order,
    matches,
    near_enough,
)
from fa_tune.store.registry.schema import Entry, Registry
from tests.store.registry.conftest import MakeEntry

H200 = Target("NVIDIA H200")


def workload(seq_len: int, **changes: int) -> Workload:
    base = benchmark_workload(seq_len, 128, DType.FP16)
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


@pytest.fixture
def registry(make_entry: MakeEntry) -> Registry:
    return Registry.of([make_entry(s) for s in (512, 1024, 4096, 16384)])


def by(method: str) -> Target:
    return dataclasses.replace(H200, method=method)


def found(result: EntryMatch | NoEntry) -> EntryMatch:
    assert isinstance(result, EntryMatch), result
    return result


def refusal(result: EntryMatch | NoEntry) -> str:
    assert isinstance(result, NoEntry), result
    assert "\n" not in result.reason
    return result.reason


def test_the_exact_workload_is_taken(registry: Registry) -> None:
    match = found(find_match(registry, H200, workload(1024)))
    assert match.exact
    assert match.distance == 0.0
    assert match.entry.workload == workload(1024)
    assert match.explanation == "measured on b16_h16_kv16_q1024_k1024_d128_fp16_full"
    assert match.warnings == ()
    asked = dataclasses.replace(workload(1024), softmax_scale=0.5)
    match = found(find_match(registry, H200, asked))
    assert match.exact
    assert match.explanation == f"measured on {workload(1024).key}"


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        (workload(3000, batch=16), 4096),
        (workload(1500, batch=16), 1024),
        (workload(65, batch=16), 512),
        (workload(100_000, batch=4), 16384),
        # 4 doublings of batch, or 2 of batch and 2 of length: length decides the tie.
        (workload(4096, batch=1), 4096),
    ],
)
def test_else_the_nearest_and_it_says_which(
    registry: Registry, asked: Workload, nearest: int
) -> None:
    match = found(find_match(registry, H200, asked))
    assert not match.exact
    assert match.distance > 0.0
    assert match.entry.workload.seq_len_q == nearest
    assert match.explanation.startswith(f"no entry for {asked.key}; nearest is ")
    assert match.entry.workload.key in match.explanation


def test_an_entry_tells_nothing_of_lengths_that_other_tiles_suit(make_entry: MakeEntry) -> None:
    tuned = Workload(16, 16, 16, 4096, 4096, 64, DType.BF16)
    chosen = families.variant(families.default_for(families.get("sm90"), tuned))
    registry = Registry.of(
        [dataclasses.replace(make_entry(), workload=tuned, chosen=chosen, confirmation=None)]
    )
    near, short = (
        dataclasses.replace(tuned, seq_len_q=n, seq_len_kv=n, causal=False) for n in (3000, 300)
    )
    assert found(find_match(registry, H200, near)).entry.workload == tuned
    told = refusal(find_match(registry, H200, short))
    assert short.key in told
    assert "BF16 d_head 64 full" in told


def test_an_accuracy_has_entries_of_its_own(registry: Registry) -> None:
    (like, *_) = registry.entries
    asked = dataclasses.replace(like.workload, accuracy="exact")
    assert "exact" in refusal(find_match(registry, H200, asked))
    both = Registry.of([*registry.entries, dataclasses.replace(like, workload=asked)])
    for own in (asked, like.workload):
        assert found(find_match(both, H200, own)).entry.workload == own
    far = dataclasses.replace(asked, seq_len_q=16384, seq_len_kv=16384)
    assert found(find_match(both, H200, far)).entry.workload == asked
    few = workload(1024, seq_len_q=32)
    assert few.decode_shape
    assert "few queries" in refusal(find_match(registry, H200, few))
    (like, *_) = registry.entries
    tuned = Registry.of([dataclasses.replace(like, workload=few, confirmation=None)])
    assert found(find_match(tuned, H200, dataclasses.replace(few, seq_len_kv=3000)))
    assert "few queries" in refusal(find_match(tuned, H200, workload(1024)))


def test_the_explanation_lists_what_differs(registry: Registry) -> None:
    match = found(find_match(registry, H200, workload(3000, batch=8, heads=32, kv_heads=32)))
    assert "(seq_len_q 4096 for 3000, seq_len_kv 4096 for 3000, batch 16 for 8" in match.explanation
    match = found(find_match(registry, H200, workload(1024, window_left=7)))
    assert match.explanation.endswith("(window_left none for 7)")
    assert distance(workload(1024), workload(1024, kv_heads=4)) == 2.0
    assert distance(workload(1024), workload(4096, batch=4)) == 2.0 + 2.0
    assert distance(workload(1024), workload(1024, seq_len_kv=4096)) == 1.0


def test_dtype_head_size_and_mask_must_agree(registry: Registry) -> None:
    for other, kind in (
        (benchmark_workload(1024, 64, DType.FP16), "FP16 d_head 64 full"),
        (benchmark_workload(1024, 128, DType.BF16), "BF16 d_head 128 full"),
        (benchmark_workload(1024, 128, DType.FP16, causal=True), "FP16 d_head 128 causal"),
        (workload(1024, lse=True, lengths="1024+1024"), "FP16 d_head 128 full packed"),  # type: ignore[arg-type]
    ):
        reason = refusal(find_match(registry, H200, other))
        assert f"nothing for {kind} on" in reason
        assert "only for FP16 d_head 128 full; run" in reason


def test_another_gpu_model_is_refused_with_the_reason(registry: Registry) -> None:
    reason = refusal(find_match(registry, Target("NVIDIA H100 PCIe"), workload(1024)))
    assert "no entry for NVIDIA H100 PCIe, only for NVIDIA H200 (9.0)" in reason
    assert "do not carry over" in reason
    assert "empty" in refusal(find_match(Registry.of(), H200, workload(1024)))


def test_methods_have_an_order_that_no_time_changes(make_entry: MakeEntry) -> None:
    registry = Registry.of(
        [make_entry(), make_entry(method="events", median_s=1e-9), make_entry(method="aaa")]
    )
    methods = [m.entry.method for m in matches(registry, H200, workload(4096))]
    assert methods == ["ncu", "events", "aaa"]
    assert found(find_match(registry, by("events"), workload(4096))).entry.method == "events"
    reason = refusal(find_match(registry, by("wall"), workload(4096)))
    assert "no results by wall for NVIDIA H200, only by aaa, events, ncu" in reason


def test_another_driver_or_source_warns(make_entry: MakeEntry) -> None:
    registry = Registry.of([make_entry(), make_entry(1024, driver="")])
    entry = registry.entries[0]
    recorded = {"sm80": entry.provenance.kernel_source_sha256, "sm90": "0"}
    here = Target(H200.gpu, driver="580.65.06", kernel_source_sha256=recorded)
    same = find_match(registry, here, workload(4096))
    assert found(same).warnings == ()
    newer = Target(H200.gpu, driver="590.1")
    others = dataclasses.replace(newer, kernel_source_sha256={"sm80": "0"})
    other = find_match(registry, others, workload(4096))
    driver, source = found(other).warnings
    assert driver.startswith("measured with driver 580.65.06, this is 590.1")
    assert "other kernel sources" in source
    (unrecorded,) = found(find_match(registry, newer, workload(1024))).warnings
    assert "an unrecorded driver" in unrecorded


def test_sources_that_were_proven_equal_for_the_kind_do_not_warn(
    make_entry: MakeEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = make_entry()
    proven = ("sm80", entry.provenance.kernel_source_sha256, "0", [kind_of(entry.workload)])
    monkeypatch.setattr(lookup, "equal", lambda *asked: asked == proven)
    for source, warnings in (("0", 0), ("1", 1)):
        here = Target(H200.gpu, kernel_source_sha256={"sm80": source})
        match = found(find_match(Registry.of([entry]), here, entry.workload))
        assert len(match.warnings) == warnings


def test_alignment_and_log_sum_exp_decide_among_equally_near(make_entry: MakeEntry) -> None:
    base = dataclasses.replace(workload(1024), seq_len_kv=2048, causal=True)
    kinds = [
        dataclasses.replace(base, bottom_right=br, lse=lse)
        for br in (False, True)
        for lse in (False, True)
    ]
    entries = [
        dataclasses.replace(make_entry(1024, causal=True), workload=kind, traits="causal")
        for kind in kinds
    ]
    for kind in kinds:
        asked = dataclasses.replace(kind, batch=1)
        match = found(find_match(Registry.of(entries), H200, asked))
        assert match.entry.workload == kind
        assert not match.exact
    others = [e for e in entries if e.workload.bottom_right]
    match = found(find_match(Registry.of(others), H200, base))
    assert not match.exact
    assert match.entry.workload == dataclasses.replace(base, bottom_right=True)
    assert "(mask causal_br for causal)" in match.explanation


def drawn(dice: random.Random) -> Workload:
    """One of two kinds, with sizes that are powers of two, so that distances are exact."""
    kv_heads = dice.choice((1, 2))
    shape = (dice.choice((1, 2)), kv_heads * dice.choice((1, 2, 32)), kv_heads)
    lengths = (dice.choice((1, 2, 64, 1024)), dice.choice((1024, 2048)))
    details = {name: dice.random() < 0.3 for name in ("lse", "sink")}
    if dice.random() < 0.2:
        total = {"total_q": 2 ** dice.randint(8, 11), "total_kv": 4096}
        return Workload(*shape, *lengths, 128, DType.FP16, packed=True, **total, **details)
    scale, cached = dice.choice((None, 0.5)), dice.choice(("", "equal"))
    return Workload(
        *(*shape, *lengths, 128, DType.FP16), softmax_scale=scale, cache_lengths=cached, **details
    )


def factor(a: float, b: float) -> float:
    """How many doublings apart two sizes are."""
    return math.log2(max(a, b) / min(a, b))


def far(a: Workload, b: Workload) -> tuple[float, float]:
    """The distance of two workloads, and that of their lengths."""
    lengths = (factor(a.seq_len_q, b.seq_len_q) + factor(a.seq_len_kv, b.seq_len_kv)) / 2
    if a.decode_shape and b.decode_shape:
        parts = [math.ceil(w.rows_of_kv_head / 64) for w in (a, b)]
        tiles, keys, rows = zip(
            *(
                (n * w.batch * w.kv_heads, w.seq_len_kv, max(16, -(-w.rows_of_kv_head // n)))
                for n, w in zip(parts, (a, b), strict=True)
            ),
            strict=True,
        )
        return factor(*tiles) + factor(*keys) + factor(*rows), lengths
    calls = [w.heads * (w.total_q if w.packed else w.batch) for w in (a, b)]
    return lengths + factor(*calls) + factor(*(w.heads / w.kv_heads for w in (a, b))), lengths


@pytest.mark.parametrize("seed", range(40))
def test_matches_are_in_the_order_of_their_definition(make_entry: MakeEntry, seed: int) -> None:
    dice = random.Random(seed)
    entries: dict[Any, Entry] = {}
    asked = drawn(dice)
    exact = [dataclasses.replace(asked, softmax_scale=scale) for scale in (None, 0.5)]
    for w in [drawn(dice) for _ in range(60)] + exact * (seed % 2):
        method = dice.choice(("ncu", "events", "aaa", "zzz"))
        one = dataclasses.replace(make_entry(method=method), workload=w)
        entries[one.key] = one
    registry = Registry.of(list(entries.values()))

    def plain(w: Workload) -> Workload:
        return dataclasses.replace(w, softmax_scale=None)

    def order(e: Entry) -> tuple[Any, ...]:
        return e.workload, ("ncu", "events", "aaa", "zzz").index(e.method)

    def preference(e: Entry) -> tuple[Any, ...]:
        w = e.workload
        details = [getattr(w, n) != getattr(asked, n) for n in ("lse", "sink", "cache_lengths")]
        away = tuple(round(x, 9) for x in far(w, asked))
        other = plain(w) != plain(asked)
        return other, w.decode_shape != asked.decode_shape, *away, *details, w != asked, order(e)

    kind = [e for e in registry.entries if e.workload.packed == asked.packed]
    found = matches(registry, H200, asked)
    assert [m.entry for m in found] == sorted(kind, key=preference)
    for match in found:
        assert match.distance == pytest.approx(far(match.entry.workload, asked)[0], abs=1e-9)
        assert match.exact is (plain(match.entry.workload) == plain(asked))
    uneven = asked.cached and asked.batch > 1
    same = [
        m
        for m in found
        if m.entry.workload.decode_shape == asked.decode_shape
        and (not uneven or m.entry.workload.cached)
    ]
    assert list(alike(found, asked)) == same
    near = [m for m in same if not asked.decode_shape or m.distance < 1.01]
    assert list(near_enough(found, asked)) == near
    assert in_order(registry.entries) == sorted(registry.entries, key=order)
