"""The operators in Python: those with windows and changed scores, and all of them where C++ cannot
be compiled or torch is too old for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.tensors import check_lse, score_tensors, workload_of
from fa_tune.core.workload import Workload
from fa_tune.families.base import NOT_GIVEN, LaunchArgs, TensorArg
from fa_tune.op.plans import Kernel


class PythonOp:
    """The operators by the kernels that `kernel` gives for a workload and a device."""

    def __init__(self, kernel: Callable[[Workload, int], Kernel]) -> None:
        self._kernel = kernel

    def fwd(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool,
        bottom_right: bool,
        scale: float | None,
    ) -> Tensor:
        """As the schema says."""
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
        self.fwd_out(q, k, v, causal, bottom_right, scale, out, None)
        return out

    def fwd_lse(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool,
        bottom_right: bool,
        scale: float | None,
    ) -> tuple[Tensor, Tensor]:
        """As the schema says."""
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
        rows = (q.shape[0], q.shape[2], q.shape[1]) if q.ndim == 4 else (0,)
        lse = q.new_empty(rows, dtype=torch.float32)
        self.fwd_out(q, k, v, causal, bottom_right, scale, out, lse)
        return out, lse

    def fwd_out(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool,
        bottom_right: bool,
        scale: float | None,
        out: Tensor,
        lse: Tensor | None,
    ) -> None:
        """As the schema says."""
        plain = (None, None, None, None, None)
        self.fwd_scores_out(q, k, v, causal, bottom_right, scale, *plain, out, lse)

    def fwd_scores(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool,
        bottom_right: bool,
        scale: float | None,
        window_left: int | None,
        window_right: int | None,
        sink: Tensor | None,
        softcap: float | None,
        alibi_slopes: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """As the schema says."""
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
        rows = (q.shape[0], q.shape[2], q.shape[1]) if q.ndim == 4 else (0,)
        lse = q.new_empty(rows, dtype=torch.float32)
        scores = (window_left, window_right, sink, softcap, alibi_slopes)
        self.fwd_scores_out(q, k, v, causal, bottom_right, scale, *scores, out, lse)
        return out, lse

    def fwd_scores_out(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool,
        bottom_right: bool,
        scale: float | None,
        window_left: int | None,
        window_right: int | None,
        sink: Tensor | None,
        softcap: float | None,
        alibi_slopes: Tensor | None,
        out: Tensor,
        lse: Tensor | None,
    ) -> None:
        """As the schema says."""
        workload = workload_of(
            *(q, k, v),
            lse=lse is not None,
            causal=causal,
            bottom_right=bottom_right,
            softmax_scale=scale,
            window_left=window_left,
            window_right=window_right,
            sink=sink is not None,
            softcap=softcap,
            alibi=alibi_slopes is not None,
        )
        if any(t.device != q.device for t in (k, v)):
            raise InvalidConfig("Q, K, V must be on one GPU")
        shape = (*q.shape[:3], v.shape[3])
        if out.shape != shape or out.dtype != q.dtype or out.device != q.device:
            raise InvalidConfig(
                f"out must be like q with v's last dimension, {shape}, not {tuple(out.shape)}"
            )
        if lse is not None:
            check_lse(lse, workload)
        # Kept until the launch: they may be copies.
        sink, alibi_slopes = score_tensors(workload, q.device, sink, alibi_slopes)
        args = LaunchArgs.forward(
            q=TensorArg.of(q, "Q"),
            k=TensorArg.of(k, "K"),
            v=TensorArg.of(v, "V"),
            o=TensorArg.of(out, "O"),
            lse=TensorArg(0 if lse is None else lse.data_ptr()),
            sink=TensorArg(0 if sink is None else sink.data_ptr()),
            alibi_slopes=NOT_GIVEN
            if alibi_slopes is None
            else TensorArg(
                alibi_slopes.data_ptr(),
                (alibi_slopes.stride(0) if alibi_slopes.ndim == 2 else 0, 0, 0),
            ),
        )
        device = q.device.index
        launch(self._kernel(workload, device), workload, args, device)


def launch(kernel: Kernel, workload: Workload, args: LaunchArgs, device: int) -> None:
    """Enqueue a call of a kernel that is prepared, on torch's current stream."""
    if n_bytes := kernel.workspace_bytes(workload, device):
        # torch gives its memory to later work of this stream alone.
        room = torch.empty(n_bytes, dtype=torch.uint8, device=f"cuda:{device}")
        args = replace(args, workspace=room.data_ptr())
    kernel.launch(workload, args, torch.cuda.current_stream(device).cuda_stream, device)
