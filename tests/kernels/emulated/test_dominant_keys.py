"""Heads of which each row has one key that is nearly all of it, on the host.  A weight that is no
power of two is rounded there, and its rounding would be most of the error.  One key is that of all
rows (a sink), or each row has one of its own, of a block that is not visited first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fa_tune.core.workload import DType, Workload
from fa_tune.operations.base import Figures, reference_limits
from tests.kernels.emulated.emulation import Emulated, build_changed, schedules
from tests.kernels.emulated.problems import GUARD, Problem, to_bits, to_float

WORDS = "stages_2+q_stages_2+pingpong+overlap+cross_tile_overlap+stale_max+dynamic"
ALONE = "sm90(BF16, 64, 64x32): stages_2+overlap+stale_max+dynamic"
WIDE = f"sm90(BF16, 64, 192x32): {WORDS}+adaptive_max"
IN_TURN = f"sm90(BF16, 64, 128x64): {WORDS}+rows_in_turn+adaptive_max"
CONFIGS = (IN_TURN, WIDE, ALONE, IN_TURN.replace("BF16", "FP16"))
# Nats by which these keys are above scores that have NOISE.  Lower sinks leave too much to others.
SINKS = (10.5, 11.0, 12.0, 14.0, 17.0, 20.0)
OWN_KEYS = (9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 16.0, 18.0, 20.0, 24.0)
NOISE = 0.1
# Sinks over scores so far apart that sums tell some weights wrongly which way they were rounded.
NOISY_SINKS, MUCH_NOISE = (13.9, 14.2, 14.5, 15.1, 15.4, 17.0), 1.5
NOISY_OWN_KEYS, MORE_NOISE = (15.25,), 2.0
UNIT = 8.0  # Q where K has the sink, a power of two
# With a mask: keys beyond the queries, and a key of a block partly hidden that is not the first.
MORE_KEYS, BEHIND_A_MASK = 24, 40

# Then, in the block that is visited last, a key so far above it that m must follow; or one that
# is so for some rows of each warp, and a little above the other scores for the rest.
FAR_ABOVE, LITTLE_ABOVE = 60.0, 3.0
LATE = ("then", "beside")
IN_THE_SECOND = (*LATE, "worthless before others")
# Key blocks, 2 if not here.
BLOCKS = {
    "then": 3, "beside": 3, "worthless before others": 3, "worthless at first": 3,
    "worthless alone": 1,
}  # fmt: skip
# A sink whose value is 0, so that O is what small weights leave: in the block that is visited
# last, in the only one, with blocks to come, or in the first of several, which the last key is in.
# With another key in the first of them far below all others, so that maxima come first.
WORTHLESS = (
    "worthless", "worthless alone", "worthless before others", "worthless at first",
    "worthless far above", "worthless on the diagonal",
)  # fmt: skip
# On the diagonal, so that it is in the block that most rows of a mask have first.
NOISY = ("worthless alone", "worthless on the diagonal")
ON_THE_DIAGONAL, MANY_KEYS = NOISY[1], 512
FAR_BELOW = 80.0  # nats
FEW, LESS = 3, 0.7  # of eight rows alone; the factor by which the others' sink is lower
FP16 = (
    IN_TURN.replace("BF16", "FP16"),
    WIDE.replace("BF16", "FP16"),
    ALONE.replace("BF16", "FP16"),
)
LONG = FP16[0].replace("128x64", "128x128")
TOGETHER = FP16[0].replace("rows_in_turn+", "")
LSE_ERROR = 1e-4
BESIDE_PEAKED, PEAKED, MOST_LOST = 12.0, 14.0, 0.05  # nats, times, of O
# Scores at which m is a multiple of 4: two powers of two more or less may be none or four.
LARGE_SCALES = tuple(float(np.float32(2.0**19 / np.log(2.0**1.5)) * (1 + n / 7)) for n in range(7))

SOFTMAX, WEIGHT = "sm90/fwd/softmax.cuh", "sm90/fwd/dominant_weight.cuh"
CONSUMER, FIRST_BLOCK = "sm90/fwd/consumer.cuh", "sm90/fwd/first_block.cuh"
# (config, kind of heads, traits, file, pattern, replacement), each found at one place.
MUTANTS = {
    "nothing is corrected": (
        ALONE, "sink", "lse", SOFTMAX, r"off\[i\] = weight\[i\]\.rounding\(\);", ";",
    ),
    "own keys are not, either": (
        WIDE, "own", "lse", SOFTMAX, r"off\[i\] = weight\[i\]\.rounding\(\);", ";",
    ),
    "a weight half way between two numbers is taken for the nearer": (
        WIDE, "noisy", "lse", WEIGHT, r"nearer && unsure\(off\) \? other : off", "off",
    ),
    "in fp16 it is, too": (
        FP16[2], "noisy own", "lse", SOFTMAX, r"if \(!any_lane\(unsure\)\) return;", "return;",
    ),
    "the log-sum-exp is that of rounded weights": (
        ALONE, "sink", "lse", SOFTMAX,
        r"lg2_approx\(sum\[i\] \* kHead", "lg2_approx((sum[i] + off[i]) * kHead",
    ),
    "the largest weight does not follow m": (
        ALONE, "then", "lse", SOFTMAX,
        r"largest\[i\] \*= a\[i\];", "",
    ),
    "m grows by any factor": (
        ALONE, "beside", "lse", SOFTMAX, r"growth <= kWholeGrowth \? m \+ whole : next", "next",
    ),
    "the largest weight is not looked for behind a mask": (
        ALONE, "sink", "causal+ragged", SOFTMAX,
        r": fmaxf\(largest\[i\] \* a\[i\], one\)", ": largest[i] * a[i]",
    ),
    "m of a row that overflowed has room above it": (
        FP16[0], "worthless before others", "lse", CONSUMER,
        r"(refresh_max<true>\(products\.s, a, i, )true", r"\1false",
    ),
    "m of a first block that is one key's has room above it": (
        FP16[0], "worthless at first", "lse", CONSUMER,
        r"softmax\.lower_max_of_one_key\(products\.s\);", ";",
    ),
    "m is lowered, and its sum is not": (
        FP16[0], "worthless at first", "lse", SOFTMAX, r"row_sum\[i\] \*= factor\[i\];", "",
    ),
    "m of a tile's only block has room above it": (
        FP16[0], "worthless alone", "causal+ragged", CONSUMER,
        r"(update<true, kRaise>\(products\.s, a, )block == 0", r"\1false",
    ),
    "m of a tile's only block is raised": (
        FP16[0], "worthless alone", "causal+ragged", SOFTMAX,
        r"if \(!kFinalIsExact \|\| !last\) \{", "{",
    ),
    "m of a first block with a mask that is one key's has room above it": (
        LONG, "worthless on the diagonal", "causal+ragged", SOFTMAX,
        r"= last \? 0\.f : kHeadroom \+ raise\[i\];", "= 0.f;",
    ),
    "the rounding of a weight is taken for an error where V is 0": (
        ALONE, "worthless", "lse", SOFTMAX,
        r"if \(kBf16 && (weight\[i\]\.has_no)", r"if (false && \1",
    ),
    "m of a last block with a mask has room above it": (
        FP16[2], "worthless", "causal+ragged", CONSUMER,
        r"(update<false>\(products\.s, a, )block == 0(\);\s*ptx)", r"\1false\2",
    ),
    "m that comes first in the last block has room above it": (
        TOGETHER, "worthless far above", "lse", CONSUMER,
        r"(refresh_max\(products\.s, a, i, )block == 0", r"\1false",
    ),
    "the same with rows in turn": (
        FP16[0], "worthless far above", "lse", CONSUMER,
        r"if \(max_first\) \{(  // row 1's)", r"if (max_first) { const int block = 1;\1",
    ),
}  # fmt: skip


def _problem(w: Workload, height: float, kind: str, sink: int) -> Problem:
    """One key of each row is `height` nats above the others: `sink`, or one of its own."""
    problem = Problem.draw(w, "plain", 0)
    dice = np.random.default_rng(1)
    noise_of = {"noisy": MUCH_NOISE, "noisy own": MORE_NOISE, **dict.fromkeys(NOISY, 1.0)}
    noise = noise_of.get(kind, NOISE)
    q = noise * dice.standard_normal((w.seq_len_q, w.d_head))
    k = dice.standard_normal((w.seq_len_kv, w.d_head))
    if kind in ("own", "noisy own"):
        k /= np.sqrt(np.square(k).sum(-1, keepdims=True))
        own = dice.permutation(np.resize(np.arange(w.seq_len_kv), w.seq_len_q))
        q += height / w.scale * k[own]
    else:
        q[:, 0], k[:, 0] = UNIT, 0.0
        k[sink, 0] = height / w.scale / UNIT
    if kind == "then":
        k[0, 0] = (height + FAR_ABOVE) / w.scale / UNIT
    elif kind == "beside":
        k[:, 1], k[0, 1] = 0.0, 1.0
        some = np.arange(w.seq_len_q) % 8 == 0
        q[:, 1] = np.where(some, height + FAR_ABOVE, LITTLE_ABOVE) / w.scale
    elif kind in WORTHLESS:
        problem.v[0, sink, 0] = 0
        if kind == "worthless far above":
            k[-w.seq_len_kv // BLOCKS.get(kind, 2), 0] = -FAR_BELOW / w.scale / UNIT
        rows = np.arange(w.seq_len_q) % 8
        if kind == "worthless alone":
            q[rows >= FEW, 0] *= LESS
            # Two such keys in one row, which is no one key's.
            q[:, 1], k[:, 1], problem.v[0, sink + 1, 0] = np.where(rows == 0, q[:, 0], 0.0), 0.0, 0
            k[sink + 1, 1] = k[sink, 0]
    problem.q[0, :, 0], problem.k[0, :, 0] = to_bits(q, w.dtype), to_bits(k, w.dtype)
    return problem


def _is_off(kernel: Emulated, height: float, kind: str) -> bool:
    """Whether its root mean square error is above what rounded probabilities and O allow, or its
    log-sum-exp is not exact."""
    c = kernel.config
    causal = "causal" in kernel.request.traits
    more = MANY_KEYS if kind == ON_THE_DIAGONAL else MORE_KEYS
    keys = c.B_r if kind == "worthless alone" else c.B_r + more
    if not causal:
        keys = BLOCKS.get(kind, 2) * c.B_c
    sink = 0 if kind in WORTHLESS else BEHIND_A_MASK if causal else 0
    if kind in IN_THE_SECOND and not causal:
        sink = c.B_c + 1
    elif kind == "worthless at first":
        sink = keys - 1
    elif kind == ON_THE_DIAGONAL:
        sink = MANY_KEYS
    w = Workload(
        *(1, 1, 1, c.B_r, keys, c.d_head, c.dtype),
        causal=causal, bottom_right=causal, lse="lse" in kernel.request.traits,
    )  # fmt: skip
    problem = _problem(w, height, kind, sink)
    out, lse = kernel.launch(problem, next(iter(schedules(0))))
    q, k, v = (to_float(t[0, :, 0], w.dtype) for t in (problem.q, problem.k, problem.v))
    scores = q @ k.T * w.scale
    if causal:
        place = np.arange(keys) - np.arange(w.seq_len_q)[:, None]
        scores = np.where(place <= w.diagonal, scores, -np.inf)
    highest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - highest)
    total = weights.sum(-1, keepdims=True)
    weights /= total
    exact = weights @ v
    same = to_float(to_bits(to_float(to_bits(weights, w.dtype), w.dtype) @ v, w.dtype), w.dtype)
    given = to_float(out.inside[0, :, 0], w.dtype)
    off = np.abs(lse[GUARD:-GUARD] - (highest + np.log(total))[:, 0]).max() if w.lse else 0.0
    limits = reference_limits(_figures(same - exact), _figures(exact), w.dtype)
    return bool(_figures(given - exact).rms > limits.rms or off > LSE_ERROR)


def _figures(values: np.ndarray) -> Figures:
    return Figures(float(np.abs(values).max()), float(np.sqrt(np.square(values).mean())))


def _heights_off(kernel: Emulated, kind: str) -> list[float]:
    of_kind = {"own": OWN_KEYS, "noisy": NOISY_SINKS, "noisy own": NOISY_OWN_KEYS}
    heights = of_kind.get(kind, SINKS)
    return [height for height in heights if _is_off(kernel, height, kind)]


@pytest.mark.parametrize("kind", ["sink", "noisy", "own", "then", "beside"])
@pytest.mark.parametrize("short_form", CONFIGS)
def test_a_key_that_is_nearly_all_of_a_row_is_exact(
    short_form: str, kind: str, libraries: Path
) -> None:
    assert _heights_off(build_changed(short_form, "lse", libraries), kind) == []


def test_own_keys_of_fp16_are_exact_among_noise(libraries: Path) -> None:
    assert _heights_off(build_changed(FP16[2], "lse", libraries), "noisy own") == []


def test_a_sink_behind_a_mask_is_exact(libraries: Path) -> None:
    assert _heights_off(build_changed(ALONE, "causal+ragged", libraries), "sink") == []


@pytest.mark.parametrize("name", MUTANTS)
def test_a_weight_that_is_rounded_is_noticed(name: str, libraries: Path) -> None:
    short_form, kind, traits, *change = MUTANTS[name]
    assert _heights_off(build_changed(short_form, traits, libraries, *change), kind)


@pytest.mark.parametrize("kind", [kind for kind in WORTHLESS if kind != ON_THE_DIAGONAL])
@pytest.mark.parametrize("short_form", [*CONFIGS, *FP16[1:]])
def test_what_small_weights_leave_is_right(short_form: str, kind: str, libraries: Path) -> None:
    assert _heights_off(build_changed(short_form, "lse", libraries), kind) == []


@pytest.mark.parametrize("short_form", [*CONFIGS, *FP16[1:]])
def test_what_small_weights_leave_is_right_behind_a_mask(short_form: str, libraries: Path) -> None:
    kernel = build_changed(short_form, "causal+ragged", libraries)
    assert _heights_off(kernel, "worthless") == []
    if kernel.config.dtype == DType.FP16:  # in bf16 a weight's rounding shows where keys are few
        assert _heights_off(kernel, "worthless alone") == []


@pytest.mark.parametrize("short_form", [LONG, LONG.replace("FP16", "BF16")])
def test_what_small_weights_leave_is_right_on_the_diagonal(
    short_form: str, libraries: Path
) -> None:
    kernel = build_changed(short_form, "causal+ragged", libraries)
    assert _heights_off(kernel, ON_THE_DIAGONAL) == []


def _lost_beside_peaked_rows(kernel: Emulated) -> float:
    """The share of O that is lost where a sink's value is 0, in rows that share a warp with peaked
    ones: one row of eight, whose keys are alike in twos, so that it is no one key's."""
    c = kernel.config
    w = Workload(1, 1, 1, c.B_r, MANY_KEYS + c.B_r, c.d_head, c.dtype, True, bottom_right=True)
    problem = _problem(w, BESIDE_PEAKED, ON_THE_DIAGONAL, MANY_KEYS)
    q, k, v = (to_float(t[0, :, 0], w.dtype) for t in (problem.q, problem.k, problem.v))
    peaked = np.arange(w.seq_len_q) % 8 == 0
    q[peaked, 0], q[peaked, 1:] = 0.0, PEAKED * q[peaked, 1:]
    k[1::2, 1:] = k[::2, 1:]
    problem.q[0, :, 0], problem.k[0, :, 0] = to_bits(q, w.dtype), to_bits(k, w.dtype)
    out, _ = kernel.launch(problem, next(iter(schedules(0))))
    scores = to_float(problem.q[0, :, 0], w.dtype) @ k.T * w.scale
    place = np.arange(w.seq_len_kv) - np.arange(w.seq_len_q)[:, None]
    scores = np.where(place <= w.diagonal, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    exact = (weights / weights.sum(-1, keepdims=True) @ v)[~peaked]
    given = to_float(out.inside[0, :, 0], w.dtype)[~peaked]
    return _figures(given - exact).rms / _figures(exact).rms


def test_rows_keep_their_digits_beside_peaked_rows(libraries: Path) -> None:
    kept = _lost_beside_peaked_rows(build_changed(LONG, "causal+ragged", libraries))
    change = (
        FIRST_BLOCK,
        r"fminf\(raise\[i\], floorf\(row_spread\(s, scale_log2, i\)\)\)",
        "raise[i]",
    )
    lost = _lost_beside_peaked_rows(build_changed(LONG, "causal+ragged", libraries, *change))
    assert kept < MOST_LOST < lost


def _share_of_a_key(kernel: Emulated, scale: float) -> float:
    """The share of every row that the first of two keys has, one in the first block and one in the
    last, which are alike and the only ones with a score: 0.5."""
    c = kernel.config
    keys = 3 * c.B_c
    w = Workload(1, 1, 1, c.B_r, keys, c.d_head, c.dtype, lse=True, softmax_scale=scale)
    problem = Problem.draw(w, "plain", 0)
    q, k = np.zeros((w.seq_len_q, w.d_head)), np.zeros((keys, w.d_head))
    v = np.zeros((keys, w.d_v))
    q[:, 0] = k[0, 0] = k[-1, 0] = UNIT
    v[0] = 1.0
    for tensor, values in ((problem.q, q), (problem.k, k), (problem.v, v)):
        tensor[0, :, 0] = to_bits(values, w.dtype)
    out, _ = kernel.launch(problem, next(iter(schedules(0))))
    shares = to_float(out.inside[0, :, 0], w.dtype)
    assert (shares == shares[0, 0]).all()
    return float(shares[0, 0])


@pytest.mark.parametrize("short_form", FP16)
def test_keys_that_are_alike_share_a_row_however_large_their_scores(
    short_form: str, libraries: Path
) -> None:
    kernel = build_changed(short_form, "lse", libraries)
    assert {_share_of_a_key(kernel, scale) for scale in LARGE_SCALES} == {0.5}


def test_a_large_m_that_is_lowered_is_noticed(libraries: Path) -> None:
    change = (SOFTMAX, r"(> kMostOfOneKey) \|\| large_max\(i\)", r"\1")
    kernel = build_changed(FP16[0], "lse", libraries, *change)
    assert {_share_of_a_key(kernel, scale) for scale in LARGE_SCALES} != {0.5}
