"""sm90/fwd/dominant_weight.cuh on the host, against weights that are known: what rounding made of
the largest of a row, by sums that do not tell it quite."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fa_tune.core.paths import kernels_dir
from fa_tune.core.workload import DType

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

COLUMNS = 8  # of a thread, four of which share a row
DIGITS = {DType.FP16: 11, DType.BF16: 8}
ERROR_OF_SUMS = {DType.FP16: 2.0**-20, DType.BF16: 2.0**-22}  # of a weight, relative
MOST_OTHERS = {DType.FP16: 0.125, DType.BF16: 0.5}  # in halves of a last place

# A quad's lanes one after another, twice: what each has first, and then their sum or maximum.
_QUAD = """
#pragma once
inline float told[2][4];
inline int lane, calls;
inline bool all_told;

inline float quad_sum(float x) {
    float* sums = told[calls++];
    sums[lane] = x;
    return all_told ? sums[0] + sums[1] + sums[2] + sums[3] : x;
}
inline float quad_max(float x) {
    float* all = told[calls++];
    all[lane] = x;
    return all_told ? fmaxf(fmaxf(all[0], all[1]), fmaxf(all[2], all[3])) : x;
}
"""
_PROGRAM = """
#include <bit>
#include <cmath>
#define __device__
#define __forceinline__ inline
inline float __int_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_int(float x) { return std::bit_cast<unsigned>(x); }
#include "sm90/fwd/dominant_weight.cuh"

template <class Ask>
float ask_quad(const Ask& ask) {
    float found = 0.f;
    for (int pass = 0; pass < 2; ++pass) {
        all_told = pass == 1;
        for (lane = 0; lane < 4; ++lane) {
            calls = 0;
            found = ask(lane);
        }
    }
    return found;
}

template <fa_tune::DType DTYPE>
float decided(float weight, float others, const float (&o)[4][16], int row) {
    const fa_tune::sm90::DominantWeight<DTYPE> known{weight, others};
    return ask_quad([&](int lane) { return known.decide(o[lane], row, known.rounding()); });
}

template <fa_tune::DType DTYPE>
bool has_no_value(float weight, float others, const float (&o)[4][16], int row, float v) {
    const fa_tune::sm90::DominantWeight<DTYPE> known{weight, others};
    return ask_quad([&](int lane) { return known.has_no_value(o[lane], row, v); }) != 0.f;
}

#define FUNCTIONS(NAME)                                                                      \\
    extern "C" float rounding_##NAME(float weight) {                                         \\
        return fa_tune::sm90::DominantWeight<fa_tune::DType::NAME>{weight, 0.f}.rounding();  \\
    }                                                                                        \\
    extern "C" bool unsure_##NAME(float weight, float others) {                              \\
        const fa_tune::sm90::DominantWeight<fa_tune::DType::NAME> known{weight, others};     \\
        return known.unsure(known.rounding());                                               \\
    }                                                                                        \\
    extern "C" float decided_##NAME(float weight, float others, const float (&o)[4][16],     \\
                                    int row) {                                               \\
        return decided<fa_tune::DType::NAME>(weight, others, o, row);                        \\
    }                                                                                        \\
    extern "C" bool has_no_value_##NAME(float weight, float others, const float (&o)[4][16], \\
                                        int row, float v) {                                  \\
        return has_no_value<fa_tune::DType::NAME>(weight, others, o, row, v);                \\
    }
FUNCTIONS(FP16)
FUNCTIONS(BF16)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("dominant_weight")
    (folder / "common").mkdir()
    (folder / "common" / "constants.cuh").write_text(_QUAD, "utf-8")  # in place of the kernels'
    (folder / "main.cpp").write_text(_PROGRAM, "utf-8")
    options = ["-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-ffp-contract=off"]
    includes = ["-I", str(folder), "-I", str(kernels_dir())]
    subprocess.run(
        ["g++", *options, *includes, "main.cpp", "-o", "library.so"], cwd=folder, check=True
    )
    found = ctypes.CDLL(str(folder / "library.so"))
    for dtype in DType:
        getattr(found, f"rounding_{dtype.name}").argtypes = [ctypes.c_float]
        getattr(found, f"rounding_{dtype.name}").restype = ctypes.c_float
        getattr(found, f"unsure_{dtype.name}").argtypes = [ctypes.c_float] * 2
        getattr(found, f"unsure_{dtype.name}").restype = ctypes.c_bool
        getattr(found, f"decided_{dtype.name}").argtypes = [
            *[ctypes.c_float] * 2, ctypes.c_void_p, ctypes.c_int,
        ]  # fmt: skip
        getattr(found, f"decided_{dtype.name}").restype = ctypes.c_float
        getattr(found, f"has_no_value_{dtype.name}").argtypes = [
            *[ctypes.c_float] * 2, ctypes.c_void_p, ctypes.c_int, ctypes.c_float,
        ]  # fmt: skip
        getattr(found, f"has_no_value_{dtype.name}").restype = ctypes.c_bool
    return found


def _last_place(x: float, dtype: DType) -> float:
    """What the last digit of x counts in the type."""
    return float(2.0 ** (np.frexp(x)[1] - DIGITS[dtype]))


