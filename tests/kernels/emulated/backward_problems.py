"""Problems of backward passes at random, and their gradients in fp64."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from fa_tune.core.hooks import twin_of
from fa_tune.core.workload import Workload
from tests.gpu.score_hooks import WITH_DERIVATIVE
from tests.kernels.emulated.backward_kernels import Kernel
from tests.kernels.emulated.backward_sm80 import Sm80Kernel
from tests.kernels.emulated.packed_problems import PackedProblem
from tests.kernels.emulated.problems import (
    LAYOUTS,
    NAN,
    Bits,
    Problem,
    Room,
    attention,
    to_bits,
    to_float,
)

DIFFERENCE = 1e-4  # of a score, in fp64


@dataclass(frozen=True)
class BackwardProblem:
    """A forward problem, and what its results' gradient is."""

    forward: Problem
    d_o: Bits
    d_lse: np.ndarray  # fp32 [batch, heads, rows]: of the log-sum-exp, if that has a gradient
    l2_head_group: int
    ctas: int  # of a grid that is resident

    @property
    def workload(self) -> Workload:
        """What it is of."""
        return self.forward.workload

    @property
    def parts(self) -> tuple[Part, ...]:
        """Problems of dense batches, that it is made of."""
        forward = self.forward
        if not isinstance(forward, PackedProblem):
            return (Part(self, slice(None), slice(None)),)
        return tuple(
            Part(
                dataclasses.replace(
                    self, forward=part, d_o=self.d_o[:, rows], d_lse=self.d_lse[..., rows]
                ),
                *(rows, keys),
            )
            for part, rows, keys in forward.parts()
        )

    @property
    def last_diagonal(self) -> int:
        """Query i sees no key after i + this."""
        w = self.workload
        right = 0 if w.causal else w.window_right
        if right is None:
            # Those of a packed batch are counted from the alignment of last rows.
            return w.seq_len_q if w.packed else w.seq_len_kv
        return w.diagonal + right

    @property
    def first_diagonal(self) -> int:
        """Query i sees no key before i + this."""
        w = self.workload
        if w.window_left is None:
            return -w.seq_len_kv if w.packed else -w.seq_len_q
        return w.diagonal - w.window_left

    def seen(self) -> np.ndarray:
        """Which keys a query sees, [seq_len_q, seq_len_kv]."""
        w = self.workload
        place = np.arange(w.seq_len_kv) - np.arange(w.seq_len_q)[:, None]
        right = w.causal or w.window_right is not None
        seen = place <= self.last_diagonal if right else np.ones_like(place, bool)
        return seen & (place >= self.first_diagonal) if w.window_left is not None else seen


@dataclass(frozen=True)
class Part:
    """A dense batch, and where its rows and keys are."""

    problem: BackwardProblem
    rows: slice
    keys: slice


def draw_problem(kernel: Kernel | Sm80Kernel, seed: str) -> BackwardProblem:
    """A problem of a kernel's traits."""
    dice = random.Random(seed)
    whole = not kernel.has("ragged")

    def length(*blocks: int) -> int:
        block = dice.choice(blocks)
        near = dice.choice((1, block - 1, block, block + 1, 2 * block, 2 * block + 1, 3 * block))
        return max(1, min(400, dice.choice((near, dice.randint(1, 400)))))

    q = length(64, 128)
    kv = 128 * dice.randint(1, 3) if whole else length(*kernel.key_blocks)
    if dice.random() < 0.3 and not whole:
        kv = q
    kv_heads, group = dice.choice((1, 1, 2, 3)), dice.choice((1, 1, 2, 3, 4))
    batch = dice.choice((1, 1, 2))
    while batch * kv_heads * group * q * kv > 3e5 and batch * kv_heads * group > 1:
        batch, kv_heads, group = 1, max(1, kv_heads - 1), max(1, group - (kv_heads == 1))
    fields: dict[str, object] = {"d_head_v": kernel.d_head_v}
    longest = max(q, kv)
    if kernel.has("causal"):
        fields["causal"] = dice.random() < 0.6
        if not fields["causal"]:
            fields["window_right"] = int(longest ** dice.random()) - 1
    if kernel.has("window"):
        fields["window_left"] = int(longest ** dice.random()) - 1
    if any(kernel.has(name) for name in ("causal", "window", "alibi")):
        fields["bottom_right"] = dice.random() < 0.6
    if kernel.has("softcap"):
        fields["softcap"] = dice.choice((1.5, 10.0, 50.0))
    if kernel.has("hook"):
        fields["score_hook"] = WITH_DERIVATIVE
    fields |= {name: True for name in ("alibi", "lse") if kernel.has(name)}
    if dice.random() < 0.2:
        fields["sink"] = True
    if dice.random() < 0.2:
        fields["softmax_scale"] = 10 ** dice.uniform(-2, 0)
    if kernel.has("packed"):
        return _draw_packed(kernel, fields, (kv_heads * group, kv_heads), dice)
    shape = (batch, kv_heads * group, kv_heads, q, kv, kernel.d_head, kernel.dtype)
    return make_problem(Workload(*shape, **fields), dice)


