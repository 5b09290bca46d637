"""Packed batches on the host: sequences of any lengths, with NaN in their neighbours."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from fa_tune import families
from fa_tune.build.compile import BuildRequest
from fa_tune.core.workload import DType, Workload
from fa_tune.ops.traits import Traits
from tests.gpu.score_hooks import HOOKS
from tests.kernels.emulated.emulation import build, schedules
from tests.kernels.emulated.packed_problems import PackedProblem, faults

_, PLACES, CAP_BY_FOUR, PLACES_BY_FOUR = HOOKS
BEST = (
    "sm90(FP16, 64, 128x64): stages_2+q_stages_2+pingpong+overlap+cross_tile_overlap+stale_max"
    "+dynamic+longest_first+single_loop"
)
TURNS = (
    "(FP16, 64, 128, 64, 8): async+eager+swizzled+load_1_1_1_tiles+opt_softmax+stages_3+rescale_8"
    "+pingpong"
)
RING = (
    "(BF16, 64, 64, 32, 4): async+eager+swizzled+load_0_2_2_tiles+buffer+opt_softmax+stages_2"
    "+rescale_8"
)
KERNELS = (
    (BEST, "causal+ragged+lse+packed"),
    ("sm90(BF16, 64, 128x32): stages_2+overlap+dynamic", "ragged+lse+packed"),
    ("sm90(FP16, 64, 64x48): stages_1", "causal+ragged+packed"),
    (TURNS, "causal+ragged+lse+packed"),
    ("(BF16, 64, 128, 32, 8): async+eager+swizzled+load_1_1_1_tiles+stages_2+pingpong",
     "ragged+packed"),
    (RING, "causal+ragged+lse+packed"),
    ("(FP16, 32, 32, 64, 2): load_0_0_0_tiles+opt_softmax", "ragged+lse+packed"),
    (BEST, "causal+ragged+lse+window+sink+alibi+packed"),
    (BEST, "ragged+lse+window+softcap+packed"),
    ("sm90(BF16, 64, 64x48): stages_2+overlap+static", f"ragged+lse+window+packed+hook_{PLACES}"),
    (TURNS, "causal+ragged+lse+window+sink+softcap+packed"),
    (TURNS, f"ragged+lse+alibi+packed+hook_{PLACES_BY_FOUR}"),
    (RING, "ragged+lse+window+alibi+packed"),
    (RING, f"causal+ragged+lse+sink+packed+hook_{CAP_BY_FOUR}"),
)  # fmt: skip
# Heads, their keys' heads, lengths (or how many of which longest are drawn), unused rows.
BATCHES = (
    ((3, 1), "5+0+130+64+1x9+4+70+0+129", 0),
    ((2, 2), "200+33+128+1x40+160+128+0", 3),
    ((1, 1), (300, 20, "uniform-1"), 0),
)
WINDOWS = (30, 64, 3)  # to the left, of each batch


@pytest.mark.parametrize(("short_form", "given"), KERNELS)
def test_no_neighbour_reaches_a_row(short_form: str, given: str, tmp_path: Path) -> None:
    traits = Traits.parse(given)
    family = families.get("sm90" if short_form.startswith("sm90") else "sm80")
    variant = families.variant(family.parse(short_form))
    kernel = build(BuildRequest(variant, given, "sm_90a"), tmp_path)
    for number, ((heads, kv_heads), drawn, gap) in enumerate(BATCHES):
        batch, longest, lengths = (1, 1, drawn) if isinstance(drawn, str) else drawn
        workload = Workload(
            *(batch, heads, kv_heads, longest, longest),
            kernel.config.d_head,
            DType(kernel.config.dtype),
            causal=traits.causal and not (traits.window and number == 1),
            lse=traits.lse,
            window_left=WINDOWS[number] if traits.window else None,
            window_right=3 if traits.window and traits.causal and number == 1 else None,
            sink=traits.sink,
            softcap=15.0 if traits.softcap else None,
            alibi=traits.alibi,
            score_hook=traits.hook or None,
            lengths=lengths,
        )
        problem = PackedProblem.of(workload, ("strided", "plain")[number % 2], number, gap)
        for schedule in islice(schedules(number), 2):
            out, lse = kernel.launch(problem, schedule)
            assert not faults(problem, out, lse), f"{workload.key}, {schedule}"
