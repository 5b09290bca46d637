"""Packed batches on the host: sequences of any lengths, with NaN in their neighbours."""

from __future__ import annotations

import re
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from fa_tune.core.workload import DType, Workload
from fa_tune.operations.traits import Traits
from tests.gpu.score_hooks import HOOKS
from tests.kernels.emulated.emulation import (
    Emulated,
    EmulationFailed,
    build_changed,
    schedules,
)
from tests.kernels.emulated.judging import in_own_process
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
    ("sm90(FP16, 64, 64x16): stages_1", "causal+ragged+packed"),
    (TURNS, "causal+ragged+lse+packed"),
    ("(BF16, 64, 128, 32, 8): async+eager+swizzled+load_1_1_1_tiles+stages_2+pingpong",
     "ragged+packed"),
    (RING, "causal+ragged+lse+packed"),
    ("(FP16, 32, 32, 64, 2): load_0_0_0_tiles+opt_softmax", "ragged+lse+packed"),
    (BEST, "causal+ragged+lse+window+sink+alibi+packed"),
    (f"{BEST}+adaptive_max", "causal+ragged+lse+window+sink+packed"),
    (f"{BEST.replace('+single_loop', '')}+rows_in_turn+adaptive_max",
     f"ragged+lse+window+alibi+packed+hook_{PLACES}"),
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
    ((1, 1), (150, 20, "uniform-2"), 0),
    # Of about as many keys and as many tiles: handed out together.
    ((2, 1), "100+90+120+0+128+60+250+200+190+300", 0),
    # All as long as the mean, and others of a whole mean.
    ((2, 1), "100+100+100x150+150+150", 0),
    ((2, 2), "130+0+50x70+90+50", 0),
    ((1, 1), "+".join(["10"] * 38 + ["9", "11"]), 0),
    # A single tile, fewer than there are CTAs.
    ((1, 1), "0+7+0", 0),
)
WINDOWS = (30, 64, 3, 3, 50, 40, 20, 5, 2)  # to the left, of each batch
LIMIT_S = 10.0
# (config, traits, file, text, replacement), each found at one place.
MUTANTS = {
    "a window is aligned with the first query": (
        TURNS, "ragged+window+packed", "common/sequence.cuh",
        "return of_diagonal + p.score.first_diagonal;", "return p.score.first_diagonal;",
    ),
    "a window begins a key late": (
        BEST, "causal+ragged+window+packed", "common/mask.cuh",
        "return row + first_diagonal;", "return row + first_diagonal + 1;",
    ),
    "a causal mask ends a key late": (
        RING, "causal+ragged+packed", "common/mask.cuh",
        "row + diagonal + 1", "row + diagonal + 2",
    ),
    "what is behind the last key counts": (
        BEST, "ragged+lse+packed", "sm90/fwd/consumer.cuh",
        "sequence.keys(p) > 0 && sequence.keys(p) % CFG.B_c == 0", "true",
    ),
    "a copy goes on into the neighbour": (
        BEST, "ragged+packed", "common/sequence.cuh",
        "max(0, min(length - row, kRows))", "kRows",
    ),
    "a sink counts twice": (
        BEST, "causal+ragged+lse+sink+packed", "common/scores.cuh",
        "sum = fmaf(sum, a, ptx::ex2_approx(sink - top));",
        "sum = fmaf(sum, a, 2.f * ptx::ex2_approx(sink - top));",
    ),
    "slopes are those of the first sequence": (
        RING, "ragged+alibi+packed", "common/sequence.cuh",
        "int element(int) const { return index; }", "int element(int) const { return 0; }",
    ),
    "distances are aligned with the first query": (
        BEST, "ragged+alibi+packed", "common/sequence.cuh",
        "return of_diagonal + p.score.alibi_diagonal;", "return p.score.alibi_diagonal;",
    ),
    "a hook counts queries from its tile": (
        BEST, f"ragged+lse+packed+hook_{PLACES}", "sm90/fwd/scheduler.cuh",
        "return TRAITS.alibi || TRAITS.hook;", "return false;",
    ),
    "a group's tiles are all of one sequence": (
        BEST, "causal+ragged+packed", "common/member_order.cuh",
        "place += tile.in_group - member.in_group;", "",
    ),
    "a thread orders its first sequence alone": (
        BEST, "causal+ragged+packed", "common/member_order.cuh",
        "if (first > 0 && index < count) member = member_of(index);", "",
    ),
    "equal lengths are taken for granted": (
        BEST, "causal+ragged+packed", "sm90/fwd/packed_beginning.cuh",
        "!equals.possible || all_equal(lengths);", "true;",
    ),
    "only a warp's first lengths are compared": (
        BEST, "causal+ragged+packed", "sm90/fwd/packed_beginning.cuh",
        "for (int i = threadIdx.x % 32 + 32; i <= batch.batch;", "for (int i = 1; i < 1;",
    ),
    "the first copies are not waited for": (
        BEST, "causal+ragged+packed", "sm90/fwd/packed_beginning.cuh",
        "ptx::mbarrier_wait(full, 0);", "",
    ),
    "bulk copies come to where the order was written": (
        BEST, "causal+ragged+packed", "sm90/fwd/scheduler.cuh",
        "wrote() { ptx::fence_proxy_async_shared(); }", "wrote() {}",
    ),
    "the same in turns": (
        TURNS, "causal+ragged+packed", "sm80/fwd/ping_pong_mainloop.cuh",
        "ptx::fence_proxy_async_shared();  // bulk copies", "// bulk copies",
    ),
    "the list is longer than its memory": (
        BEST, "causal+ragged+packed", "common/member_order.cuh",
        "batch.members[place + 1].first_tile =",
        "batch.members[place + 2].first_tile = batch.members[place + 1].first_tile =",
    ),
    "a tile is found where there is none": (
        BEST, "causal+ragged+packed", "common/member_order.cuh",
        "if (threadIdx.x == Team::kFirst) ptx::st_shared(found, -1);", "",
    ),
    "a hook's origin is in the log-sum-exp": (
        RING, f"ragged+lse+packed+hook_{CAP_BY_FOUR}", "sm80/fwd/epilogue.cuh",
        "-= score_shift", "-= 0.f * score_shift",
    ),
}  # fmt: skip


