"""Inputs that no arithmetic likes: exponents of more digits than fp32 has, infinities, any bits.

Judged by torch's FlashAttention 2: finite where it is, and as near to fp64 as it is, where both are
finite and fp64 says what is right.
"""

import dataclasses
import math
from collections.abc import Iterator

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from fa_tune.core.workload import MAX_SCALE, MIN_SCALE, DType, Workload
from fa_tune.operations.base import Tensors
from tests.gpu.oracle import KernelCall, attention
from tests.tensors import qkv

SCALES = (MIN_SCALE, 1e-12, 1e-6, 1e-2, 1.0, 1e2, 1e3, 1e4, 1e5, 1e6, 1e8, 1e12, MAX_SCALE)
LENGTH = 768
CHANNEL = 50000.0
TIMES = 1.2  # that of the reference a root mean square error may be


def workloads(d_head: int, dtype: DType, causal: bool) -> Iterator[tuple[str, Workload]]:
    """The problems of a kernel, by the names of their inputs."""
    base = Workload(1, 4, 4, LENGTH, LENGTH, d_head, dtype, causal=causal)
    for scale in SCALES:
        yield "normal", replaced(base, scale)
    for scale in (1e4, 1e6, 1e8):
        yield "ties", replaced(base, scale)
        yield "pairs", replaced(base, scale)
    for name in ("channel", "bits", "finite_bits", "infinity", "no_score", "few_scores", "nan"):
        yield name, base


def replaced(workload: Workload, scale: float) -> Workload:
    """The same with another softmax scale."""
    return dataclasses.replace(workload, softmax_scale=scale)


def inputs_of(name: str, workload: Workload, seed: int, device: str) -> Tensors:
    """Q, K and V, [batch, seq, heads, d_head]."""
    w = workload
    dice = torch.Generator(device=device).manual_seed(seed)
    dtype = w.dtype.to_torch_dtype()
    shape = (w.batch, w.seq_len_q, w.heads, w.d_head)

    def normal() -> torch.Tensor:
        return torch.randn(shape, generator=dice, device=device).to(dtype)

    def bits() -> torch.Tensor:
        numbers = torch.randint(-(2**15), 2**15, shape, generator=dice, device=device)
        return numbers.to(torch.int16).view(dtype)

    q, k, v = normal(), normal(), normal()
    if name == "ties":
        k = k[:, :1].expand(shape).contiguous()
    elif name == "pairs":
        k[:, w.seq_len_kv // 2 :] = k[:, : w.seq_len_kv // 2].clone()
    elif name == "channel":
        q[..., 3] = k[..., 3] = CHANNEL
    elif name == "bits":
        q, k, v = bits(), bits(), bits()
    elif name == "finite_bits":
        q, k = (t.nan_to_num(0.0, 0.0, 0.0) for t in (bits(), bits()))
    elif name == "infinity":
        k[:, 5, :, 0] = math.inf
    elif name == "no_score":
        q, k[..., 0] = q.abs(), -math.inf
    elif name == "few_scores":
        q, k[:, :-200, :, 0] = q.abs(), -math.inf
    elif name == "nan":
        k[:, 7, 1] = math.nan
    return qkv(q, k, v)


def check(name: str, workload: Workload, kernel: KernelCall, device: str = "cuda") -> list[str]:
    """What is wrong with a kernel's result on such inputs, in words."""
    w = workload
    inputs = inputs_of(name, w, 1, device)
    out = torch.full_like(inputs["q"], math.nan)
    kernel(w, inputs, out, None)
    q, k, v = (t.transpose(1, 2) for t in (inputs["q"], inputs["k"], inputs["v"]))
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        peer = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=w.causal, scale=w.scale
        ).transpose(1, 2)
    where = f"{name} {w.key}"
    lost = int((peer.isfinite() & ~out.isfinite()).sum())
    if lost:
        return [f"{where}: {lost} results are not finite where FlashAttention 2 has numbers"]
    if not all(t.isfinite().all() for t in (out, peer, inputs["q"], inputs["k"])):
        return []
    exact, _ = attention(inputs, w, torch.float64)
    error, limit = rms(out - exact), TIMES * rms(peer - exact)
    # A result near 1 is not nearer than this.
    limit += 2.0 ** (-13 if out.dtype == torch.float16 else -10)
    return [] if error <= limit else [f"{where}: rms error {error:.3g} exceeds {limit:.3g}"]


def rms(x: torch.Tensor) -> float:
    """Root mean square."""
    return float(x.double().pow(2).mean().sqrt())
