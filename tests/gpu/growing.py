"""Scores whose maxima grow, and shrink, from one key block to the next.

A kernel that takes exponentials by a maximum it had before must notice when a block outgrows it,
whichever row it is in and however far the block is above.  Column 0 of Q is a row's slope, column
0 of K a step that rises every few keys; the other columns are small noise:

    log2 of a weight = slope * growth * (key // STEP) + noise        slope in SLOPES, row by row

Rows with a positive slope meet their highest scores first where keys are visited from the last to
the first, those with a negative one last.

A negative growth is one of all rows alike, whose slopes are 1: maxima rise steadily from the last
key to the first.  In some steps one key is far above the others, each time another.
"""

import math

import torch

from fa_tune.core.workload import Workload
from fa_tune.operations.base import Tensors
from tests.gpu.oracle import KernelCall, attention, equal_bits, judged_lse, largest
from tests.tensors import qkv

STEP = 64  # keys
GROWTHS = (1, 2, 3, 5, 8, 9, 11, 14, 16, 17, 40, 127, 128, 200)  # powers of two per step
STEADY_GROWTHS = (-5, -12, -40)
ABOVE = 30  # powers of two by which a key is above the others of its step
SLOPES = (1.0, -1.0, 0.5, -0.5, 0.0, -0.25, 2.0**-6)
NOISE = 0.5


def growing_inputs(workload: Workload, growth: int, seed: int, device: str) -> Tensors:
    """Q, K and V of such scores; all rows of 16 have every slope, so every warp has."""
    w = workload
    generator = torch.Generator(device=device).manual_seed(seed)
    dtype = w.dtype.to_torch_dtype()

    def noise(seq: int, heads: int) -> torch.Tensor:
        shape = (w.batch, seq, heads, w.d_head)
        return torch.randn(shape, generator=generator, device=device)

    q, k = NOISE * noise(w.seq_len_q, w.heads), NOISE * noise(w.seq_len_kv, w.kv_heads)
    slopes = torch.tensor(SLOPES if growth > 0 else (1.0,), device=device)
    q[..., 0] = slopes[torch.arange(w.seq_len_q, device=device) % len(slopes)][None, :, None]
    steps = torch.arange(w.seq_len_kv, device=device) // STEP
    height = steps * growth
    if growth < 0:
        place = torch.arange(w.seq_len_kv, device=device) % STEP
        height = height + ABOVE * ((steps % 3 == 0) & (place == (13 * steps + 9) % STEP))
    k[..., 0] = (height * math.log(2) / w.scale)[None, :, None]
    v = noise(w.seq_len_kv, w.kv_heads)
    return qkv(q.to(dtype), k.to(dtype), v.to(dtype))


def check(growth: int, workload: Workload, kernel: KernelCall, device: str = "cuda") -> list[str]:
    """What is wrong with the kernel's results on one such problem, in words."""
    w = workload
    inputs = growing_inputs(w, growth, growth, device)
    results = []
    for _ in range(2):
        out = torch.full_like(inputs["q"], math.nan)
        lse = torch.full((w.batch, w.heads, w.seq_len_q), math.nan, device=device)
        kernel(w, inputs, out, lse if w.lse else None)
        results.append((out, lse))
    (out, lse), (again, lse_again) = results
    exact, exact_lse = attention(inputs, w, torch.float64)
    # fp32 scores of that size are no more exact than this, and weights are rounded once.
    steps = w.seq_len_kv // STEP * abs(growth)
    limit = (4 * w.dtype.element.epsilon + steps * 2.0**-20) * (1 + largest(inputs["v"].double()))
    error = largest(out.double() - exact)
    found = {
        f"error {error:.3g} exceeds {limit:.3g}": error <= limit,
        "two launches differ": equal_bits(out, again),
        "rows that see nothing are not 0": bool(
            (out.transpose(1, 2)[exact_lse == -math.inf] == 0).all()
        ),
    }
    if w.lse:
        found |= judged_lse(lse, lse_again, exact_lse)
    return [f"{w.key} growing by 2^{growth}: {what}" for what, fine in found.items() if not fine]
