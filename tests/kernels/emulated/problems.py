"""Attention problems in host memory, without torch: tensors of fp16 and bf16 by their bits, laid
out in several ways in surroundings of NaN, and what must come out, in fp64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fa_tune.build.native import abi
from fa_tune.core import hooks
from fa_tune.core.workload import DType, Workload

Bits = np.ndarray  # uint16, the bits of elements
NAN = 0xFFFF  # in both types
LAYOUTS = ("plain", "packed", "strided", "transposed", "expanded")
GUARD = 64  # elements before and behind
MEAN = 0.25  # off zero, so that a row that is lost or counted twice shows
# How much larger scores are at the last key (negative: at the first) than at the other end.
GROWTHS = (None, 12.0, -12.0)
FLOOR = {DType.FP16: 2.0**-10, DType.BF16: 2.0**-7}  # the last place of an output near 1
LSE_TOLERANCE = 1e-3  # absolute, and of the value


def to_bits(values: np.ndarray, dtype: DType) -> Bits:
    """Rounded to nearest even."""
    if dtype is DType.FP16:
        return values.astype(np.float16).view(np.uint16)
    wide = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((wide + 0x7FFF + (wide >> 16 & 1)) >> 16).astype(np.uint16)


def to_float(bits: Bits, dtype: DType) -> np.ndarray:
    """As fp64."""
    if dtype is DType.FP16:
        return np.ascontiguousarray(bits).view(np.float16).astype(np.float64)
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@dataclass(frozen=True)
class Room:
    """[batch, seq, heads, d_head] inside a larger array, all NaN at first."""

    whole: Bits
    inside: Bits

    @classmethod
    def of(cls, shape: tuple[int, int, int, int], layout: str) -> Room:
        """Room in the layout of a single tensor."""
        batch, seq, heads, d_head = shape
        if layout == "strided":  # the rim is different on every side
            whole = np.full((batch + 1, seq + 3, heads + 2, d_head + 24), NAN, np.uint16)
            return cls(whole, whole[1:, 2:-1, 1:-1, 8 : 8 + d_head])
        whole = _aligned(math.prod(shape) + 2 * GUARD)
        inner = whole[GUARD:-GUARD]
        if layout == "transposed":
            return cls(whole, inner.reshape(batch, heads, seq, d_head).transpose(0, 2, 1, 3))
        return cls(whole, inner.reshape(shape))

    def is_clean_outside(self) -> bool:
        """Whether nothing but the inside was written."""
        copy = self.whole.copy()
        offset = self.inside.ctypes.data - self.whole.ctypes.data
        inside = np.ndarray(
            self.inside.shape, np.uint16, copy.data, offset, strides=self.inside.strides
        )
        inside[...] = NAN
        return bool((copy == NAN).all())


def _aligned(count: int) -> Bits:
    """NaN, from a multiple of 128 bytes on."""
    memory = np.full(count + 64, NAN, np.uint16)
    start = -memory.ctypes.data % 128 // 2
    return memory[start : start + count]


@dataclass(frozen=True)
class Problem:
    """A workload with its inputs, and the layout that O is to have."""

    workload: Workload
    q: Bits
    k: Bits
    v: Bits
    out_layout: str
    sink: np.ndarray  # fp32 [heads]
    slopes: np.ndarray  # fp32 [batch, heads]

    @classmethod
    def draw(cls, workload: Workload, layout: str, seed: int) -> Problem:
        """Random inputs.  `packed`, Q, K and V of a token side by side, is `strided` where their
        lengths or head dimensions differ."""
        w = workload
        dice = np.random.default_rng(seed)
        alike = (w.seq_len_q, w.d_head) == (w.seq_len_kv, w.d_v)
        if layout == "packed" and not alike:
            layout = "strided"
        rows = 1 if layout == "expanded" else w.batch  # one K and V for the whole batch
        q_shape = (w.batch, w.seq_len_q, w.heads, w.d_head)
        k_shape = (rows, w.seq_len_kv, w.kv_heads, w.d_head)
        if layout == "packed":
            heads = (w.batch, w.seq_len_q, w.heads + 2 * w.kv_heads, w.d_head)
            parts = np.split(Room.of(heads, "").inside, [w.heads, w.heads + w.kv_heads], axis=2)
            q, k, v = parts
        else:
            q = Room.of(q_shape, layout).inside
            k = Room.of(k_shape, layout).inside
            v = Room.of((*k_shape[:3], w.d_v), layout).inside
        growth = GROWTHS[seed % len(GROWTHS)]
        for tensor in (q, k, v):
            values = dice.standard_normal(tensor.shape) + MEAN
            if tensor is k and growth is not None:
                ends = (0.02, 1.0) if growth > 0 else (1.0, 0.02)
                factors = np.linspace(*ends, tensor.shape[1]) * abs(growth)
                values *= factors[:, None, None]
            tensor[...] = to_bits(values, w.dtype)
        if layout == "expanded":
            k, v = (np.broadcast_to(t, (w.batch, *t.shape[1:])) for t in (k, v))
        sink = 2 * dice.standard_normal(w.heads, np.float32)
        slopes = np.exp2(-8 * dice.random((w.batch, w.heads), np.float32))
        slopes[:, 1::2] *= -1  # more for keys further away
        out_layout = layout if layout in ("strided", "transposed") else "plain"
        return cls(w, q, k, v, out_layout, sink, slopes)

    def tensors(self) -> dict[str, np.ndarray]:
        """Inputs of a launch by their names."""
        given = {"q": self.q, "k": self.k, "v": self.v}
        return given | {"sink": self.sink, "alibi_slopes": self.slopes}

    def out(self) -> Room:
        """Room for O."""
        return Room.of((*self.q.shape[:3], self.v.shape[3]), self.out_layout)

    def lse(self) -> np.ndarray:
        """Room for the log-sum-exp, with guards before and behind, NaN."""
        w = self.workload
        return np.full(w.batch * w.heads * w.seq_len_q + 2 * GUARD, np.nan, np.float32)


def tensor_arg(array: np.ndarray) -> abi.Tensor:
    """An array of [batch, seq, heads, columns], [batch, heads] or one dimension, as a launch sees
    it."""
    batch, *more = (s // array.itemsize for s in (*array.strides, 0, 0))
    seq, heads = (more[0], more[1]) if array.ndim == 4 else (0, more[0])
    return abi.Tensor(array.ctypes.data, batch, seq, heads)


def attention(
    problem: Problem, first_element: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """softmax(scale · Q Kᵀ) V [batch, seq, heads, d_v] in fp64, the same with weights and result
    rounded to the element type, and the log-sum-exp [batch, heads, seq_len_q].  Rows that see no
    key are 0 and -inf.  Score hooks count batch elements from `first_element` on."""
    w = problem.workload
    group = w.heads // w.kv_heads
    q, k, v = (
        to_float(t, w.dtype).transpose(0, 2, 1, 3) for t in (problem.q, problem.k, problem.v)
    )
    k, v = (np.repeat(t, group, axis=1) for t in (k, v))
    scores = q @ k.swapaxes(-1, -2) * w.scale
    place = np.arange(w.seq_len_kv) - np.arange(w.seq_len_q)[:, None] - w.diagonal
    if w.softcap is not None:
        scores = w.softcap * np.tanh(scores / w.softcap)
    if w.alibi:
        scores -= problem.slopes[..., None, None].astype(np.float64) * np.abs(place)
    if w.score_hook is not None:
        elements = first_element + np.arange(w.batch).reshape(-1, 1, 1, 1)
        heads, queries = np.arange(w.heads)[:, None, None], np.arange(w.seq_len_q)[:, None]
        twin = hooks.twin_of(w.score_hook)
        scores = twin(scores, elements, heads, queries, np.arange(w.seq_len_kv))
    right = 0 if w.causal else w.window_right
    if right is not None:
        scores = np.where(place <= right, scores, -np.inf)
    if w.window_left is not None:
        scores = np.where(place >= -w.window_left, scores, -np.inf)
    sink = problem.sink[:, None, None] if w.sink else -np.inf
    highest = np.maximum(scores.max(-1, keepdims=True), sink)
    finite = np.where(np.isinf(highest), 0.0, highest)
    weights = np.exp(scores - finite)
    total = weights.sum(-1, keepdims=True) + np.exp(sink - finite)
    divisor = np.where(total == 0.0, 1.0, total)
    rounded = to_float(to_bits(weights, w.dtype), w.dtype) @ v / divisor
    with np.errstate(divide="ignore"):
        lse = np.log(total) + np.where(np.isinf(highest), 0.0, highest)
    exact = (weights @ v / divisor).transpose(0, 2, 1, 3)
    same = to_float(to_bits(rounded, w.dtype), w.dtype).transpose(0, 2, 1, 3)
    return exact, same, lse[..., 0]


def faults(problem: Problem, out: Room, lse: np.ndarray) -> list[str]:
    """What is wrong with a launch's results, in words; the error may be twice that of rounded
    weights and results, plus the last place of an output near 1."""
    w = problem.workload
    exact, same, exact_lse = attention(problem)
    blind = ~(exact.any(-1).transpose(0, 2, 1))
    given = to_float(out.inside, w.dtype)
    error = float(np.abs(given - exact).max())
    limit = 2 * float(np.abs(same - exact).max()) + FLOOR[w.dtype]
    empty = np.isneginf(exact_lse)  # with a sink none is
    said = [
        (f"error {error:.3g} exceeds {limit:.3g}", error <= limit),
        ("it wrote beside O", out.is_clean_outside()),
        ("rows that see nothing are not 0", not given.transpose(0, 2, 1, 3)[blind].any()),
    ]
    inside = lse[GUARD:-GUARD].reshape(exact_lse.shape)
    outside = np.concatenate((lse[:GUARD], lse[-GUARD:]))
    said.append(("it wrote beside the log-sum-exp", bool(np.isnan(outside).all())))
    if w.lse:
        off = np.abs(inside[~empty] - exact_lse[~empty]) / (1 + np.abs(exact_lse[~empty]))
        said.append(("the log-sum-exp is off", bool((off <= LSE_TOLERANCE).all())))
        said.append(("-inf is missing", bool(np.isneginf(inside[empty]).all())))
    else:
        said.append(("it wrote a log-sum-exp", bool(np.isnan(inside).all())))
    return [what for what, fine in said if not fine]
