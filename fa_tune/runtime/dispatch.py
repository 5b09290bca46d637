"""Attention by what a registry holds, launched by CuPy, on one GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, Unpack

import torch

from fa_tune.core import arch
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.jobs import KernelItem
from fa_tune.core.model import Variant
from fa_tune.core.tensors import check_lse, score_tensors, workload_of
from fa_tune.core.workload import Workload
from fa_tune.gpu.launch import CompiledKernel
from fa_tune.op.chooser import Chooser
from fa_tune.operations.base import Problem as Bound


class Problem(TypedDict, total=False):
    """What tensors do not tell of a workload, by its fields; what is left out is as usual."""

    causal: bool
    bottom_right: bool
    softmax_scale: float | None
    window_left: int | None
    window_right: int | None
    softcap: float | None
    score_hook: str | None


@dataclass(frozen=True)
class Chosen:
    """What runs a workload, and why; `from_registry` is False for a default."""

    variant: Variant
    kernel: CompiledKernel
    why: str
    from_registry: bool


class Attention:
    """Attention on one GPU.  `registry` and `cache_dir` None: the user's own; `device` a CUDA
    index, None: torch's current one.

    The registry is read once; make another object to see what a search has added since.
    Calls on several streams at once need an object each: kernels may share scratch memory.
    Raises RegistryError for a registry that cannot be read.
    """

    def __init__(
        self,
        registry: Path | str | None = None,
        *,
        cache_dir: Path | None = None,
        device: int | None = None,
    ) -> None:
        self.device = torch.cuda.current_device() if device is None else device
        properties = torch.cuda.get_device_properties(self.device)
        limits = arch.limits(
            (properties.major, properties.minor),
            multiprocessors=properties.multi_processor_count,
            gpu=properties.name,
        )
        self._chooser = Chooser(properties.name, limits, registry, cache_dir=cache_dir)
        self._chooser.check()
        self._chosen: dict[Workload, Chosen] = {}

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        sink: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        **problem: Unpack[Problem],
    ) -> torch.Tensor:
        """softmax(scale · Q Kᵀ) V, [batch, seq_len, heads, d_head of v], on the current stream.

        k and v may have fewer heads.  `bottom_right` aligns a causal mask so that the last query
        sees every key; windows, hooks, `sink` [heads] and `alibi_slopes` [heads] or [batch, heads]
        are those of `Workload`.  `out` is written if given; `lse`, fp32 [batch, heads, seq_len],
        gets the log-sum-exp.  Raises InvalidConfig for tensors that make no such problem,
        NoUsableVariant where nothing runs it.
        """
        if any(t.device != torch.device("cuda", self.device) for t in (q, k, v)):
            raise InvalidConfig(f"Q, K, V must be on GPU {self.device}; Q is on {q.device}")
        workload = workload_of(
            *(q, k, v),
            lse=lse is not None,
            sink=sink is not None,
            alibi=alibi_slopes is not None,
            **problem,
        )
        sink, alibi_slopes = score_tensors(workload, q.device, sink, alibi_slopes)
        shape = (*q.shape[:3], v.shape[3])
        out = q.new_empty(shape) if out is None else out
        if out.shape != shape or out.dtype != q.dtype or out.device != q.device:
            raise InvalidConfig(f"out must be like q, {tuple(shape)}, not {tuple(out.shape)}")
        if lse is not None:
            check_lse(lse, workload)
        tensors = {"q": q, "k": k, "v": v, "o": out, "lse": lse}
        tensors |= {"sink": sink, "alibi_slopes": alibi_slopes}
        given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        with torch.cuda.device(self.device):
            self.chosen(workload).kernel.bind(Bound(workload, given, {}))()
        return out

    def chosen(self, workload: Workload) -> Chosen:
        """What runs a workload; compiled at the first call.  Raises NoUsableVariant."""
        if workload not in self._chosen:
            self._chosen[workload] = self._choose(workload)
        return self._chosen[workload]

    def _choose(self, workload: Workload) -> Chosen:
        choice = self._chooser.choose(workload)
        with torch.cuda.device(self.device):
            kernel = CompiledKernel(KernelItem.of(choice.variant.key, choice.artifact))
        return Chosen(choice.variant, kernel, choice.why, choice.from_registry)
