"""Attention as packages beside torch compute it: FlashAttention 3 and 4, where they are installed.

FlashAttention 3 is the module `flash_attn_interface`, built from the `hopper` folder of its
project; FlashAttention 4 is `flash_attn.cute`, which pip installs as `flash-attn-4` and which
compiles its kernels at the first call for a kind of problem.  Imported by workers and CPU tests
only; `fa_tune.profile.references` asks beforehand whether they are there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Workload
from fa_tune.gpu.reference import Inputs

PACKAGE_NAMES = {"fa3": "FlashAttention 3", "fa4": "FlashAttention 4"}
# How Python code says that it has no such case.
REFUSALS = (AssertionError, NotImplementedError, TypeError, ValueError)


def package_call(name: str, inputs: Inputs, workload: Workload) -> Callable[[], torch.Tensor]:
    """A call of `fa3` or `fa4` on this problem.

    The call returns [batch, heads, seq_len_q, d_head]; with `workload.lse` it computes the
    log-sum-exp as well.  Raises InvalidConfig, here or at the first call, if the package cannot
    be loaded or does not take the workload.
    """
    q, k, v = inputs.q, inputs.k, inputs.v
    if workload.causal and workload.seq_len_q != workload.seq_len_kv and not workload.bottom_right:
        # Their masks are aligned bottom-right.
        if workload.seq_len_q > workload.seq_len_kv:
            raise InvalidConfig(
                _refusal(name, "no causal mask aligned top-left for more queries than keys")
            )
        k, v = (t[:, : workload.seq_len_q] for t in (k, v))  # nobody sees the others
    given: dict[str, Any] = {"causal": workload.causal, "softmax_scale": workload.softmax_scale}
    if name == "fa4" and workload.lse:  # FlashAttention 3 always computes it
        given["return_lse"] = True
    attend = _function(name)

    def call() -> torch.Tensor:
        try:
            result = attend(q, k, v, **given)
        except REFUSALS as error:
            raise InvalidConfig(_refusal(name, _first_line(error))) from error
        out: torch.Tensor = result[0] if isinstance(result, tuple) else result
        return out.transpose(1, 2)

    return call


def _function(name: str) -> Callable[..., Any]:
    try:
        if name == "fa3":
            from flash_attn_interface import flash_attn_func
        else:
            from flash_attn.cute import flash_attn_func
    except (ImportError, OSError, RuntimeError) as error:
        raise InvalidConfig(
            f"{PACKAGE_NAMES[name]} cannot be loaded: {_first_line(error)}"
        ) from error
    attend: Callable[..., Any] = flash_attn_func
    return attend


def _refusal(name: str, why: str) -> str:
    return f"{PACKAGE_NAMES[name]} does not take this workload: {why}"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__
