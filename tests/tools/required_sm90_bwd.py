"""What of the sm90_bwd family has to compile: every config of `fast`, with few traits and with the
most that its kernels have."""

from __future__ import annotations

from fa_tune import families
from fa_tune.build.compile import BuildRequest
from fa_tune.core.arch import limits
from fa_tune.core.workload import DType

ARCH = "sm_90a"  # what the family compiles for
# Of Q; of V, 0: the same.
HEADS = ((40, 0), (64, 0), (96, 0), (128, 0), (192, 0), (192, 128), (256, 0))
TRAITS = ("plain", "causal+ragged+window", "causal+ragged+window+packed")


def builds() -> list[BuildRequest]:
    """Every build that has to pass: both types, each with some of the traits."""
    family, hopper = families.get("sm90_bwd"), limits((9, 0))
    return [
        BuildRequest(families.variant(config), traits, ARCH)
        for d_head, d_head_v in HEADS
        for dtype, traits in zip((DType.FP16, DType.BF16, DType.BF16), TRAITS, strict=True)
        for config in family.configs("fast", dtypes=[dtype], d_head=d_head, d_head_v=d_head_v)
        if family.constraints(config, hopper) is None
    ]


def quick_builds() -> list[BuildRequest]:
    """A part of these, of what runs without tuning."""
    family = families.get("sm90_bwd")
    usual = {
        str(family.default_config(d, dtype, d_head_v=d_v)) for d, d_v in HEADS for dtype in DType
    }
    found = [request for request in builds() if request.variant.config in usual]
    return found[::7]  # some head dimensions, with other traits
