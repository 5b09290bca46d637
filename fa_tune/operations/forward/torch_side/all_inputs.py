"""All inputs of a forward pass: Q, K and V [batch, seq, heads, d_head], V with d_v for d_head, and
what the workload asks for besides."""

from __future__ import annotations

import torch

from fa_tune.core import dtypes
from fa_tune.core.inputs import NORMAL, InputSpec
from fa_tune.core.workload import Workload
from fa_tune.operations import base
from fa_tune.operations.base import SINK_FIRST, SINK_LAST, SINK_NATS, Tensors
from fa_tune.operations.forward.torch_side import caches
from fa_tune.operations.forward.torch_side.draw import draw

E4M3, E4M3_LARGEST = dtypes.E4M3.to_torch_dtype(), 448.0
SMALLEST = 2.0**-60  # of a largest element
SINK_QUERY = 4.0  # the channel of every query that a sink answers to
SINKS = {SINK_FIRST: 0, SINK_LAST: -1}  # where the key is


def inputs(
    workload: Workload,
    text: str = base.NORMAL,
    *,
    seed: int,
    mean: float = 0.0,
    extra_heads: int = 0,
    device: str = "cuda",
) -> dict[str, torch.Tensor]:
    """See `operations.base.TorchSide`.  With `extra_heads` tensors are cut out of larger ones."""
    own = text in (base.NORMAL, *SINKS)
    spec = NORMAL if own else InputSpec.parse(text)
    # Drawn in fp32 and then rounded, so that both dtypes see the same numbers.
    drawn = draw(spec, workload, seed=seed, device=device, extra_heads=extra_heads)
    dtype = workload.dtype.to_torch_dtype()
    q, k, v = ((tensor + (mean if own else 0.0)).to(dtype) for tensor in drawn)
    del drawn
    more = score_inputs(workload, seed=seed, device=device) | beginnings(workload, device=device)
    if workload.cached:
        k, v, known = caches.of_sequences(k, v, workload, seed=seed)
        more |= known
    q, k, v = (tensor[:, :, extra_heads:] for tensor in (q, k, v))
    if text in SINKS:
        q[..., 0] = SINK_QUERY
        k[:, SINKS[text], :, 0] = SINK_NATS / (SINK_QUERY * workload.scale)
    found = {"q": q, "k": k, "v": v, **more}
    return narrow(found) if workload.kv_e4m3 else found


def wide(tensors: Tensors) -> dict[str, torch.Tensor]:
    """The same inputs with K and V in the type of Q: exact, since scales are powers of two."""
    found = dict(tensors)
    shared = "cache_seqlens" in found
    for name in ("k", "v"):
        if (scale := found.pop(f"{name}_scale", None)) is not None:
            factor = (scale[:1] if shared else scale)[:, None, :, None]
            found[name] = (found[name].float() * factor).to(found["q"].dtype)
    return found


def narrow(tensors: Tensors) -> dict[str, torch.Tensor]:
    """The same inputs with K and V in e4m3, and scales [batch, kv_heads]."""
    found = dict(tensors)
    # Of a cache pages belong to no batch element.
    batch = 1 if "cache_seqlens" in found else len(found["q"])
    for name in ("k", "v"):
        found[name], scale = _narrowed(found[name], batch)
        found[f"{name}_scale"] = scale.expand(len(found["q"]), -1)
    return found


def _narrowed(tensor: torch.Tensor, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A [batch, seq, heads, d_head] tensor as e4m3, and the scales [batch, heads] of its heads:
    the least powers of two with which nothing is too large.  With a `batch` of 1 they are those of
    all elements.  Strides are the tensor's."""
    largest = tensor.float().abs().nan_to_num(0.0).amax((1, 3))
    if batch == 1:
        largest = largest.amax(0, keepdim=True)
    scale = torch.exp2(torch.ceil(torch.log2(largest.clamp(min=SMALLEST) / E4M3_LARGEST)))
    room = torch.empty_strided(tensor.shape, tensor.stride(), dtype=E4M3, device=tensor.device)
    return room.copy_((tensor.float() / scale[:, None, :, None]).to(E4M3)), scale


def score_inputs(workload: Workload, *, seed: int, device: str) -> dict[str, torch.Tensor]:
    """The sinks and slopes that a workload asks for.  Sinks have a standard deviation of 2 nats;
    slopes go down in powers of two from head to head, and differ from batch to batch."""
    found = {}
    w = workload
    generator = torch.Generator(device=device).manual_seed(seed + 1)
    if w.sink:
        found["sink"] = 2 * torch.randn(w.heads, generator=generator, device=device)
    if w.alibi:
        exponents = torch.arange(1, w.heads + 1, device=device) * (-8 / w.heads)
        factors = torch.rand((w.batch, 1), generator=generator, device=device) + 0.5
        found["alibi_slopes"] = factors * torch.exp2(exponents)
    return found


def beginnings(workload: Workload, *, device: str = "cuda") -> dict[str, torch.Tensor]:
    """Where the sequences of a packed batch begin and the last one ends, int32 [batch + 1]; none
    of another workload."""
    if not workload.packed:
        return {}
    lengths = torch.tensor(workload.members, dtype=torch.int32)
    ends = torch.cat((torch.zeros(1, 2, dtype=torch.int32), lengths.cumsum(0, dtype=torch.int32)))
    on_device = ends.T.contiguous().to(device)
    return {"cu_seqlens_q": on_device[0], "cu_seqlens_kv": on_device[1]}
