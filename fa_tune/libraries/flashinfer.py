"""FlashInfer's batched wrappers, planned before anything is measured; nvcc and ninja compile their
kernels at the first call for a kind of problem.

Few queries, caches and sinks go to the wrappers for pages: a dense K or V is pages that follow one
another.  One query has two kinds of kernels, on tensor cores and not; the faster one is launched.
"""

from __future__ import annotations

import math
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from fa_tune.core.workload import FORWARD, MOST_TILE_ROWS, PAGE_KEYS
from fa_tune.libraries.base import BASIC, CACHE, PACKED, TORCH, WINDOW, Library, Package, sides
from fa_tune.libraries.fastest import fastest
from fa_tune.libraries.flash import PACKAGE_REFUSALS, output
from fa_tune.operations.base import Launch, Problem, Tensors

if TYPE_CHECKING:
    import torch

MODULE = "flashinfer"
WORKSPACE_BYTES = 128 << 20  # as its documentation recommends


def forward(problem: Problem) -> Launch:
    """A launch; with `workload.lse` it computes the log-sum-exp as well."""
    w = problem.workload
    left, right = sides(w)
    if right:
        raise LIBRARY.refusal("no window to the right")
    if w.aligned and not w.uneven and not w.bottom_right and w.seq_len_q != w.seq_len_kv:
        raise LIBRARY.refusal("no mask aligned top-left for lengths that differ")
    if w.sink and (w.packed or w.softcap is not None):
        raise LIBRARY.refusal("no packed batch and no soft cap with sinks")
    dtype = problem.inputs["q"].dtype
    told: dict[str, Any] = {
        "window_left": -1 if left is None else left,
        "logits_soft_cap": w.softcap,
        "sm_scale": w.scale,
        "q_data_type": dtype,
        "kv_data_type": dtype,
    }
    if w.packed or not (w.cached or w.sink or w.seq_len_q <= MOST_TILE_ROWS):
        ways = [partial(_ragged, problem, told)]
    elif w.d_head_v:
        raise LIBRARY.refusal("no head dimension of V for itself with few queries, caches or sinks")
    elif w.seq_len_q > 1:
        ways = [partial(_paged, problem, told, "BatchPrefillWithPagedKVCacheWrapper")]
    else:
        name = "BatchDecodeWithPagedKVCacheWrapper"
        ways = [partial(_paged, problem, told, name, use_tensor_cores=on) for on in (True, False)]
    return fastest(LIBRARY, ways, (RuntimeError, *PACKAGE_REFUSALS))


def _ragged(problem: Problem, told: dict[str, Any]) -> Launch:
    w, inputs = problem.workload, problem.inputs
    q, k, v = (inputs[name].flatten(0, 1) for name in "qkv")
    if w.packed:
        begin = [inputs[f"cu_seqlens_{side}"] for side in ("q", "kv")]
    else:
        begin = [_steps(w.batch, rows, q) for rows in (w.seq_len_q, w.seq_len_kv)]
    wrapper = _wrapper("BatchPrefillWithRaggedKVCacheWrapper", q)
    heads = w.heads, w.kv_heads, w.d_head
    wrapper.plan(*begin, *heads, head_dim_vo=w.d_v, causal=w.causal, **told)
    return _launch(problem, wrapper, q, k, v)


def _paged(problem: Problem, told: dict[str, Any], name: str, **how: Any) -> Launch:
    """A launch of a wrapper for pages, into which a dense K or V is cut."""
    w, inputs = problem.workload, problem.inputs
    q, k, v = inputs["q"].flatten(0, 1), inputs["k"], inputs["v"]
    size = w.page_size or math.gcd(w.seq_len_kv, PAGE_KEYS)
    if not w.page_size:
        k, v = (t.view(-1, size, *t.shape[2:]) for t in (k, v))
    columns = -(-w.seq_len_kv // size)
    table = inputs.get("page_table", _steps(w.batch * columns - 1, 1, q).view(w.batch, columns))
    keys = inputs.get("cache_seqlens", _steps(w.batch, 0, q)[1:] + w.seq_len_kv)
    pages = (keys + size - 1) // size
    begin = _steps(w.batch, 0, q)
    begin[1:] = pages.cumsum(0)
    owned = table[_steps(columns - 1, 1, q) < pages[:, None]]
    planned = (begin, owned, keys - (pages - 1) * size, w.heads, w.kv_heads, w.d_head, size)
    more: tuple[Any, ...] = ()
    if w.sink:
        more = inputs["sink"], w.scale
        name = "BatchAttentionWithAttentionSinkWrapper"
        kinds = {n: told[n] for n in ("q_data_type", "kv_data_type", "window_left")}
        how = {"head_dim_qk": w.d_head, "head_dim_vo": w.d_head, **kinds}
    wrapper = _wrapper(name, q, **how)
    if "Decode" in name:
        wrapper.plan(*planned, **told)
    else:
        wrapper.plan(_steps(w.batch, w.seq_len_q, q), *planned, causal=w.causal, **told)
    return _launch(problem, wrapper, q, (k, v), *more)


def _launch(problem: Problem, wrapper: Any, *tensors: Any) -> Launch:
    lse = problem.workload.lse

    def launch() -> Tensors:
        found = wrapper.run(*tensors, return_lse=lse)
        return output(problem, found[0] if lse else found)

    return launch


def _wrapper(name: str, q: torch.Tensor, **how: Any) -> Any:
    import torch

    workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
    return LIBRARY.function(MODULE, name)(workspace, "NHD", **how)


def _steps(count: int, step: int, like: torch.Tensor) -> torch.Tensor:
    """0, step, … count · step, int32."""
    import torch

    return torch.arange(count + 1, dtype=torch.int32, device=like.device) * step


LIBRARY = Library(
    name="flashinfer",
    label="FlashInfer",
    full_name="FlashInfer",
    packages=(
        TORCH,
        Package(
            "flashinfer",
            ("flashinfer-python",),
            MODULE,
            "pip install 'flashinfer-python>=0.7.4'; it compiles with nvcc and ninja",
        ),
    ),
    kernel_names=re.compile(r"flashinfer|Batch(?:Decode|Prefill)With|PrefillWithKVCacheKernel"),
    known=BASIC | WINDOW | PACKED | CACHE | {"softcap", "sink"},
    calls={FORWARD: forward},
    compiles=True,
    place=8,
)
