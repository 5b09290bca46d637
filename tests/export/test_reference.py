"""The reference that the exported examples compare with: numbers of 16 bits, and attention."""

import ctypes
from dataclasses import replace

import numpy as np
import pytest
import torch

from fa_tune.build.native import abi
from fa_tune.build.native.call import problem_of
from fa_tune.build.native.library import host_compiler
from fa_tune.core.errors import ToolMissing
from fa_tune.core.workload import BACKWARD, DType, Workload
from tests.export.conftest import run
from tests.project_files import ROOT
from tests.tensors import attention, qkv

CODE = """
#include "reference_gradients.h"
#define SHARED extern "C" __attribute__((visibility("default")))
SHARED void read(const uint16_t* in, float* out, size_t count, int dtype) {
    for (size_t i = 0; i < count; ++i) out[i] = to_float(in[i], dtype);
}
SHARED void write(const float* in, uint16_t* out, size_t count, int dtype) {
    for (size_t i = 0; i < count; ++i) out[i] = to_element(in[i], dtype);
}
SHARED void draw(uint16_t* out, size_t count, int dtype, uint32_t seed) {
    fill(out, count, dtype, seed);
}
SHARED double error_of(const fa_tune_problem* p, const uint16_t* q, const uint16_t* k,
                       const uint16_t* v, const uint16_t* o) {
    return largest_error(p, q, k, v, o);
}
SHARED double gradient_error(const fa_tune_problem* p, const uint16_t* const* qkvd,
                             const uint16_t* const* found) {
    const Gradients expected = reference_gradients(*p, qkvd[0], qkvd[1], qkvd[2], qkvd[3]);
    return error_of(expected, found[0], found[1], found[2], p->dtype);
}
SHARED int parse(const char* key, fa_tune_problem* p) { return parse_problem(key, p); }
"""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    try:
        compiler = host_compiler()
    except ToolMissing as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("reference")
    (folder / "fa_tune").symlink_to(ROOT / "csrc" / "core")
    (folder / "code.cpp").write_text(CODE)
    examples = ROOT / "csrc" / "export" / "examples"
    library = str(folder / "reference.so")
    options = ("-O2", "-shared", "-fPIC", f"-I{folder}", f"-I{examples}")
    run(compiler, *options, str(folder / "code.cpp"), "-o", library)
    found = ctypes.CDLL(library)
    found.error_of.restype = found.gradient_error.restype = ctypes.c_double
    return found


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return array.ctypes.data_as(ctypes.c_void_p)


def elements(reference: ctypes.CDLL, numbers: np.ndarray, dtype: DType) -> np.ndarray:
    given = np.ascontiguousarray(numbers, np.float32)
    out = np.empty(given.shape, np.uint16)
    reference.write(pointer(given), pointer(out), ctypes.c_size_t(out.size), int(dtype))
    return out


