"""The problem and the tensors of a call, as the core takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fa_tune.build.native import abi
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import EXACT, FIELDS, Workload
from fa_tune.families.plan import Operation, Plan, TensorRole

if TYPE_CHECKING:
    import torch

CHUNK_BYTES = 16  # the unit of every copy between global and shared memory
_WIDE = 2**31  # keys of a side of a window: more than any tensor has


def problem_of(workload: Workload) -> abi.Problem:
    """The problem of a workload.  Raises InvalidConfig for an operation of which there is none."""
    if workload.causal:
        mask, diagonal = abi.Mask(workload.causal + workload.bottom_right), 0
    else:
        mask, diagonal = abi.Mask.FULL, 0
        if workload.bottom_right:
            mask, diagonal = abi.Mask.FULL_DIAGONAL, workload.diagonal
    left, right = workload.window_left, workload.window_right
    same = {n: getattr(workload, n) or 0 for n, _ in abi.Problem._fields_ if n in FIELDS}
    if workload.op.upper() not in Operation.__members__:
        raise InvalidConfig(f"C++ has no kernels of {workload.op}")
    other = {
        "operation": Operation[workload.op.upper()],
        "mask": mask,
        "diagonal": diagonal,
        "softmax_scale": workload.scale,
        "window": (left is not None) * abi.Window.LEFT | (right is not None) * abi.Window.RIGHT,
        "cached": workload.cached,
        "score_hook": workload.score_hook is not None,
        "exact": workload.accuracy == EXACT,
    }
    return abi.Problem(**same | other)


def problem_for(plan: Plan, workload: Workload) -> abi.Problem:
    """The problem of a workload as a kernel was compiled for it: a window to the left, or a causal
    mask, that it has and the workload has not is stated as a side of a window that hides nothing.
    Raises InvalidConfig as `problem_of`."""
    found = problem_of(workload)
    if plan.window and not found.window & abi.Window.LEFT:
        found.window |= abi.Window.LEFT
        found.window_left = _WIDE
    if plan.causal and not (workload.causal or found.window & abi.Window.RIGHT):
        found.window |= abi.Window.RIGHT
        found.window_right = _WIDE
    return found


def tensors_by_role(
    named: Mapping[str, abi.Tensor], *, workspace: int = 0, added: int = 0, page_size: int = 0
) -> abi.Tensors:
    """The tensors of a call by their names, of which `families.plan.TensorRole` has the roles."""
    found = abi.Tensors(workspace=workspace, added=added, page_size=page_size)
    for name, tensor in named.items():
        found.of[TensorRole[name.upper()]] = tensor
    return found


def tensors_of(
    named: Mapping[str, torch.Tensor], *, workspace: int = 0, added: int = 0
) -> abi.Tensors:
    """The tensors of a call on the device by their names, of which `families.plan.TensorRole` has
    the roles: views of any strides with four dimensions, [batch, heads], and other contiguous ones.
    `workspace`: an address.  `added`: keys of a sequence beside `cache_seqlens`.

    Raises InvalidConfig where rows are not contiguous, or begin at no multiple of 16 bytes."""
    page_size = named["k"].shape[1] if "page_table" in named else 0
    found = {name: _tensor(name, tensor) for name, tensor in named.items()}
    return tensors_by_role(found, workspace=workspace, added=added, page_size=page_size)


def _tensor(name: str, tensor: torch.Tensor) -> abi.Tensor:
    address = tensor.data_ptr()
    if tensor.ndim == 4:
        return abi.Tensor(address, *strides_of_rows(name.upper(), tensor))
    if tensor.ndim == 2:
        return abi.Tensor(address, tensor.stride(0), 0, tensor.stride(1))
    return abi.Tensor(address)


def strides_of_rows(name: str, tensor: torch.Tensor) -> list[int]:
    """The strides of batch, sequence and head of a [batch, seq, heads, d_head] tensor, 0 for an
    extent of 1.  Raises InvalidConfig as `tensors_of`."""
    text = f"it has shape {tuple(tensor.shape)} and strides {tuple(tensor.stride())}"
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        raise InvalidConfig(
            f"{name} must be [batch, seq, heads, d_head] with d_head contiguous; {text}"
        )
    # The stride of an extent of 1 is never used, and torch lets it be anything.
    used = [s if n > 1 else 0 for s, n in zip(tensor.stride(), tensor.shape, strict=True)][:3]
    in_bytes = (s * tensor.element_size() for s in used)
    if any(number % CHUNK_BYTES for number in (tensor.data_ptr(), *in_bytes)):
        raise InvalidConfig(
            f"{name} must have every row at a multiple of {CHUNK_BYTES} bytes; it starts "
            f"at address {tensor.data_ptr():#x}, {text}"
        )
    return used