def _rounded(x: np.ndarray, dtype: DType) -> np.ndarray:
    """To the nearest number with as many digits as the type has, of two the even one."""
    unit = np.ldexp(1.0, np.frexp(x)[1] - DIGITS[dtype])
    return np.rint(x / unit) * unit


def _round_one(x: float, dtype: DType) -> float:
    return float(_rounded(np.array([x]), dtype)[0])


# Any number, and those half way between two of a type.
weights = st.floats(2.0**-20, 2.0**20, width=32) | st.builds(
    lambda digits, exponent: float(digits * 2.0**exponent),
    st.integers(1, 2**12 - 1),
    st.integers(-10, 10),
)
dtypes = st.sampled_from(DType)


@settings(deadline=None)
@given(weights, dtypes)
def test_the_rounding_of_a_weight_is_that_of_its_type(
    library: ctypes.CDLL, weight: float, dtype: DType
) -> None:
    found = getattr(library, f"rounding_{dtype.name}")(weight)
    assert found == _round_one(weight, dtype) - weight


@settings(deadline=None)
@given(
    dtype=dtypes,
    lower=weights,
    others=st.floats(0, 0.48),
    error=st.floats(-1, 1),
    share=st.floats(0, 1),
)
def test_a_weight_that_was_rounded_otherwise_than_sums_say_is_unsure(
    library: ctypes.CDLL, dtype: DType, lower: float, others: float, error: float, share: float
) -> None:
    """Sums tell a weight to within what all others add up to, here up to half of MOST_OTHERS.
    Whatever their error is, and wherever half way lies between the weight and what they tell,
    none is missed."""
    lower = _round_one(lower, dtype)
    half = _last_place(lower, dtype) / 2
    amount = others * MOST_OTHERS[dtype] * half
    off = error * (amount + lower * ERROR_OF_SUMS[dtype] / 2)
    true = float(np.float32(lower + half + share * off))
    told = float(np.float32(lower + half - (1 - share) * off))
    assume(_round_one(told, dtype) != _round_one(true, dtype))
    assert getattr(library, f"unsure_{dtype.name}")(told, amount)


def _held(o: np.ndarray, row: int) -> np.ndarray:
    """O [4 lanes, COLUMNS] of a row, as a thread of each lane holds it."""
    held = np.zeros((4, 16), np.float32)
    for j in range(COLUMNS):
        held[:, 4 * (j // 2) + 2 * row + j % 2] = o[:, j]
    return held


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("wrong_by", [-1.0, 0.0, 1.0])
def test_v_decides_which_way_a_weight_was_rounded(
    library: ctypes.CDLL, dtype: DType, wrong_by: float
) -> None:
    """Rows of one weight about half way between two numbers, and small ones that add up to a
    hundredth of a place; `wrong_by`: of these, how much the sums take for the large one's."""
    dice = np.random.default_rng(0)
    for number in range(300):
        lower = _round_one(float(dice.uniform(1, 2) * 2.0 ** dice.integers(0, 20)), dtype)
        unit = _last_place(lower, dtype)
        amount = unit / 100
        small = dice.dirichlet(np.ones(16)) * amount
        true = lower + unit / 2 + float(dice.uniform(-1, 1)) * amount
        v = _rounded(dice.standard_normal((17, 4, COLUMNS)), dtype)
        p = _rounded(np.array([true, *small]), dtype)
        o = np.einsum("j,jlc->lc", p, v)
        row = number % 2
        held = _held(o, row)
        told = np.float32(true + wrong_by * amount)
        if np.frexp(told)[1] != np.frexp(lower)[1]:
            continue
        found = getattr(library, f"decided_{dtype.name}")(told, amount, held.ctypes.data, row)
        assert told + found == p[0], number


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("value", [0.0, 0.2, 1.0])
def test_a_key_whose_v_is_next_to_nothing_is_found(
    library: ctypes.CDLL, dtype: DType, scale: float, value: float
) -> None:
    """Rows of one key that is all but a sixteenth of them, or all but less: its V is `value` times
    what that of the others is."""
    dice = np.random.default_rng(0)
    for number in range(300):
        weight, others = (
            dice.uniform(1, 2) * 2.0 ** dice.integers(0, 20),
            2.0 ** -dice.uniform(4, 18),
        )
        v = scale * dice.standard_normal((200, 4, COLUMNS))
        p = dice.dirichlet(np.ones(200)) * weight * others
        o = np.einsum("j,jlc->lc", p, v) + weight * value * scale * dice.standard_normal(
            (4, COLUMNS)
        )
        row = number % 2
        held = _held(o, row)
        sample = float(np.abs(v.ravel()[:64]).max())
        ask = getattr(library, f"has_no_value_{dtype.name}")
        assert ask(weight, weight * others, held.ctypes.data, row, sample) == (value == 0.0), number


@pytest.mark.parametrize("dtype", DType)
def test_a_key_that_is_all_of_a_row_has_a_value(library: ctypes.CDLL, dtype: DType) -> None:
    """Whatever `v` is, unless it is far above what the key has; NaN and 0 say nothing."""
    held = _held(np.full((4, COLUMNS), 0.01, np.float32), 0)
    ask = getattr(library, f"has_no_value_{dtype.name}")
    for v in (0.0, 1.0, 1e3, float("nan")):
        assert not ask(1.0, 0.0, held.ctypes.data, 0, v), v
