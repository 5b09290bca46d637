"""The operators in Python, where C++ cannot be compiled or torch is too old for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fa_tune.build.native import abi
from fa_tune.build.native.call import problem_of, tensors_of
from fa_tune.build.native.core import CoreKernel
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.hooks import hook_of
from fa_tune.core.tensors import is_expanded, score_tensors, workload_of
from fa_tune.core.workload import Workload
from fa_tune.op.library import N_LENGTHS, room_for_lse, room_for_out
from fa_tune.op.operands import Lengths, with_whole_rows
from fa_tune.op.traits import Traits


class PythonOp:
    """The operators by the kernels that `kernel` gives for a workload and a device."""

    def __init__(self, kernel: Callable[[Workload, int], CoreKernel]) -> None:
        self._kernel = kernel

    def __call__(self, name: str, q: Tensor, k: Tensor, v: Tensor, *others: Any) -> Any:
        """The operator of a name, as its schema says."""
        lengths = None
        if "packed" in name:
            lengths, others = Lengths(*others[:N_LENGTHS]), others[N_LENGTHS:]
        if name.endswith("_out"):
            out, lse, *traits = others
            return self._run((q, k, v, out), lse, lengths, Traits(*traits))
        room = [room_for_out(q, v)] + [room_for_lse(q)] * name.endswith("_lse")
        if lengths is not None:  # rows of no sequence are zeros
            room = [tensor.zero_() for tensor in room]
        out, lse = (*room, None)[:2]
        self._run((q, k, v, out), lse, lengths, Traits(*others))
        return out if lse is None else (out, lse)

    def _run(
        self,
        four: tuple[Tensor, Tensor, Tensor, Tensor],
        lse: Tensor | None,
        lengths: Lengths | None,
        traits: Traits,
    ) -> None:
        q, k, v = (with_whole_rows(t) for t in four[:3])
        out = four[3]
        if traits.score_hook is not None:
            hook_of(traits.score_hook)
        _check_out(q, v, out)
        if any(t.device != q.device for t in (k, v)):
            raise InvalidConfig("Q, K, V must be on one GPU")
        workload = asked_workload(q, k, v, lengths, traits, lse=lse is not None)
        if lse is not None:
            _check_lse(lse, q)
        # Kept until the launch: they may be copies.
        sink, slopes = score_tensors(workload, q.device, *traits.tensors)
        more = {"lse": lse, "sink": sink, "alibi_slopes": slopes}
        if lengths is not None:
            _check_lengths(lengths, q)
            q, k, v, out = (t[None] for t in (q, k, v, out))
            more |= {"cu_seqlens_q": lengths.cum_q, "cu_seqlens_kv": lengths.cum_kv}
        given = {"q": q, "k": k, "v": v, "o": out}
        given |= {name: tensor for name, tensor in more.items() if tensor is not None}
        tensors, device = tensors_of(given), q.device.index
        launch(self._kernel(workload, device), problem_of(workload), tensors, device)


def asked_workload(
    q: Tensor, k: Tensor, v: Tensor, lengths: Lengths | None, traits: Traits, **more: Any
) -> Workload:
    """The problem of a call, of a packed batch with `lengths`; `more`: other fields."""
    if lengths is None:
        return workload_of(q, k, v, **traits.of_workload, **more)
    return workload_of(
        q,
        k,
        v,
        packed=True,
        batch=lengths.cum_q.numel() - 1,
        seq_len_q=lengths.longest_q,
        seq_len_kv=lengths.longest_kv,
        **traits.of_workload | {"bottom_right": False},
        **more,
    )


def _check_out(q: Tensor, v: Tensor, out: Tensor) -> None:
    shape = (*q.shape[:-1], v.shape[-1])
    if out.shape != shape or out.dtype != q.dtype or out.device != q.device:
        raise InvalidConfig(
            f"out must be like q with v's last dimension, {shape}, not {tuple(out.shape)}"
        )
    if is_expanded(out):
        raise InvalidConfig("out must have a place for each element; it is expanded")


def _check_lse(lse: Tensor, q: Tensor) -> None:
    shape = (*q.shape[:-3], q.shape[-2], q.shape[-3])
    if tuple(lse.shape) != shape or lse.dtype != torch.float32 or not lse.is_contiguous():
        raise InvalidConfig(f"lse must be fp32 {shape}, contiguous, not {tuple(lse.shape)}")


def _check_lengths(lengths: Lengths, q: Tensor) -> None:
    for name, tensor in (("cu_seqlens_q", lengths.cum_q), ("cu_seqlens_k", lengths.cum_kv)):
        wrong = tensor.dtype != torch.int32 or tensor.shape != lengths.cum_q.shape
        if wrong or tensor.ndim != 1 or tensor.device != q.device or not tensor.is_contiguous():
            raise InvalidConfig(
                f"{name} must be int32 ({lengths.cum_q.numel()}), contiguous, on Q's GPU"
            )


def launch(kernel: CoreKernel, problem: abi.Problem, tensors: abi.Tensors, device: int) -> None:
    """Enqueue a call of a kernel that is prepared, on torch's current stream."""
    if n_bytes := kernel.workspace_bytes(problem, device):
        # torch gives its memory to later work of this stream alone.
        room = torch.empty(n_bytes, dtype=torch.uint8, device=f"cuda:{device}")
        tensors.workspace = room.data_ptr()
    kernel.launch(problem, tensors, torch.cuda.current_stream(device).cuda_stream, device)
