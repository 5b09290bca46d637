"""FlashAttention 4: `flash_attn.cute`, which pip installs as `flash-attn-4`; it compiles its
kernels at the first call for a kind of problem."""

from __future__ import annotations

import re
from typing import Any

from fa_tune.core.workload import BACKWARD, FORWARD
from fa_tune.libraries import flash
from fa_tune.libraries.base import BASIC, PACKED, TORCH, WINDOW, Library, Package, sides
from fa_tune.operations.base import Launch, Problem, Tensors

MODULE = "flash_attn.cute"


def forward(problem: Problem) -> Launch:
    """A launch of the function for dense or for packed batches."""
    workload, more = problem.workload, dict[str, Any]()
    if workload.windowed:
        more["window_size"] = sides(workload)
    if "sink" in problem.inputs:
        more["learnable_sink"] = problem.inputs["sink"].bfloat16()
    if workload.lse:
        more["return_lse"] = True
    name = "flash_attn_varlen_func" if workload.packed else "flash_attn_func"
    return flash.call(LIBRARY, problem, LIBRARY.function(MODULE, name), **more)


def backward(problem: Problem) -> Launch:
    """A launch, by the log-sum-exp that is given, in which a sink is."""
    workload = problem.workload
    done, given = flash.forward_pass(LIBRARY, problem)
    more: dict[str, Any] = {"softmax_scale": workload.scale, "causal": workload.causal, **given}
    if workload.windowed:
        more |= dict(zip(("window_size_left", "window_size_right"), sides(workload), strict=True))
    if workload.softcap is not None:
        more["softcap"] = workload.softcap
    compute = LIBRARY.function(f"{MODULE}.interface", "_flash_attn_bwd")

    def launch() -> Tensors:
        with flash.refusing(LIBRARY):
            found = compute(done.q, done.k, done.v, done.o, done.do, done.lse, **more)
        return flash.gradients(problem, found[:3])

    return launch


LIBRARY = Library(
    name="fa4",
    label="FA4",
    full_name="FlashAttention 4",
    packages=(
        TORCH,
        Package("fa4", ("flash-attn-4",), MODULE, "pip install 'flash-attn-4[cu13]>=4.0.0b36'"),
    ),
    # Written in CuTe's Python; symbols contain the class and, flattened, the module:
    # kernel_cutlass_kernel_flash_attncuteflash_fwd_sm90FlashAttentionForwardSm90_….
    kernel_names=re.compile(
        r"FlashAttention(?:MLA)?Forward(?:Sm\d+|Base|Combine)|flash_attn\W?cute\W?flash_fwd"
    ),
    backward_names=re.compile(r"FlashAttentionBackward|flash_attn\W?cute\W?flash_bwd"),
    known=BASIC | WINDOW | PACKED | {"softcap", "sink"},
    calls={FORWARD: forward, BACKWARD: backward},
    compiles=True,
    place=3,
)
