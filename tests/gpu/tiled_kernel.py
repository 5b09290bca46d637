"""What the kernels compute, tile by tile, written in torch: it judges the GPU tests' judges on
machines without a GPU, and with a fault built in shows that they would find it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fa_tune.model import Workload
from fa_tune.reference import Inputs


@dataclass(frozen=True)
class TiledKernel:
    """Callable as `tests.gpu.oracle.KernelCall`; `fault` is one of FAULTS or none."""

    B_r: int = 64
    B_c: int = 32
    fault: str = ""

    def __call__(
        self, w: Workload, inputs: Inputs, out: torch.Tensor, lse: torch.Tensor | None
    ) -> None:
        for b in range(w.batch):
            for h in range(w.heads):
                for first in range(0, w.seq_len_q, self.B_r):
                    self._tile(w, inputs, out, lse, b, h, first)
        if self.fault == "writes_outside":
            out.as_strided((1,), (1,), max(0, out.storage_offset() - 1)).fill_(0)
        if self.fault == "forgets_a_row":
            out[-1, -1, -1] = math.nan

    def _tile(
        self,
        w: Workload,
        inputs: Inputs,
        out: torch.Tensor,
        lse: torch.Tensor | None,
        b: int,
        h: int,
        first: int,
    ) -> None:
        group = 1 if self.fault == "ignores_groups" else w.heads // w.kv_heads
        kv_head = h // group % w.kv_heads
        diagonal = w.diagonal + (self.fault == "diagonal_off_by_one")
        diagonal = 0 if self.fault == "top_left_always" else diagonal
        scale = w.d_head**-0.5 if self.fault == "usual_scale" else w.scale
        rows = torch.arange(first, min(first + self.B_r, w.seq_len_q))
        q = inputs.q[b, rows, h].float()
        keys = w.seq_len_kv
        if w.causal:
            keys = max(0, min(keys, int(rows[-1]) + diagonal + 1))
        highest = torch.full((len(rows), 1), -math.inf)
        total = torch.zeros(len(rows), 1)
        sums = torch.zeros(len(rows), w.d_head)
        for start in range(0, keys, self.B_c):
            columns = torch.arange(start, min(start + self.B_c, w.seq_len_kv))
            scores = q @ inputs.k[b, columns, kv_head].float().T
            if w.causal:
                scores = scores.masked_fill(columns > rows[:, None] + diagonal, -math.inf)
            # fmax and a maximum that passes over NaN, as the device's.
            top = scores.nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
            new = torch.fmax(highest, top.amax(-1, keepdim=True))
            shift = torch.where(new == -math.inf, 0.0, new)
            p = torch.exp((scores - shift) * scale)
            moved = torch.exp((highest - shift) * scale)
            total = total * moved + p.sum(-1, keepdim=True)
            v = inputs.v[b, columns, kv_head].float()
            sums = sums * moved + p.to(inputs.q.dtype).float() @ v
            highest = new
        inverse = torch.where(total == 0, 0.0, 1 / total)
        out[b, rows, h] = (sums * inverse).to(out.dtype)
        if lse is not None:
            found = torch.where(total == 0, -math.inf, highest * scale + total.log())
            if self.fault == "lse_base_2":
                found = found / math.log(2)
            lse[b, h, rows] = found[:, 0]


FAULTS = (
    "writes_outside",
    "forgets_a_row",
    "ignores_groups",
    "diagonal_off_by_one",
    "top_left_always",
    "usual_scale",
    "lse_base_2",
)
