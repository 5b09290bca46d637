"""Attention as libraries compute it, for the same problem: FlashAttention 2 and cuDNN as torch
has them, and FlashAttention 3 and 4 (`fa_tune.gpu.packages`).

What a back end has no call for is refused in one line that says so; nothing is padded,
expanded or masked by hand to make it fit, since its time would then not be the library's.
Imported by workers and CPU tests only.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Workload
from fa_tune.gpu.packages import PACKAGE_NAMES, package_call
from fa_tune.gpu.reference import Inputs

if TYPE_CHECKING:
    from torch.nn.attention.bias import CausalBias

LibraryCall = Callable[[], torch.Tensor]
# The fields with a usual value that the calls below know; a workload with any other is refused.
KNOWN_FIELDS = {"bottom_right", "lse", "softmax_scale"}
BACKENDS = {"fa2": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
REFUSALS = ("No available kernel", "No viable backend")  # however else its sentence goes
NAMES = {"fa2": "FlashAttention 2", "cudnn": "cuDNN"}


def library_call(name: str, inputs: Inputs, workload: Workload) -> LibraryCall:
    """A call of torch's SDPA held to one back end, `fa2` or `cudnn`, or of a package, `fa3` or
    `fa4`.

    The call returns [batch, heads, seq_len_q, d_head]; with `workload.lse` it computes the
    log-sum-exp as well.  Raises InvalidConfig, here or at the first call, if the back end
    cannot take the workload.
    """
    if strange := set(workload.unusual) - KNOWN_FIELDS:
        raise InvalidConfig(f"{name} is not called with {', '.join(sorted(strange))} yet")
    if name in PACKAGE_NAMES:
        return package_call(name, inputs, workload)
    if name not in BACKENDS:
        known = ", ".join((*BACKENDS, *PACKAGE_NAMES))
        raise InvalidConfig(f"unknown reference {name!r}; known: {known}")
    q, k, v = (t.transpose(1, 2) for t in (inputs.q, inputs.k, inputs.v))
    mask: CausalBias | None = None
    if workload.causal and workload.seq_len_q != workload.seq_len_kv:
        # is_causal is aligned top-left, which the libraries take for equal lengths alone.
        if workload.bottom_right:
            if name == "cudnn":
                raise InvalidConfig(_refusal(name, "no causal mask aligned bottom-right"))
            # Loads half of torch's compiler: seconds, which no other workload should wait for.
            from torch.nn.attention.bias import causal_lower_right

            with warnings.catch_warnings():
                # of NaN in rows that see nothing; FlashAttention gives 0 there
                warnings.simplefilter("ignore")
                mask = causal_lower_right(workload.seq_len_q, workload.seq_len_kv)
        elif workload.seq_len_q > workload.seq_len_kv:
            raise InvalidConfig(
                _refusal(name, "no causal mask aligned top-left for more queries than keys")
            )
        else:  # nobody sees the keys beyond the last query
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


def _refusal(name: str, why: str) -> str:
    return f"{NAMES[name]} in torch does not take this workload: {why}"


def _reason(said: list[warnings.WarningMessage]) -> str:
    """What torch warned of beside the back ends that were not asked."""
    texts = [str(w.message).partition(" (Triggered internally")[0].strip() for w in said]
    own = [t for t in texts if not t.endswith((":", "because:")) and "runtime disabled" not in t]
    return own[0] if own else "it gives no reason"
