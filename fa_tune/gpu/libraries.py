"""Attention as libraries compute it, for the same problem: FlashAttention 2, cuDNN and
FlexAttention as torch has them, and FlashAttention 3 and 4 from packages beside torch, where they
are installed.

What a back end has no call for is refused in one line that says so; nothing is padded,
expanded or masked by hand to make it fit, since its time would then not be the library's.

FlashAttention 3 is the module `flash_attn_interface`, built from the `hopper` folder of its
project.  FlashAttention 4 is `flash_attn.cute`, which pip installs as `flash-attn-4`; it compiles
its kernels at the first call for a kind of problem.  `fa_tune.profile.references` asks beforehand
whether they are there.  Imported by workers and CPU tests only.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import OPTIONAL, Workload
from fa_tune.gpu.flex import flex_call
from fa_tune.operations.base import Tensors

if TYPE_CHECKING:
    from torch.nn.attention.bias import CausalBias

LibraryCall = Callable[[], torch.Tensor]
# The fields with a usual value that the calls below know; a workload with any other is refused.
_BASIC = {"bottom_right", "lse", "softmax_scale", "d_head_v"}
_WINDOW = {"window_left", "window_right"}
_PACKED = {"packed", "total_q", "total_kv", "lengths"}
KNOWN_FIELDS = {
    "fa2": _BASIC | _WINDOW | _PACKED,
    "cudnn": _BASIC,
    "fa3": _BASIC | _WINDOW | {"softcap"},
    "fa4": _BASIC | _WINDOW | _PACKED | {"softcap", "sink"},
    "flex": _BASIC | _WINDOW | {"softcap", "alibi"},
}
BACKENDS = {"fa2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
REFUSALS = ("No available kernel", "No viable backend")  # however else its sentence goes
PACKAGE_NAMES = {"fa3": "FlashAttention 3", "fa4": "FlashAttention 4"}
NAMES = {"fa2": "FlashAttention 2 in torch", "cudnn": "cuDNN in torch", **PACKAGE_NAMES}
# How a package's Python code says that it has no such case.
PACKAGE_REFUSALS = (AssertionError, NotImplementedError, TypeError, ValueError)


def library_call(name: str, inputs: Tensors, workload: Workload) -> LibraryCall:
    """A call of torch's SDPA held to one back end, `fa2` or `cudnn`, of its FlexAttention,
    `flex`, or of a package, `fa3` or `fa4`.

    The call returns [batch, heads, seq_len_q, d_v], of a packed batch [1, heads, total_q, d_v];
    with `workload.lse` it computes the log-sum-exp as well.  Raises InvalidConfig, here or at the
    first call, if the back end cannot take the workload.
    """
    if strange := set(workload.unusual) - KNOWN_FIELDS.get(name, set(OPTIONAL)):
        raise InvalidConfig(f"{name} is not called with {', '.join(sorted(strange))} yet")
    if name in PACKAGE_NAMES:
        return package_call(name, inputs, workload)
    if name == "flex":
        return flex_call(inputs, workload)
    if name not in BACKENDS:
        known = ", ".join(KNOWN_FIELDS)
        raise InvalidConfig(f"unknown reference {name!r}; known: {known}")
    if workload.packed or workload.windowed:  # which SDPA has no arguments for
        return _flash_operator(inputs, workload)
    return _sdpa_call(name, inputs, workload)


def _sdpa_call(name: str, inputs: Tensors, workload: Workload) -> LibraryCall:
    """A call of torch's SDPA held to one back end."""
    q, k, v = (t.transpose(1, 2) for t in (inputs["q"], inputs["k"], inputs["v"]))
    mask: CausalBias | None = None
    if workload.causal and workload.seq_len_q != workload.seq_len_kv:
        # is_causal is aligned top-left, which the libraries take for equal lengths alone.
        if workload.bottom_right:
            mask = _lower_right(name, workload)
        elif workload.seq_len_q > workload.seq_len_kv:
            raise InvalidConfig(
                _refusal(name, "no causal mask aligned top-left for more queries than keys")
            )
        else:  # keys beyond the last query are hidden from all
            k, v = (t[:, :, : workload.seq_len_q] for t in (k, v))
    if workload.lse:  # which SDPA computes for the backward pass, and only for that
        q, k, v = (t.detach().requires_grad_() for t in (q, k, v))

    def run() -> torch.Tensor:
        with sdpa_kernel(BACKENDS[name]):
            return scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                is_causal=workload.causal and mask is None,
                scale=workload.softmax_scale,
                enable_gqa=workload.kv_heads != workload.heads,
            )

    return _told_why(name, run)


def _lower_right(name: str, workload: Workload) -> CausalBias:
    if name == "cudnn":
        raise InvalidConfig(_refusal(name, "no causal mask aligned bottom-right"))
    # Loads half of torch's compiler: seconds, which no other workload should wait for.
    from torch.nn.attention.bias import causal_lower_right

    with warnings.catch_warnings():
        # of NaN in rows that see nothing; FlashAttention gives 0 there
        warnings.simplefilter("ignore")
        return causal_lower_right(workload.seq_len_q, workload.seq_len_kv)