def values(bits: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype is DType.FP16:
        return bits.view(np.float16).astype(np.float64)
    with np.errstate(invalid="ignore"):  # signalling NaN
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@pytest.mark.parametrize("dtype", list(DType))
def test_every_number_is_read_and_written(reference: ctypes.CDLL, dtype: DType) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    expected = values(bits, dtype)
    found = np.empty(bits.shape, np.float32)
    reference.read(pointer(bits), pointer(found), ctypes.c_size_t(bits.size), int(dtype))
    assert np.array_equal(found, expected, equal_nan=True)
    normal = (np.abs(found) >= 2.0**-14) & (np.abs(found) <= 65504)
    assert np.array_equal(elements(reference, found[normal], dtype), bits[normal])


def drawn(reference: ctypes.CDLL, shape: tuple[int, ...], dtype: DType, seed: int) -> np.ndarray:
    out = np.empty(shape, np.uint16)
    reference.draw(pointer(out), ctypes.c_size_t(out.size), int(dtype), seed)
    return out


WORKLOADS = pytest.mark.parametrize(
    "workload",
    [
        Workload(2, 4, 2, 9, 13, 32, DType.FP16),
        Workload(2, 4, 1, 13, 9, 32, DType.BF16, causal=True),
        Workload(1, 6, 3, 9, 13, 64, DType.FP16, causal=True, bottom_right=True),
        Workload(1, 2, 2, 13, 9, 64, DType.FP16, causal=True, bottom_right=True),
    ],
    ids=lambda w: w.key,
)


@WORKLOADS
def test_it_is_attention(reference: ctypes.CDLL, workload: Workload) -> None:
    """The error of what torch computes, rounded to fp16, and of that with one number changed."""
    w = workload
    of_queries = (w.batch, w.seq_len_q, w.heads, w.d_head)
    of_keys = (w.batch, w.seq_len_kv, w.kv_heads, w.d_head)
    q, k, v = (
        drawn(reference, shape, w.dtype, seed)
        for seed, shape in enumerate((of_queries, of_keys, of_keys), start=1)
    )
    given = qkv(*(torch.tensor(values(t, w.dtype)) for t in (q, k, v)))
    out = attention(given, w, dtype=torch.float64).numpy()
    o = elements(reference, out, w.dtype)
    problem = abi.Problem()
    assert reference.parse(w.key.encode(), ctypes.byref(problem)) == 1
    assert bytes(problem_of(w))[:72] == bytes(problem)[:72]  # but for the scale, 0 as usual

    def error() -> float:
        return float(reference.error_of(ctypes.byref(problem), *map(pointer, (q, k, v, o))))

    # Rounded toward zero, and 0 below the normal numbers.
    unit = 2.0**-7 if w.dtype is DType.BF16 else 2.0**-10
    assert error() <= unit * np.abs(out).max() + 2.0**-14
    place = np.unravel_index(np.abs(out).argmax(), out.shape)
    o[place] ^= 0x8000
    assert error() == pytest.approx(2 * np.abs(out).max(), rel=4 * unit)
    o[place] = 0x7FFF  # NaN
    assert np.isnan(error())


@WORKLOADS
def test_they_are_its_gradients(reference: ctypes.CDLL, workload: Workload) -> None:
    """The error of what torch computes in fp64, rounded, and of that with one number changed."""
    w = replace(workload, op=BACKWARD)
    of_queries = (w.batch, w.seq_len_q, w.heads, w.d_head)
    of_keys = (w.batch, w.seq_len_kv, w.kv_heads, w.d_head)
    drawn_ones = [
        drawn(reference, shape, w.dtype, seed)
        for seed, shape in enumerate((of_queries, of_keys, of_keys, of_queries), start=1)
    ]
    numbers = [torch.tensor(values(t, w.dtype), requires_grad=True) for t in drawn_ones]
    q, k, v, grad = (t.transpose(1, 2) for t in numbers)
    k, v = (t.repeat_interleave(w.heads // w.kv_heads, dim=1) for t in (k, v))
    scores = q @ k.mT * w.scale
    if w.causal:
        seen = torch.ones(w.seq_len_q, w.seq_len_kv, dtype=torch.bool).tril(w.diagonal)
        scores = scores.masked_fill(~seen, -1e300)
        weights = scores.softmax(-1) * seen
    else:
        weights = scores.softmax(-1)
    (weights @ v * grad.detach()).sum().backward()
    found = [
        elements(reference, t.grad.numpy(), w.dtype) for t in numbers[:3] if t.grad is not None
    ]
    problem = abi.Problem()
    assert reference.parse(w.key.encode(), ctypes.byref(problem)) == 1
    assert problem.operation == problem_of(w).operation

    def error() -> float:
        lists = ((ctypes.c_void_p * len(some))(*map(pointer, some)) for some in (drawn_ones, found))
        # `pointer` gives objects, of which an array takes the addresses.
        return float(reference.gradient_error(ctypes.byref(problem), *lists))

    assert error() <= (2.0**-7 if w.dtype is DType.BF16 else 2.0**-10)
    for one in found:
        place = np.unravel_index(np.abs(values(one, w.dtype)).argmax(), one.shape)
        right = one[place]
        one[place] ^= 0x8000
        assert error() > 0.1
        one[place] = 0x7FFF
        assert np.isnan(error())
        one[place] = right


def test_what_is_no_key_is_refused(reference: ctypes.CDLL) -> None:
    problem = abi.Problem()
    for key in (b"", b"b1_h1", b"b1_h1_kv1_q1_k1_d64_fp16_windowed"):
        assert reference.parse(key, ctypes.byref(problem)) == 0
