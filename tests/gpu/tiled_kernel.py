"""What the kernels compute, tile by tile, written in torch: it judges the GPU tests' judges on
machines without a GPU, and with a fault built in shows that they would find it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fa_tune.core.workload import Workload
from fa_tune.operations.base import Tensors


@dataclass(frozen=True)
class TiledKernel:
    """Callable as `tests.gpu.oracle.KernelCall`; `fault` is one of FAULTS or none."""

    B_r: int = 64
    B_c: int = 32
    fault: str = ""

    def __call__(
        self, w: Workload, inputs: Tensors, out: torch.Tensor, lse: torch.Tensor | None
    ) -> None:
        group = w.heads // w.kv_heads
        served = torch.arange(w.heads) // (1 if self.fault == "ignores_groups" else group)
        k, v = (t[:, :, served % w.kv_heads].transpose(1, 2) for t in (inputs["k"], inputs["v"]))
        for first in range(0, w.seq_len_q, self.B_r):
            self._tile(w, inputs["q"].transpose(1, 2), k, v, out, lse, first)
        if self.fault == "writes_outside":
            out.as_strided((1,), (1,), max(0, out.storage_offset() - 1)).fill_(0)
        if self.fault == "forgets_a_row":
            out[-1, -1, -1] = math.nan

    def _tile(
        self,
        w: Workload,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor | None,
        first: int,
    ) -> None:
        """One tile of queries of all heads; q, k, v: [batch, heads, seq, d_head]."""
        diagonal = w.diagonal + (self.fault == "diagonal_off_by_one")
        diagonal = 0 if self.fault == "top_left_always" else diagonal
        scale = w.d_head**-0.5 if self.fault == "usual_scale" else w.scale
        end = min(first + self.B_r, w.seq_len_q)
        rows = torch.arange(first, end)
        keys = w.seq_len_kv
        if w.causal:
            keys = max(0, min(keys, end + diagonal))
        highest = torch.full((w.batch, w.heads, len(rows), 1), -math.inf)
        total = torch.zeros_like(highest)
        sums = torch.zeros(w.batch, w.heads, len(rows), w.d_head)
        for start in range(0, keys, self.B_c):
            block = slice(start, min(start + self.B_c, w.seq_len_kv))
            scores = q[:, :, first:end].float() @ k[:, :, block].float().transpose(-1, -2)
            if w.causal:
                columns = torch.arange(block.start, block.stop)
                scores = scores.masked_fill(columns > rows[:, None] + diagonal, -math.inf)
            # A maximum that passes over NaN, as the device's.
            top = torch.where(scores.isnan(), -math.inf, scores)
            new = torch.maximum(highest, top.amax(-1, keepdim=True))
            shift = torch.where(new == -math.inf, 0.0, new)
            p = torch.exp((scores - shift) * scale)
            moved = torch.exp((highest - shift) * scale)
            if self.fault == "never_rescales":
                moved = torch.ones_like(moved)
            total = total * moved + p.sum(-1, keepdim=True)
            sums = sums * moved + p.to(q.dtype).float() @ v[:, :, block].float()
            highest = new
        inverse = torch.where(total == 0, 0.0, 1 / total)
        out[:, first:end] = (sums * inverse).transpose(1, 2).to(out.dtype)
        if lse is not None:
            found = torch.where(total == 0, -math.inf, highest * scale + total.log())
            if self.fault == "lse_base_2":
                found = found / math.log(2)
            lse[:, :, first:end] = found[..., 0]


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
