"""cuDNN's attention as torch has it."""

from __future__ import annotations

import re

from fa_tune.core.workload import FORWARD
from fa_tune.libraries import sdpa
from fa_tune.libraries.base import BASIC, TORCH, UNKNOWN, Library, Package
from fa_tune.operations.base import Launch, Problem


def loaded_version() -> str:
    """`9.13.0` of cuDNN's 91300; before 9 a minor version had one digit less."""
    import torch

    number = torch.backends.cudnn.version()
    if number is None:
        return UNKNOWN
    major, rest = divmod(number, 10_000 if number >= 90_000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def forward(problem: Problem) -> Launch:
    """A launch of SDPA."""
    return sdpa.call(LIBRARY, problem, "CUDNN_ATTENTION")


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
    # The first figure is the rows of one warp group.
    tiles=(re.compile(r"fprop_\w*?_(?P<rows>\d+)x(?P<keys>\d+)x\d+_\d+x\d+x\d+"),),
    dtype_in_names=False,  # bf16 kernels say f16 too
    known=BASIC,
    calls={FORWARD: forward},
    place=1,
)
