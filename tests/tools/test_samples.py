"""The few variants that stand for all: every value of every knob and trait, and every pair that
can run."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from fa_tune.operations.traits import Traits
from tests.tools import required, required_decode, required_sm90
from tests.tools.covering import TRAIT_AXES, Axes, pairs_of

pytestmark = pytest.mark.xdist_group("samples")  # one worker draws them

Sample = Sequence[tuple[Any, Traits]]
SAMPLES: dict[str, tuple[Callable[[], Axes], Callable[[], Sample]]] = {
    "sm80": (lambda: required.axes((64, 128)), required.code_path_sample),
    "sm80, all": (
        lambda: required.axes(required.ALL_D_HEADS),
        lambda: required.code_path_sample(required.ALL_D_HEADS),
    ),
    "sm90": (lambda: required_sm90.axes(required_sm90.D_HEADS), required_sm90.code_path_sample),
    "decode": (required_decode.axes, lambda: required_decode.code_path_sample("sm_90")),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_sample_takes_every_value_of_every_knob_and_trait(name: str) -> None:
    space_of, sample_of = SAMPLES[name]
    space, sample = space_of(), sample_of()
    assert {*space} == {f.name for f in dataclasses.fields(sample[0][0])} | {*TRAIT_AXES}
    for knob, values in space.items():
        found = {getattr(t if knob in TRAIT_AXES else c, knob) for c, t in sample}
        assert set(values) <= found, knob


@pytest.mark.parametrize(
    ("name", "a", "b", "impossible"),
    [
        ("sm80", "async_copy", "eager_load_blocks", 1),
        ("sm80", "swizzled", "mma_double_buffer_loads", 0),
        ("sm80", "eager_load_blocks", "swizzled", 0),
        ("sm80, all", "d_head", "swizzled", 0),
        ("sm80, all", "d_head", "optimized_softmax", 0),
        ("sm80, all", "d_head", "lse", 0),
        ("sm90", "scheduler", "lse", 0),
        # Of one tile a CTA, watched_max has none to learn from.
        ("sm90", "scheduler", "rescale", 1),
        ("sm90", "d_head", "causal", 0),
        # Above 128, three and four have too few registers, mostly.
        ("sm90", "d_head", "mma_warpgroups", 3),
        ("sm90", "order", "scheduler", 0),
        ("sm90", "cross_tile_overlap", "overlap", 1),
        ("sm90", "pingpong", "ragged", 0),
        ("sm90", "dtype", "B_c", 0),
        ("decode", "by_rows", "tile_keys", 0),
        ("decode", "by_rows", "kv_type", 0),
        ("decode", "by_rows", "cluster", 3),  # these have a way of their own
        ("decode", "tile_keys", "combine", 0),
        ("decode", "tile_keys", "aligned", 0),
        ("decode", "dependent", "cluster", 0),
        ("decode", "kv_type", "d_head", 1),  # e4m3 has no 80
        ("decode", "sectors", "d_head", 4),  # of whole lines
        ("decode", "order", "cluster", 9),  # orders are of CTAs that share
        ("decode", "order", "kv_type", 0),
        ("decode", "order", "causal", 0),
        ("decode", "causal", "cluster", 0),
    ],
)
def test_the_sample_takes_every_pair_that_can_run(
    name: str, a: str, b: str, impossible: int
) -> None:
    space_of, sample_of = SAMPLES[name]
    space, sample = space_of(), sample_of()
    wanted = {((a, x), (b, y)) for x, y in itertools.product(space[a], space[b])}
    found = {pair for c, t in sample for pair in pairs_of(c, t, (a, b))}
    assert len(wanted - found) <= impossible
