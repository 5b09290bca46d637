"""FlashAttention 2 as torch has it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from fa_tune.core.workload import BACKWARD, FORWARD, Workload
from fa_tune.libraries import flash, sdpa
from fa_tune.libraries.base import BASIC, PACKED, TORCH, WINDOW, Attend, Library, sides
from fa_tune.operations.base import Launch, Problem, Tensors

if TYPE_CHECKING:
    import torch

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
    sizes, more = _arguments(
        workload, given, workload.seq_len_kv if workload.packed else k.shape[1]
    )

    def launch() -> Tensors:
        out: torch.Tensor = torch.ops.aten._flash_attention_forward(q, k, v, *sizes, False, **more)[
            0
        ]
        return flash.output(problem, out)

    return launch


def attends(workload: Workload) -> Attend:
    """The operator, told of a workload."""
    import torch

    sizes, more = _arguments(workload, {}, workload.seq_len_kv)
    del more["scale"]
    compute = torch.ops.aten._flash_attention_forward.default

    def attend(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        out: torch.Tensor = compute(q, k, v, *sizes, False, scale=scale, **more)[0]
        return out

    return attend


def backward(problem: Problem) -> Launch:
    """A launch of the operator, by the log-sum-exp that is given, in which a sink is."""
    import torch

    workload = problem.workload
    done, given = flash.forward_pass(LIBRARY, problem)
    sizes, more = _arguments(workload, given, workload.seq_len_kv)
    do, *others = done
    dropout = no_dropout(do)

    def launch() -> Tensors:
        found = torch.ops.aten._flash_attention_backward(
            do.contiguous(), *others, *sizes, *dropout, **more
        )
        return flash.gradients(problem, found)

    return launch


def _arguments(
    workload: Workload, given: dict[str, Any], keys: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What both operators are told after the tensors, by place and by name, of a problem with so
    many keys in the longest sequence.  Raises InvalidConfig for V of another head dimension."""
    if workload.d_head_v:
        raise LIBRARY.refusal("no head dimension of V for itself")
    left, right = sides(workload)
    beginnings = given.get("cu_seqlens_q"), given.get("cu_seqlens_k")
    places = (*beginnings, workload.seq_len_q, keys, 0.0, workload.causal)
    names = {"window_size_left": left, "window_size_right": right}
    return places, {"scale": workload.softmax_scale, **names}


def no_dropout(like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The state of a random generator that nothing is drawn from, for torch's backward passes."""
    import torch

    seed = torch.empty(2, dtype=torch.uint64, device=like.device)
    return seed, torch.empty((), dtype=torch.uint64, device=like.device)


LIBRARY = Library(
    name="fa2",
    label="FA2",
    full_name="FlashAttention 2 in torch",
    packages=(TORCH,),
    # flash_fwd_kernel<Flash_fwd_kernel_traits<d_head, B_r, B_c, warps, …>, …>, in any namespace
    # (torch builds it as pytorch_flash); the split-KV variants and their combine step belong to
    # one call.
    kernel_names=re.compile(r"flash_fwd(?:_splitkv)?(?:_mla)?(?:_combine)?_kernel"),
    backward_names=re.compile(r"flash_bwd_\w*kernel"),
    tiles=(
        re.compile(
            rf"Flash_fwd_kernel_traits<\s*{_NUMBER}\s*,\s*{_INT}(?P<rows>\d+)[uU]?\s*,"
            rf"\s*{_INT}(?P<keys>\d+)[uU]?\s*,"
        ),
        re.compile(r"Flash_fwd_kernel_traitsILi\d+ELi(?P<rows>\d+)ELi(?P<keys>\d+)E"),
    ),
    known=BASIC | WINDOW | PACKED,
    known_by={BACKWARD: BASIC | WINDOW | PACKED | {"sink"}},
    calls={FORWARD: forward, BACKWARD: backward},
    attends=attends,
    place=0,
)
