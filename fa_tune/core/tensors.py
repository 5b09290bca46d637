"""The problem that tensors make."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType, Workload

if TYPE_CHECKING:
    import torch


DENSE, PACKED = "[batch, seq_len, heads, d_head]", "[rows, heads, d_head]"


def workload_of(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, lse: bool = False, **problem: Any
) -> Workload:
    """The problem that tensors make; `problem` has what they do not tell, by the workload's fields.
    Raises InvalidConfig where they make none."""
    if problem.get("packed"):
        check_shapes(q, k, v, PACKED)
        problem |= {"total_q": q.shape[0], "total_kv": k.shape[0]}
    else:
        check_shapes(q, k, v, DENSE)
        problem |= {"batch": q.shape[0], "seq_len_q": q.shape[1], "seq_len_kv": k.shape[1]}
    check_columns(v)
    dtype = dtype_of(q)
    if {k.dtype, v.dtype} != {q.dtype}:
        raise InvalidConfig(f"Q, K, V must all be fp16 or all bf16, not {q.dtype}, {k.dtype}")
    return _made(
        heads=q.shape[-2],
        kv_heads=k.shape[-2],
        d_head=q.shape[-1],
        d_head_v=v.shape[-1],
        dtype=dtype,
        lse=lse,
        **problem,
    )


def check_shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: str) -> None:
    """Raise InvalidConfig for tensors that make no problem, whatever their heads and types;
    `layout` is `DENSE` or `PACKED`."""
    n_dims = layout.count(",") + 1
    if any(t.ndim != n_dims for t in (q, k, v)) or k.shape[:-1] != v.shape[:-1]:
        shapes = ", ".join(str([*t.shape]) for t in (q, k, v))
        raise InvalidConfig(f"Q, K, V must be {layout}, V like K but for d_head: {shapes}")
    if q.shape[-1] != k.shape[-1] or (layout == DENSE and q.shape[0] != k.shape[0]):
        raise InvalidConfig(f"Q and K differ in batch or d_head: {[*q.shape]} and {[*k.shape]}")


@lru_cache(maxsize=4096)  # most calls are of a problem that was there before
def _made(**fields: Any) -> Workload:
    return Workload(**fields)


def check_columns(v: torch.Tensor) -> None:
    """Raise InvalidConfig for a V without columns: to a workload 0 is as many as Q has."""
    if v.shape[-1] == 0:
        raise InvalidConfig(f"V has no columns: {tuple(v.shape)}")


def is_expanded(tensor: torch.Tensor) -> bool:
    """Whether elements share a place, so that there is none to write each."""
    sizes = zip(tensor.stride(), tensor.shape, strict=True)
    return any(step == 0 and n > 1 for step, n in sizes)


def dtype_of(tensor: torch.Tensor) -> DType:
    """The element type; raises InvalidConfig for one that no kernel takes."""
    dtypes = {one.to_torch_dtype(): one for one in DType}
    if tensor.dtype not in dtypes:
        raise InvalidConfig(f"Q, K, V must all be fp16 or all bf16, not {tensor.dtype}")
    return dtypes[tensor.dtype]


def score_tensors(
    workload: Workload,
    device: torch.device,
    sink: torch.Tensor | None,
    slopes: torch.Tensor | None,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Sinks [heads], and slopes [heads] or [batch, heads], as kernels read them: fp32 with
    contiguous heads, copies where they are not.  Raises InvalidConfig for other shapes."""
    of_heads = (workload.heads,)
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        "sink": (of_heads,),
        "alibi_slopes": (of_heads, (workload.batch, workload.heads)),
    }
    found = []
    for name, tensor in (("sink", sink), ("alibi_slopes", slopes)):
        if tensor is not None:
            if tuple(tensor.shape) not in shapes[name]:
                raise InvalidConfig(
                    f"{name} must be {' or '.join(map(str, shapes[name]))}, "
                    f"not {tuple(tensor.shape)}"
                )
            if tensor.device != device:
                raise InvalidConfig(f"{name} must be on {device}, where Q is, not {tensor.device}")
            tensor = tensor.detach().float()
            if tensor.stride(-1) != 1:
                tensor = tensor.contiguous()
        found.append(tensor)
    return found[0], found[1]
