"""The operators in Python, where C++ cannot be compiled or torch is too old for it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.tensors import check_lse, workload_of
from fa_tune.core.workload import Workload
from fa_tune.families.base import LaunchArgs, TensorArg
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
        out = q.new_empty(q.shape)
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
        out = q.new_empty(q.shape)
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
        workload = workload_of(
            *(q, k, v),
            lse=lse is not None,
            causal=causal,
            bottom_right=bottom_right,
            softmax_scale=scale,
        )
        if any(t.device != q.device for t in (k, v)):
            raise InvalidConfig("Q, K, V must be on one GPU")
        if out.shape != q.shape or out.dtype != q.dtype or out.device != q.device:
            raise InvalidConfig(f"out must be like q, {tuple(q.shape)}, not {tuple(out.shape)}")
        if lse is not None:
            check_lse(lse, workload)
        args = LaunchArgs.forward(
            q=TensorArg.of(q, "Q"),
            k=TensorArg.of(k, "K"),
            v=TensorArg.of(v, "V"),
            o=TensorArg.of(out, "O"),
            lse=TensorArg(0 if lse is None else lse.data_ptr()),
        )
        device = q.device.index
        kernel = self._kernel(workload, device)
        kernel.launch(workload, args, torch.cuda.current_stream(device).cuda_stream, device)
