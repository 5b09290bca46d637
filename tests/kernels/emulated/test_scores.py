"""Windows, sinks, soft caps and ALiBi on the host: right whatever the schedule, and what is taken
from them is noticed."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from fa_tune.core.workload import Workload
from fa_tune.operations.traits import Traits
from tests.gpu.score_hooks import HOOKS
from tests.kernels.emulated.emulation import Emulated, build_changed, schedules
from tests.kernels.emulated.judging import judge
from tests.kernels.emulated.problems import NAN, Problem, attention, to_float

BEST = (
    "sm90(FP16, 64, 128x64): stages_2+q_stages_2+pingpong+overlap+cross_tile_overlap+stale_max"
    "+dynamic+longest_first"
)
SINGLE_LOOP = (
    "sm90(BF16, 64, 128x32): stages_2+q_stages_2+pingpong+overlap+stale_max+dynamic+longest_first"
    "+single_loop"
)
TURNS = (
    "(FP16, 64, 128, 64, 8): async+eager+swizzled+load_1_1_1_tiles+opt_softmax+stages_3+rescale_8"
    "+pingpong"
)
RING = "(FP16, 64, 64, 64, 4): async+swizzled+load_2_2_2_tiles"
DECODE = "decode(BF16, 64, 16, 32, 2): stages_2"
_, _, CAP_BY_FOUR, _ = HOOKS
ALL = "causal+ragged+lse+window+sink+softcap+alibi"
# Loops of both kinds, stale and fresh maxima, persistent CTAs and single ones, turns, rings, one
# stage.
KERNELS = (
    (BEST, "causal+ragged+lse+window+sink"),
    (f"{BEST}+rows_in_turn+adaptive_max", ALL),
    (f"{SINGLE_LOOP.replace('32:', '64:')}+adaptive_max", "causal+ragged+lse+window+sink"),
    (SINGLE_LOOP, "causal+lse+window+softcap+alibi"),
    ("sm90(BF16, 64, 64x48): stages_2+overlap+stale_max+min_ctas_per_sm_2",
     "ragged+lse+window+sink+softcap"),
    ("sm90(FP16, 64, 128x32): stages_3+overlap+thresholded_rescale+static", ALL),
    (TURNS, "causal+ragged+lse+window+sink"),
    ("(BF16, 64, 128, 32, 8): async+eager+swizzled+load_1_1_1_tiles+opt_softmax+stages_2+rescale_8"
     "+pingpong+shared_maxima", "ragged+lse+window+softcap+alibi"),
    ("(BF16, 96, 64, 32, 4): async+eager+swizzled+load_0_2_2_tiles+buffer+opt_softmax+stages_2"
     "+rescale_8+interleave", ALL),
    (RING, "ragged+lse+window+sink+alibi"),
)  # fmt: skip
# Four scores at a time: of whole and of masked blocks, with one stage and rings of several.
BY_FOUR = (
    (BEST, "causal+ragged+lse+softcap"),
    (SINGLE_LOOP, "causal+ragged+lse+window+softcap"),
    ("sm90(FP16, 64, 128x48): stages_2+overlap+thresholded_rescale+static",
     f"causal+ragged+lse+hook_{CAP_BY_FOUR}"),
    (TURNS, "causal+ragged+lse+softcap"),
    (RING, f"ragged+lse+hook_{CAP_BY_FOUR}"),
    (DECODE, "causal+ragged+lse+softcap"),
    ("decode(FP16, 64, 32, 32, 4): row_warps_2+aligned", "causal+ragged+lse+window+softcap"),
)  # fmt: skip
# Four scores of two rows together, as the accumulators have them: (config, traits, file, pattern,
# replacement).
OF_TWO_ROWS = (
    (
        BEST, "causal+ragged+lse+softcap", "common/scores.cuh",
        r"(?s)float four\[4\] = .*?four\[3\];", "change(s[n + i / 2], 4 * i, 8 * n);",
    ),
    (
        DECODE, "causal+ragged+lse+softcap", "decode/warp_group.cuh",
        r"(?s)float four\[4\] = .*?four\[3\];",
        "one_over_one_and_power(s[m][n + i / 2], score_scale);",
    ),
)  # fmt: skip
# (config, traits, file, pattern, replacement), each found at one place.
MUTANTS = {
    "a block within the window is not visited": (
        BEST, "causal+lse+window", "sm90/fwd/scheduler.cuh",
        r"max\(0, key\) / CFG\.B_c", "(max(0, key) + CFG.B_c - 1) / CFG.B_c",
    ),
    "blocks at the window's edge have no mask": (
        BEST, "causal+lse+window", "sm90/fwd/consumer.cuh",
        r"first_row\(tile\) \+ 63, sequence", "first_row(tile), sequence",
    ),
    "the same in a single loop": (
        SINGLE_LOOP, "causal+lse+window", "sm90/fwd/consumer.cuh",
        r" \|\| block <= whole", "",
    ),
    "a window begins a key late": (
        TURNS, "causal+lse+window", "common/mask.cuh",
        r"return row \+ first_diagonal;", "return row + first_diagonal + 1;",
    ),
    "a sink is not in the sum": (
        BEST, "causal+lse+sink", "common/scores.cuh",
        r"sum = fmaf\(sum, a, [^;]*;", "sum *= a;",
    ),
    "O stays under a maximum below the sink": (
        BEST, "causal+lse+sink", "sm90/fwd/softmax.cuh",
        r": a / divisor\(sum\[i\], off\[i\]\);", ": 1.f / divisor(sum[i], off[i]);",
    ),
    "a soft cap's shift is in the log-sum-exp": (
        RING, "causal+lse+softcap", "sm80/fwd/epilogue.cuh",
        r"-= score_shift", "-= 0.f * score_shift",
    ),
    "distances have a sign": (
        RING, "lse+alibi", "common/scores.cuh", r"copysignf\((fmaf\([^;]*\)), slope\)", r"\1",
    ),
    "slopes have no sign": (
        BEST, "causal+lse+alibi", "common/scores.cuh",
        r"copysignf(\(fmaf\([^;]*\)), slope\)", r"fabsf\1)",
    ),
    "scores that are multiplied again are not changed again": (
        TURNS, "causal+lse+softcap", "sm80/fwd/ping_pong_mainloop.cuh",
        r"change_scores\(item\);(\s*if \(partly\)[^;]*;\s*return)", r"\1",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("short_form", "traits"), KERNELS)
def test_no_schedule_changes_a_result(short_form: str, traits: str, libraries: Path) -> None:
    verdict = judge(build_changed(short_form, traits, libraries), repeats=2)
    assert not verdict.findings
    assert verdict.launches >= 12


@pytest.mark.parametrize("name", MUTANTS)
def test_what_is_missing_is_noticed(name: str, libraries: Path) -> None:
    short_form, traits, *change = MUTANTS[name]
    assert judge(build_changed(short_form, traits, libraries, *change), repeats=1).findings


def _nan_of_a_query_and_a_key(kernel: Emulated) -> tuple[np.ndarray, np.ndarray]:
    """Which elements are NaN of a problem with a query of NaN and a key of NaN, and which are to
    be; raises AssertionError if a number is wrong."""
    traits, config = Traits.parse(kernel.request.traits), kernel.config
    w = Workload(
        *(1, 2, 1, 200, 200, config.d_head, config.dtype),
        causal=traits.causal,
        lse=True,
        window_left=70 if traits.window else None,
        softcap=15.0 if traits.softcap else None,
        score_hook=traits.hook or None,
    )
    problem = Problem.draw(w, "plain", 0)
    exact, same, _ = attention(problem)
    spoilt = np.zeros((2, 200), bool)  # heads, queries
    problem.q[0, 53, 1, 7] = NAN
    spoilt[1, 53] = True
    if w.causal:  # otherwise everyone sees the key
        problem.k[0, 131, 0, 9] = NAN
        spoilt[:, 131 : 202 if traits.window else 200] = True
    (schedule,) = itertools.islice(schedules(0), 1)
    out, _ = kernel.launch(problem, schedule)
    given = to_float(out.inside, w.dtype)
    nan = np.isnan(given)
    error = np.abs(given - exact)[~nan].max()
    assert error <= 2 * np.abs(same - exact).max() + 2.0**-7
    return nan, np.broadcast_to(spoilt.T[None, :, :, None], nan.shape)


@pytest.mark.parametrize(("short_form", "traits"), BY_FOUR)
def test_nan_stays_in_its_row(short_form: str, traits: str, libraries: Path) -> None:
    nan, to_be = _nan_of_a_query_and_a_key(build_changed(short_form, traits, libraries))
    assert np.array_equal(nan, to_be)


@pytest.mark.parametrize("mutant", OF_TWO_ROWS, ids=["common", "decode"])
def test_nan_of_another_row_is_noticed(mutant: tuple[str, ...], libraries: Path) -> None:
    short_form, traits, *edit = mutant
    nan, to_be = _nan_of_a_query_and_a_key(build_changed(short_form, traits, libraries, *edit))
    assert not np.array_equal(nan, to_be)
