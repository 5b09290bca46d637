"""FlashAttention 2 as torch has it."""

from __future__ import annotations

import re

from fa_tune.core.workload import FORWARD
from fa_tune.libraries import flash, sdpa
from fa_tune.libraries.base import BASIC, PACKED, TORCH, WINDOW, Library, sides
from fa_tune.operations.base import Launch, Problem, Tensors

_INT = r"(?:\((?:unsigned )?int\))?"  # (int)128, and 128u
_NUMBER = rf"{_INT}\d+[uU]?"


def forward(problem: Problem) -> Launch:
    """A launch of SDPA, and for what that has no arguments, of the operator behind it."""
    if problem.workload.packed or problem.workload.windowed:
        return _operator(problem)
    return sdpa.call(LIBRARY, problem, "FLASH_ATTENTION")


def _operator(problem: Problem) -> Launch:
    """A launch of the operator, which always computes the log-sum-exp."""
    import torch

    workload = problem.workload
    q, k, v, given = flash.tensors(LIBRARY, problem)
    if workload.d_head_v:
        raise LIBRARY.refusal("no head dimension of V for itself")
    left, right = sides(workload)

    def launch() -> Tensors:
        out: torch.Tensor = torch.ops.aten._flash_attention_forward(
            q,
            k,
            v,
            given.get("cu_seqlens_q"),
            given.get("cu_seqlens_k"),
            workload.seq_len_q,
            workload.seq_len_kv if workload.packed else k.shape[1],
            0.0,
            workload.causal,
            False,
            scale=workload.softmax_scale,
            window_size_left=left,
            window_size_right=right,
        )[0]
        return flash.output(problem, out)

    return launch


LIBRARY = Library(
    name="fa2",
    label="FA2",
    full_name="FlashAttention 2 in torch",
    packages=(TORCH,),
    # flash_fwd_kernel<Flash_fwd_kernel_traits<d_head, B_r, B_c, warps, …>, …>, in any namespace
    # (torch builds it as pytorch_flash); the split-KV variants and their combine step belong to
    # one call.
    kernel_names=re.compile(r"flash_fwd(?:_splitkv)?(?:_mla)?(?:_combine)?_kernel"),
    tiles=(
        re.compile(
            rf"Flash_fwd_kernel_traits<\s*{_NUMBER}\s*,\s*{_INT}(?P<rows>\d+)[uU]?\s*,"
            rf"\s*{_INT}(?P<keys>\d+)[uU]?\s*,"
        ),
        re.compile(r"Flash_fwd_kernel_traitsILi\d+ELi(?P<rows>\d+)ELi(?P<keys>\d+)E"),
    ),
    known=BASIC | WINDOW | PACKED,
    calls={FORWARD: forward},
    place=0,
)