def _draw_packed(
    kernel: Kernel | Sm80Kernel,
    fields: dict[str, object],
    heads: tuple[int, int],
    dice: random.Random,
) -> BackwardProblem:
    """Up to six sequences, some without queries or keys, and some rows of none."""
    lengths = [0, 1, 63, 64, 65, 127, 128, 129, 200]
    drawn = [[dice.choice(lengths) for _ in range(2)] for _ in range(dice.randint(1, 6))]
    drawn[dice.randrange(len(drawn))] = [dice.choice(lengths[1:]) for _ in range(2)]
    fields.pop("bottom_right", None)
    text = "x".join("+".join(map(str, of)) for of in zip(*drawn, strict=True))
    if dice.random() < 0.3:
        text = "+".join([str(dice.choice((64, 128, 130)))] * len(drawn))
    workload = Workload(1, *heads, 1, 1, kernel.d_head, kernel.dtype, lengths=text, **fields)
    gap = dice.choice((0, 0, 3, 140))
    layout = dice.choice(("strided", "plain"))
    forward = PackedProblem.of(workload, layout, dice.randrange(2**31), gap)
    return with_gradient(forward, dice)


def make_problem(
    workload: Workload, dice: random.Random, layouts: Sequence[str] = LAYOUTS
) -> BackwardProblem:
    """A workload's inputs, in one of these layouts."""
    return with_gradient(Problem.draw(workload, dice.choice(layouts), dice.randrange(2**31)), dice)


def with_gradient(forward: Problem, dice: random.Random) -> BackwardProblem:
    """Of a forward problem, NaN where it has no rows."""
    shape = (*forward.q.shape[:3], forward.workload.d_v)
    d_o = Room.of(shape, dice.choice(("plain", "strided", "transposed"))).inside
    values = np.random.default_rng(dice.randrange(2**31)).standard_normal(d_o.shape)
    d_o[...] = to_bits(values + 0.25, forward.workload.dtype)
    if isinstance(forward, PackedProblem):
        d_o[:, ~forward.used_rows()] = NAN
    batch, rows, heads, _ = forward.q.shape
    d_lse = np.random.default_rng(dice.randrange(2**31)).standard_normal((batch, heads, rows))
    return BackwardProblem(
        forward, d_o, d_lse.astype(np.float32), dice.choice((1, 2, 3)), dice.randint(1, 3)
    )


@dataclass(frozen=True)
class Gradients:
    """dQ, dK and dV in fp64, and of each the sums of magnitudes that it is of."""

    right: Mapping[str, np.ndarray]
    magnitude: Mapping[str, np.ndarray]


def forward_results(problem: BackwardProblem) -> tuple[np.ndarray, np.ndarray]:
    """Exact O and log-sum-exp, NaN in rows of no sequence."""
    forward = problem.forward
    if isinstance(forward, PackedProblem):
        return forward.exact()
    o, _, lse = attention(forward)
    return o, lse


