"""Attention on one's own tensors, by the kernel that the registry holds for them.

    from fa_tune.runtime import attention

    out = attention(q, k, v, causal=True)  # q: [batch, seq_len, heads, d_head] on the GPU

Shapes → workload → the registry's entry (the very workload's, else the nearest that can run,
else the default) → compiled once, then from the cache → launched on torch's current stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypedDict, Unpack

import torch

from fa_tune import families
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.compile import BuildRequest, build, kernel_source_sha256
from fa_tune.core import arch
from fa_tune.core.errors import InvalidConfig, NoUsableVariant
from fa_tune.core.model import Variant
from fa_tune.core.workload import DType, Workload
from fa_tune.families.base import Config, LaunchArgs, TensorArg
from fa_tune.gpu.launch import Kernel
from fa_tune.store.registry import file as registry_file
from fa_tune.store.registry.lookup import matches
from fa_tune.store.registry.schema import Registry


class Problem(TypedDict, total=False):
    """What tensors do not tell of a workload, by its fields; what is left out is as usual."""

    causal: bool
    bottom_right: bool
    softmax_scale: float | None


@dataclass(frozen=True)
class Chosen:
    """What runs a workload, and why; `from_registry` is False for a default."""

    variant: Variant
    kernel: Kernel
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
        self._gpu = properties.name
        self._limits = arch.limits((properties.major, properties.minor))
        self._registry: Registry = registry_file.load(registry or registry_file.default_path())
        self._store = ArtifactStore(cache_dir)
        self._chosen: dict[Workload, Chosen] = {}

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        **problem: Unpack[Problem],
    ) -> torch.Tensor:
        """softmax(scale · Q Kᵀ) V, [batch, seq_len, heads, d_head] like q, on the current stream.

        k and v may have fewer heads.  `bottom_right` aligns a causal mask so that the last query
        sees every key.  `out` is written if given; `lse`, fp32 [batch, heads, seq_len], gets the
        log-sum-exp.  Raises InvalidConfig for tensors that make no such problem, NoUsableVariant
        where nothing runs it.
        """
        if any(t.device != torch.device("cuda", self.device) for t in (q, k, v)):
            raise InvalidConfig(f"Q, K, V must be on GPU {self.device}; Q is on {q.device}")
        workload = workload_of(q, k, v, lse=lse is not None, **problem)
        out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
        if out.shape != q.shape or out.dtype != q.dtype or out.device != q.device:
            raise InvalidConfig(f"out must be like q, {tuple(q.shape)}, not {tuple(out.shape)}")
        if lse is not None:
            _check_lse(lse, workload)
        arguments = LaunchArgs.forward(
            q=TensorArg.of(q, "Q"),
            k=TensorArg.of(k, "K"),
            v=TensorArg.of(v, "V"),
            o=TensorArg.of(out, "O"),
            lse=TensorArg(0 if lse is None else lse.data_ptr()),
        )
        with torch.cuda.device(self.device):
            stream = torch.cuda.current_stream().cuda_stream
            self.chosen(workload).kernel.launch(workload, arguments, stream)
        return out

    def chosen(self, workload: Workload) -> Chosen:
        """What runs a workload; compiled at the first call.  Raises NoUsableVariant."""
        if workload not in self._chosen:
            self._chosen[workload] = self._choose(workload)
        return self._chosen[workload]

    def _choose(self, workload: Workload) -> Chosen:
        reasons = []
        for config, why, from_registry in self._candidates(workload):
            family = families.of(config)
            if (rejected := family.constraints(config, self._limits)) is not None:
                reasons.append(rejected.reason)
                continue
            variant = families.variant_of(family, config)
            traits = family.traits(config, workload)
            request = BuildRequest(variant, traits, family.compile_arch(self._limits))
            (built,) = build([request], self._store, jobs=1)
            if built.artifact is None:
                reasons.append(built.reason)
                continue
            with torch.cuda.device(self.device):
                artifact = built.artifact
                kernel = Kernel(variant, artifact.cubin, *artifact.symbols)
            return Chosen(variant, kernel, why, from_registry)
        told = "; ".join(dict.fromkeys(reasons))
        raise NoUsableVariant(f"no kernel runs {workload.key} on {self._gpu}: {told or 'none'}")

    def _candidates(self, workload: Workload) -> Iterator[tuple[Config, str, bool]]:
        """Configs to try, in order, each with the reason why and whether it was looked up."""
        known: Mapping[str, str] = {name: _sources(name) for name in families.family_names()}
        found = matches(self._registry, self._gpu, workload, kernel_source_sha256=known)
        for match in found:
            variant = match.entry.chosen
            try:
                config = families.config_of(variant)
            except InvalidConfig:  # of another version, with other knobs
                continue
            yield config, "; ".join((match.explanation, *match.warnings)), True
        why = f"the default: the registry has nothing for {workload.key} on {self._gpu}"
        for config in families.defaults(workload.d_head, workload.dtype, self._limits):
            yield config, why, False


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    **problem: Unpack[Problem],
) -> torch.Tensor:
    """`Attention` with the user's own registry, on q's GPU; see `Attention.__call__`."""
    if not q.is_cuda:  # before a GPU is asked for, which may not be there
        raise InvalidConfig(f"Q, K, V must be on a GPU; Q is on {q.device}")
    return _shared(q.device.index)(q, k, v, out=out, lse=lse, **problem)


def workload_of(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    lse: bool = False,
    **problem: Unpack[Problem],
) -> Workload:
    """The problem that tensors make; raises InvalidConfig where they make none."""
    dtypes = {one.to_torch_dtype(): one for one in DType}
    if any(t.ndim != 4 for t in (q, k, v)) or k.shape != v.shape:
        shapes = ", ".join(str(tuple(t.shape)) for t in (q, k, v))
        raise InvalidConfig(f"Q, K, V must be [batch, seq, heads, d_head], K like V: {shapes}")
    if (q.shape[0], q.shape[3]) != (k.shape[0], k.shape[3]):
        raise InvalidConfig(
            f"Q and K differ in batch or d_head: {tuple(q.shape)} and {tuple(k.shape)}"
        )
    if q.dtype not in dtypes or {k.dtype, v.dtype} != {q.dtype}:
        raise InvalidConfig(f"Q, K, V must all be fp16 or all bf16, not {q.dtype}, {k.dtype}")
    return Workload(
        batch=q.shape[0],
        heads=q.shape[2],
        kv_heads=k.shape[2],
        seq_len_q=q.shape[1],
        seq_len_kv=k.shape[1],
        d_head=q.shape[3],
        dtype=dtypes[q.dtype],
        lse=lse,
        **problem,
    )


def _check_lse(lse: torch.Tensor, workload: Workload) -> None:
    shape = (workload.batch, workload.heads, workload.seq_len_q)
    if tuple(lse.shape) != shape or lse.dtype != torch.float32 or not lse.is_contiguous():
        raise InvalidConfig(f"lse must be fp32 {shape}, contiguous, not {tuple(lse.shape)}")


@cache
def _shared(device: int | None) -> Attention:
    return Attention(device=device)


@cache
def _sources(family: str) -> str:
    return kernel_source_sha256(family)