def _told_why(name: str, run: LibraryCall) -> LibraryCall:
    """The same call, which raises InvalidConfig with torch's own reasons where the back end refuses
    it.  Torch gives them as warnings, so a refused call is made once more to catch them."""

    def call() -> torch.Tensor:
        try:
            return run()
        except RuntimeError as error:
            if not any(words in str(error) for words in REFUSALS):
                raise
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                return run()
            except RuntimeError:
                raise InvalidConfig(_refusal(name, _reason(said))) from None

    return call


def _flash_operator(inputs: Tensors, workload: Workload) -> LibraryCall:
    """A call of the operator behind torch's FlashAttention 2, which always computes the
    log-sum-exp."""
    q, k, v, given = _flash_tensors("fa2", inputs, workload)
    if workload.d_head_v:
        raise InvalidConfig(_refusal("fa2", "no head dimension of V for itself"))
    left, right = _sides(workload)

    def call() -> torch.Tensor:
        out: torch.Tensor = torch.ops.aten._flash_attention_forward(
            q,
            k,
            v,
            given.get("cu_seqlens_q"),
            given.get("cu_seqlens_k"),
            workload.seq_len_q,
            workload.seq_len_kv if workload.packed else k.shape[1],
            0.0,
            workload.causal,
            False,
            scale=workload.softmax_scale,
            window_size_left=left,
            window_size_right=right,
        )[0]
        return out.view(inputs["q"].shape[0], -1, *out.shape[-2:]).transpose(1, 2)

    return call


def _flash_tensors(
    name: str, inputs: Tensors, workload: Workload
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Q, K and V as FlashAttention's functions take them, whose masks are aligned bottom-right,
    and the arguments that say where the sequences of a packed batch begin."""
    if workload.packed:
        beginnings = {
            "cu_seqlens_q": inputs["cu_seqlens_q"],
            "cu_seqlens_k": inputs["cu_seqlens_kv"],
            "max_seqlen_q": workload.seq_len_q,
            "max_seqlen_k": workload.seq_len_kv,
        }
        return inputs["q"][0], inputs["k"][0], inputs["v"][0], beginnings
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    if workload.seq_len_q == workload.seq_len_kv or workload.bottom_right:
        return q, k, v, {}
    if workload.causal:
        if workload.seq_len_q > workload.seq_len_kv:
            raise InvalidConfig(
                _refusal(name, "no causal mask aligned top-left for more queries than keys")
            )
        k, v = (t[:, : workload.seq_len_q] for t in (k, v))  # the others are hidden from all
    elif workload.windowed:
        raise InvalidConfig(_refusal(name, "no window aligned top-left"))
    return q, k, v, {}


def _sides(workload: Workload) -> tuple[int | None, int | None]:
    """The sides of the window, of which a causal mask is the right one."""
    return workload.window_left, 0 if workload.causal else workload.window_right


def _refusal(name: str, why: str) -> str:
    return f"{NAMES[name]} does not take this workload: {why}"


def _reason(said: list[warnings.WarningMessage]) -> str:
    """What torch warned of beside the back ends that were not asked."""
    texts = [str(w.message).partition(" (Triggered internally")[0].strip() for w in said]
    own = [t for t in texts if not t.endswith((":", "because:")) and "runtime disabled" not in t]
    return own[0] if own else "it gives no reason"


def package_call(name: str, inputs: Tensors, workload: Workload) -> LibraryCall:
    """A call of `fa3` or `fa4` on this problem.

    The call returns what `library_call` says.  Raises InvalidConfig, here or at the first call, if
    the package cannot be loaded or does not take the workload.
    """
    q, k, v, given = _flash_tensors(name, inputs, workload)
    given |= {"causal": workload.causal, "softmax_scale": workload.softmax_scale}
    if workload.windowed:
        none = -1 if name == "fa3" else None  # how it is said that a side has no end
        given["window_size"] = tuple(none if side is None else side for side in _sides(workload))
    if workload.softcap is not None:
        given["softcap"] = workload.softcap
    if "sink" in inputs:
        given["learnable_sink"] = inputs["sink"].bfloat16()
    if name == "fa4" and workload.lse:  # FlashAttention 3 always computes it
        given["return_lse"] = True
    attend = _function(name, packed=workload.packed)

    def call() -> torch.Tensor:
        try:
            result = attend(q, k, v, **given)
        except PACKAGE_REFUSALS as error:
            raise InvalidConfig(_refusal(name, _first_line(error))) from error
        out: torch.Tensor = result[0] if isinstance(result, tuple) else result
        return out.view(inputs["q"].shape[0], -1, *out.shape[-2:]).transpose(1, 2)

    return call


def _function(name: str, *, packed: bool) -> Callable[..., Any]:
    try:
        if name == "fa3":
            from flash_attn_interface import flash_attn_func
        elif packed:
            from flash_attn.cute import flash_attn_varlen_func as flash_attn_func
        else:
            from flash_attn.cute import flash_attn_func
    except (ImportError, OSError, RuntimeError) as error:
        raise InvalidConfig(
            f"{PACKAGE_NAMES[name]} cannot be loaded: {_first_line(error)}"
        ) from error
    attend: Callable[..., Any] = flash_attn_func
    return attend


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