def _problem(kernel: Emulated, traits: Traits, number: int) -> PackedProblem:
    """That of a batch, with what the traits say."""
    (heads, kv_heads), drawn, gap = BATCHES[number]
    batch, longest, lengths = (1, 1, drawn) if isinstance(drawn, str) else drawn
    has_right = traits.window and traits.causal and number == 1
    workload = Workload(
        *(batch, heads, kv_heads, longest, longest),
        kernel.config.d_head,
        DType(kernel.config.dtype),
        causal=traits.causal and not has_right,
        lse=traits.lse,
        window_left=WINDOWS[number] if traits.window else None,
        window_right=3 if has_right else None,
        sink=traits.sink,
        softcap=15.0 if traits.softcap else None,
        alibi=traits.alibi,
        score_hook=traits.hook or None,
        lengths=lengths,
    )
    return PackedProblem.of(workload, ("strided", "plain")[number % 2], number, gap)


@pytest.mark.parametrize(("short_form", "traits"), KERNELS)
def test_no_neighbour_reaches_a_row(short_form: str, traits: str, libraries: Path) -> None:
    kernel = build_changed(short_form, traits, libraries)
    for number in range(len(BATCHES)):
        problem = _problem(kernel, Traits.parse(traits), number)
        schedule = next(islice(schedules(number), number % 4, None))  # of all units in turn
        out, lse = kernel.launch(problem, schedule)
        assert not faults(problem, out, lse), f"{problem.workload.key}, {schedule}"


def _first_fault(kernel: Emulated, traits: str) -> str:
    """What is noticed first, or ""."""
    for number in range(len(BATCHES)):
        problem = _problem(kernel, Traits.parse(traits), number)
        try:
            for schedule in islice(schedules(number), 2):
                if said := faults(problem, *kernel.launch(problem, schedule)):
                    return said[0]
        except EmulationFailed as failed:
            return str(failed)
    return ""


@pytest.mark.parametrize("name", MUTANTS)
def test_what_is_wrong_is_noticed(name: str, libraries: Path) -> None:
    short_form, traits, file, text, replacement = MUTANTS[name]
    kernel = build_changed(short_form, traits, libraries, file, re.escape(text), replacement)
    # Some write or read anywhere, or do not end.
    assert in_own_process(partial(_first_fault, kernel, traits), str, LIMIT_S)
