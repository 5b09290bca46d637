"""cuDNN's attention as torch has it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fa_tune.core.errors import first_line
from fa_tune.core.workload import BACKWARD, FORWARD, Workload
from fa_tune.libraries import sdpa
from fa_tune.libraries.base import BASIC, TORCH, UNKNOWN, Attend, Library, Package
from fa_tune.libraries.fa2 import no_dropout
from fa_tune.operations.base import Launch, Problem, Tensors

if TYPE_CHECKING:
    import torch


def loaded_version() -> str:
    """That of torch's cuDNN."""
    import torch

    return version_of(torch.backends.cudnn.version())


def version_of(number: int | None) -> str:
    """`9.13.0` of cuDNN's 91300; before 9 a minor version had one digit less."""
    if number is None:
        return UNKNOWN
    major, rest = divmod(number, 10_000 if number >= 90_000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def forward(problem: Problem) -> Launch:
    """A launch of SDPA."""
    return sdpa.call(LIBRARY, problem, "CUDNN_ATTENTION")


def attends(workload: Workload) -> Attend:
    """The operator, told of a workload."""
    import torch

    if workload.bottom_right:
        raise LIBRARY.refusal("no causal mask aligned bottom-right")
    compute = torch.ops.aten._scaled_dot_product_cudnn_attention.default
    causal = workload.causal

    def attend(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        three = (q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        out: torch.Tensor = compute(*three, None, False, 0.0, causal, False, scale=scale)[0]
        return out.transpose(1, 2)

    return attend


def gradients(
    tensors: Iterable[torch.Tensor],
    dropout: tuple[torch.Tensor, torch.Tensor],
    *,
    causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dQ, dK and dV by torch's operator.  `tensors`: dO, Q, K, V and O, [batch, seq_len, heads,
    d_head], and the log-sum-exp, fp32 [batch, heads, seq_len_q].  K and V get a head for each of Q,
    which is faster than FlashAttention 2 with groups; a mask needs equal lengths."""
    import torch

    do, q, k, v, out, lse = tensors
    kv_heads = k.shape[2]
    group = q.shape[2] // kv_heads
    if group > 1:
        k, v = (t.repeat_interleave(group, 2) for t in (k, v))
    found = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        *(t.transpose(1, 2) for t in (do, q, k, v, out)),
        *(lse.unsqueeze(-1), *dropout, None, None, None),
        *(q.shape[1], k.shape[1], 0.0, causal),
        scale=scale,
    )
    dq, dk, dv = (t.transpose(1, 2) for t in found)
    if group > 1:
        dk, dv = (t.unflatten(2, (kv_heads, group)).sum(3) for t in (dk, dv))
    return dq, dk, dv


def backward(problem: Problem) -> Launch:
    """A launch of `gradients`, by the log-sum-exp that is given, in which a sink is."""
    workload, inputs = problem.workload, problem.inputs
    if workload.causal and workload.seq_len_q != workload.seq_len_kv:
        raise LIBRARY.refusal("no causal mask for lengths that differ")
    dropout = no_dropout(inputs["q"])

    def run() -> Tensors:
        tensors = (inputs[name] for name in ("do", "q", "k", "v", "o", "lse"))
        found = gradients(tensors, dropout, causal=workload.causal, scale=workload.softmax_scale)
        return dict(zip(("dq", "dk", "dv"), found, strict=True))

    def launch() -> Tensors:
        try:
            return run()
        except RuntimeError as error:
            if not re.search("cudnn (frontend )?error", str(error), re.IGNORECASE):
                raise
            raise LIBRARY.refusal(first_line(error)) from error

    return launch


LIBRARY = Library(
    name="cudnn",
    label="cuDNN",
    full_name="cuDNN in torch",
    packages=(
        TORCH,
        Package("cudnn", ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"), loaded=loaded_version),
    ),
    # cuDNN generates its kernels; forward ones say fprop (the fort_native engine) or name the
    # fused attention outright.
    kernel_names=re.compile(
        r"cudnn_generated_fort_native_sdpa_\w*fprop|cudnn\w*sdpa\w*fprop|cudnn\w*flash_fprop"
        r"|cudnn\w*fmha\w*fprop|cudnn::\w*(?:sdpa|fmha)\w*(?:fwd|fprop|forward)",
        re.IGNORECASE,
    ),
    # Grouped heads of K and V are copied first.
    backward_names=re.compile(
        r"cudnn\w*(?:sdpa|flash|fmha)\w*bprop|cudnn::\w*(?:sdpa|fmha)\w*(?:bwd|bprop|backward)"
        r"|direct_copy_kernel",
        re.IGNORECASE,
    ),
    # The first figure is the rows of one warp group.
    tiles=(re.compile(r"fprop_\w*?_(?P<rows>\d+)x(?P<keys>\d+)x\d+_\d+x\d+x\d+"),),
    dtype_in_names=False,  # bf16 kernels say f16 too
    known=BASIC,
    known_by={BACKWARD: BASIC | {"sink"}},
    calls={FORWARD: forward, BACKWARD: backward},
    attends=attends,
    place=1,
)
