"""Tensors of more than 2³¹ elements: views with huge strides, which take the memory but not the
time, and a log-sum-exp that really is that long."""

import torch

from fa_tune.core.workload import Workload
from tests.gpu.oracle import LSE_TOLERANCE, KernelCall, attention, equal_bits, inputs_for
from tests.tensors import qkv

BEYOND = 2**31  # elements: what 32 bits do not count


def spread(shape: tuple[int, ...], dimension: str, device: str = "cuda") -> torch.Tensor:
    """An fp16 view of that [batch, seq, heads, d_head] shape whose last index in `dimension`
    lies more than 2³¹ elements behind its first; the others are close together."""
    axis = ("batch", "seq", "head").index(dimension)
    strides = [0, 0, 0, 1]
    near = shape[3]
    for i in (2, 1, 0):
        if i != axis:
            strides[i] = near
            near *= shape[i]
    # A multiple of 8 elements past the others, so that rows do not overlap.
    strides[axis] = max(near, -(-BEYOND // (shape[axis] - 1))) // 8 * 8 + 8
    elements = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
    assert strides[axis] * (shape[axis] - 1) > BEYOND
    return torch.empty(elements, dtype=torch.float16, device=device).as_strided(shape, strides)


def check_strides(kernel: KernelCall, w: Workload, *, dimension: str) -> list[str]:
    """The same result, to the bit, as from tensors that lie close together."""
    near = inputs_for(w, "plain", 7, "cuda")
    expected = torch.empty_like(near["q"])
    kernel(w, near, expected, None)
    exact, _ = attention(near, w, torch.float64)
    wrong = []
    if not float((expected.double() - exact).abs().max()) < 4e-3:
        wrong.append("the result is wrong with small tensors already")
    far = qkv(*(spread(tuple(near[n].shape), dimension).copy_(near[n]) for n in "qkv"))
    out = spread(tuple(near["q"].shape), dimension).fill_(float("nan"))
    kernel(w, far, out, None)
    if not equal_bits(out.contiguous(), expected):
        wrong.append(f"the {dimension} stride is not taken as a 64-bit number")
    return wrong


def check_lse(kernel: KernelCall, w: Workload) -> list[str]:
    """A log-sum-exp of more than 2³¹ rows, which all heads of all batches have in common, since
    their strides are 0."""
    one = Workload(1, 1, 1, w.seq_len_q, w.seq_len_kv, w.d_head, w.dtype, lse=True)
    near = inputs_for(one, "plain", 7, "cuda")
    shape = (w.batch, w.seq_len_q, w.heads, w.d_head)
    kv_shape = (w.batch, w.seq_len_kv, w.heads, w.d_head)
    same = qkv(near["q"].expand(shape), near["k"].expand(kv_shape), near["v"].expand(kv_shape))
    out = torch.empty_like(near["q"]).expand(shape)
    lse = torch.full((w.batch, w.heads, w.seq_len_q), float("nan"), device="cuda")
    assert lse.numel() > BEYOND
    kernel(w, same, out, lse)
    _, exact = attention(near, one, torch.float64)
    wrong = []
    if not float((lse[0, 0].double() - exact[0, 0]).abs().max()) < LSE_TOLERANCE:
        wrong.append("the first rows are wrong")
    if not all(bool((part == lse[0, 0]).all()) for part in lse.split(64)):
        wrong.append("the log-sum-exp is not indexed by 64-bit numbers")
    return wrong
