"""What the kernels compute, tile by tile, written in torch: it judges the GPU tests' judges on
machines without a GPU, and with a fault built in shows that they would find it."""

import math
from dataclasses import dataclass

import torch

from fa_tune.core.workload import Workload
from fa_tune.operations.base import Tensors


@dataclass(frozen=True)
class TiledKernel:
    """Callable as `tests.gpu.oracle.KernelCall`; `fault` is one of FAULTS or none.

    With `trusts` it goes from the last key to the first, as it does `backwards`, and keeps a row's
    maximum until the sum of a block's weights by it exceeds that number.  Weights begin so many
    powers of two (`headroom`) below 1 and are rounded to `p_dtype`.
    """

    B_r: int = 64
    B_c: int = 32
    fault: str = ""
    trusts: float | None = None
    backwards: bool = False
    headroom: float = 0.0
    p_dtype: torch.dtype | None = None
    lost_key: int | None = None
    sum_factor: float = 1.0
    lse_off: float = 0.0
    diagonal_off: int = 0

    def __call__(
        self, w: Workload, inputs: Tensors, out: torch.Tensor, lse: torch.Tensor | None
    ) -> None:
        group = w.heads // w.kv_heads
        served = torch.arange(w.heads) // (1 if self.fault == "ignores_groups" else group)
        q = inputs["q"].transpose(1, 2)  # [batch, heads, seq, d_head], as K and V
        k, v = (inputs[n][:, :, served % w.kv_heads].transpose(1, 2).float() for n in "kv")
        diagonal = w.diagonal + self.diagonal_off + (self.fault == "diagonal_off_by_one")
        diagonal = 0 if self.fault == "top_left_always" else diagonal
        scale = w.d_head**-0.5 if self.fault == "usual_scale" else w.scale
        for first in range(0, w.seq_len_q, self.B_r):
            end = min(first + self.B_r, w.seq_len_q)
            rows = torch.arange(first, end)
            keys = max(0, min(w.seq_len_kv, end + diagonal)) if w.causal else w.seq_len_kv
            highest = torch.full((w.batch, w.heads, len(rows), 1), -math.inf)
            total = torch.zeros_like(highest)
            sums = torch.zeros(w.batch, w.heads, len(rows), w.d_head)
            starts = range(0, keys, self.B_c)
            for start in reversed(starts) if self.backwards or self.trusts is not None else starts:
                block = slice(start, min(start + self.B_c, w.seq_len_kv))
                scores = q[:, :, first:end].float() @ k[:, :, block].transpose(-1, -2)
                if w.causal:
                    columns = torch.arange(block.start, block.stop)
                    scores = scores.masked_fill(columns > rows[:, None] + diagonal, -math.inf)
                if self.lost_key in range(block.start, block.stop):
                    scores[..., self.lost_key - start] = -math.inf
                new = self._maximum(highest, scores, scale)
                shift = torch.where(new == -math.inf, 0.0, new)
                p = torch.exp((scores - shift) * scale) * 2.0**-self.headroom
                moved = torch.exp((highest - shift) * scale)
                if self.fault == "never_rescales":
                    moved = torch.ones_like(moved)
                total = total * moved + p.sum(-1, keepdim=True)
                sums = sums * moved + p.to(self.p_dtype or q.dtype).float() @ v[:, :, block]
                highest = new
            total = total * self.sum_factor
            inverse = torch.where(total == 0, 0.0, 1 / total)
            out[:, first:end] = (sums * inverse).transpose(1, 2).to(out.dtype)
            if lse is not None:
                known = highest * scale + total.log() + self.headroom * math.log(2) + self.lse_off
                found = torch.where(total == 0, -math.inf, known)
                if self.fault == "lse_base_2":
                    found = found / math.log(2)
                lse[:, :, first:end] = found[..., 0]
        if self.fault == "writes_outside":
            out.as_strided((1,), (1,), max(0, out.storage_offset() - 1)).fill_(0)
        if self.fault == "forgets_a_row":
            out[-1, -1, -1] = math.nan

    def _maximum(self, highest: torch.Tensor, scores: torch.Tensor, scale: float) -> torch.Tensor:
        # A maximum that passes over NaN, as the device's.
        top = torch.where(scores.isnan(), -math.inf, scores).amax(-1, keepdim=True)
        new = torch.maximum(highest, top)
        if self.trusts is None or not highest.isfinite().all():
            return new
        weights = torch.exp((scores - highest) * scale).sum(-1, keepdim=True)
        return torch.where(weights > self.trusts, new, highest)


FAULTS = (
    "writes_outside",
    "forgets_a_row",
    "ignores_groups",
    "diagonal_off_by_one",
    "top_left_always",
    "usual_scale",
    "lse_base_2",
    "never_rescales",
)
