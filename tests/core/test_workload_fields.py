"""A workload's fields are declared once; what follows from the declarations."""

import dataclasses
from typing import Any

import pytest

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import OPTIONAL, DType, Effect, Workload, benchmark_workload, labels
from fa_tune.core.workload_parts import WorkloadParts, parts_of

PLAIN = benchmark_workload(4096, 128, DType.FP16)


@pytest.mark.parametrize("changes", [{}, {"causal": True, "lse": True}, {"op": "backward"}])
def test_parts_make_the_workload_again(changes: dict[str, object]) -> None:
    workload = dataclasses.replace(PLAIN, **changes)  # type: ignore[arg-type]
    parts = WorkloadParts(**parts_of(workload))
    assert parts.missing == ()
    assert parts.workload == workload


def test_what_has_a_usual_value_need_not_be_known() -> None:
    parts = {**parts_of(PLAIN), **dict.fromkeys(OPTIONAL)}
    assert WorkloadParts(**parts).workload == PLAIN
    assert WorkloadParts(**{**parts, "seq_len": None}).missing == ("seq_len",)
    assert WorkloadParts(**{**parts, "kv_heads": 3}).workload is None, "3 divides no 16 heads"


def test_another_operation_stands_before_the_key() -> None:
    backward = dataclasses.replace(PLAIN, op="backward")
    assert backward.key == f"backward_{PLAIN.key}"
    assert Workload.from_key(backward.key) == backward
    assert sorted([backward, dataclasses.replace(PLAIN, batch=99), PLAIN])[-1] == backward
    assert labels(backward) == ("backward",)
    with pytest.raises(InvalidConfig, match="not a workload key"):
        Workload.from_key(f"Back ward_{PLAIN.key}")


def test_fields_by_what_they_mean_for_a_choice() -> None:
    assert PLAIN.values(Effect.KIND)[:3] == (128, DType.FP16, False)
    assert PLAIN.values(Effect.SIZE) == (16, 16, 16, 4096, 4096, 0, 0)
    assert PLAIN.values(Effect.NONE) == (None,)
    changed = dataclasses.replace(PLAIN, lse=True)
    assert PLAIN.values(Effect.KIND, Effect.SIZE) == changed.values(Effect.KIND, Effect.SIZE)
    assert PLAIN.values(*Effect) != changed.values(*Effect)


def test_the_head_dimension_of_values() -> None:
    plain = dataclasses.replace(PLAIN, d_head=192)
    other = dataclasses.replace(plain, d_head_v=128)
    assert (plain.d_v, other.d_v) == (192, 128)
    assert other.key == f"{plain.key}_dv128"
    assert Workload.from_key(other.key) == other
    assert dataclasses.replace(plain, d_head_v=192) == plain, "one problem, one key"
    assert other.scale == plain.scale
    assert other.values(Effect.KIND) != plain.values(Effect.KIND)
    assert labels(other) == ("d_head_v 128",)
    with pytest.raises(InvalidConfig, match="d_head_v must be at least 1, or 0"):
        dataclasses.replace(plain, d_head_v=-128)


def test_a_side_of_a_window_that_hides_nothing_is_not_there() -> None:
    w = Workload(1, 1, 1, 10, 20, 64, DType.FP16, window_left=9, window_right=18)
    assert (w.window_left, w.window_right) == (None, 18)
    assert Workload(1, 1, 1, 10, 20, 64, DType.FP16, window_left=8).window_left == 8
    aligned = dataclasses.replace(w, window_left=18, window_right=9, bottom_right=True)
    assert (aligned.window_left, aligned.window_right) == (18, None)
    wide = dataclasses.replace(w, window_left=19, window_right=9, bottom_right=True)
    assert wide == Workload(1, 1, 1, 10, 20, 64, DType.FP16)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"window_left": 9, "bottom_right": True},
        {"alibi": True, "bottom_right": True},
        {"cache_lengths": "3+20"},
        {"packed": True, "total_q": 2, "total_kv": 23},
    ],
)
def test_a_causal_mask_that_hides_nothing_is_not_there(fields: dict[str, Any]) -> None:
    """The last query sees every key, so one alone has no mask."""
    one = Workload(2, 2, 1, 1, 20, 64, DType.FP16, **fields)
    aligned = {**fields, "bottom_right": True}
    assert Workload(2, 2, 1, 1, 20, 64, DType.FP16, causal=True, **aligned) == one
    assert not one.causal
    more = {**aligned, "total_q": 3} if one.packed else aligned
    assert Workload(2, 2, 1, 2, 20, 64, DType.FP16, causal=True, **more).causal


def test_one_query_that_sees_the_first_key_alone_has_a_mask() -> None:
    assert Workload(2, 2, 1, 1, 20, 64, DType.FP16, causal=True).causal
    assert not Workload(2, 2, 1, 5, 1, 64, DType.FP16, causal=True).causal  # there is but one


def test_a_window_that_ends_at_its_own_key_is_a_causal_mask() -> None:
    w = Workload(1, 1, 1, 10, 20, 64, DType.FP16, window_left=3, window_right=0)
    assert w == Workload(1, 1, 1, 10, 20, 64, DType.FP16, causal=True, window_left=3)
    assert dataclasses.replace(w, window_right=5) == w
    assert w.key == "b1_h1_kv1_q10_k20_d64_fp16_causal_left3"


def test_scores_with_all_fields_have_a_key_that_is_read_back() -> None:
    w = dataclasses.replace(
        *(PLAIN,), causal=True, window_left=127, sink=True, softcap=30, alibi=True, lse=True
    )
    assert w.key.endswith("_causal_lse_left127_sink_softcap30.0_alibi")
    assert Workload.from_key(w.key) == w
    assert labels(w, short=True) == ("lse", "left 127", "sink", "softcap 30", "alibi")


@pytest.mark.parametrize(
    "changes",
    [
        {"window_left": -1},
        {"window_right": -2},
        {"softcap": 0.0},
        {"softcap": -1.0},
        {"softcap": 1001.0},
    ],
)
def test_windows_and_caps_that_mean_nothing_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(InvalidConfig, match=f"{next(iter(changes))} must be"):
        dataclasses.replace(PLAIN, **changes)  # type: ignore[arg-type]