def gradients(problem: BackwardProblem, o: np.ndarray, lse: np.ndarray) -> Gradients:
    """What must come out, [batch, seq, heads, d], of exact O and log-sum-exp; NaN of rows that no
    sequence has."""
    forward = problem.forward
    if not isinstance(forward, PackedProblem):
        return _of_dense(problem, o, lse)
    rows, keys = forward.used_rows(), forward.used_keys()
    unused = {"dq": ~rows, "dk": ~keys, "dv": ~keys}
    shapes = {"dq": forward.q.shape, "dk": forward.k.shape, "dv": forward.v.shape}
    found = Gradients(*({n: np.zeros(s) for n, s in shapes.items()} for _ in range(2)))
    for part in problem.parts:
        own = _of_dense(part.problem, o[:, part.rows], lse[:, :, part.rows])
        for name, place in (("dq", part.rows), ("dk", part.keys), ("dv", part.keys)):
            found.right[name][:, place] = own.right[name]
            found.magnitude[name][:, place] = own.magnitude[name]
    for name in shapes:
        found.right[name][:, unused[name]] = np.nan
    return found


def _hooked(w: Workload, scores: np.ndarray) -> np.ndarray:
    elements, heads = np.arange(w.batch).reshape(-1, 1, 1, 1), np.arange(w.heads)[:, None, None]
    queries, keys = np.arange(w.seq_len_q)[:, None], np.arange(w.seq_len_kv)
    found: np.ndarray = twin_of(w.score_hook)(scores, elements, heads, queries, keys)
    return found


def _of_dense(problem: BackwardProblem, o: np.ndarray, lse: np.ndarray) -> Gradients:
    w, forward = problem.workload, problem.forward
    group = w.heads // w.kv_heads
    tensors = (forward.q, forward.k, forward.v, problem.d_o)
    q, k, v, d_o = (to_float(t, w.dtype).transpose(0, 2, 1, 3) for t in tensors)
    o = o.transpose(0, 2, 1, 3)
    k, v = (np.repeat(t, group, axis=1) for t in (k, v))
    scores = q @ k.swapaxes(-1, -2) * w.scale
    slope = 1.0
    if w.score_hook is not None:
        hooked = partial(_hooked, w)
        slope = (hooked(scores + DIFFERENCE) - hooked(scores - DIFFERENCE)) / (2 * DIFFERENCE)
        scores = hooked(scores)
    if w.softcap is not None:
        scores = w.softcap * np.tanh(scores / w.softcap)
        slope = 1 - np.square(scores / w.softcap)
    if w.alibi:
        place = np.arange(w.seq_len_kv) - np.arange(w.seq_len_q)[:, None] - w.diagonal
        scores = scores - forward.slopes[..., None, None].astype(np.float64) * abs(place)
    scores = np.where(problem.seen(), scores, -np.inf)
    p = np.exp(scores - np.where(np.isinf(lse), 0.0, lse)[..., None])
    dp = d_o @ v.swapaxes(-1, -2)
    delta, most = (x.sum(-1, keepdims=True) for x in (o * d_o, abs(o * d_o)))
    if w.lse:
        delta, most = delta - problem.d_lse[..., None], most + abs(problem.d_lse[..., None])
    ds, ds_most = (p * change * slope * w.scale for change in (dp - delta, abs(dp) + most))

    def found(p: np.ndarray, ds: np.ndarray, *of: np.ndarray) -> dict[str, np.ndarray]:
        q, k, d_o = of
        made = {"dq": ds @ k, "dk": ds.swapaxes(-1, -2) @ q, "dv": p.swapaxes(-1, -2) @ d_o}
        for name in ("dk", "dv"):
            shape = (w.batch, w.kv_heads, group, w.seq_len_kv, -1)
            made[name] = made[name].reshape(shape).sum(2)
        return {name: x.transpose(0, 2, 1, 3) for name, x in made.items()}

    return Gradients(found(p, ds, q, k, d_o), found(p, ds_most, abs(q), abs(k), abs(d_o)))
