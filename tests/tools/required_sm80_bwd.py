"""What of the sm80_bwd family has to compile: the defaults of the oldest devices, of those with the
least shared memory and of those with the most, in one pass and two."""

from __future__ import annotations

from dataclasses import replace

from fa_tune import families
from fa_tune.build.compile import BuildRequest
from fa_tune.core.arch import limits
from fa_tune.core.workload import BACKWARD, DType, Workload

D_HEADS = (64, 96, 128, 192, 256)
DEVICES = ((8, 0), (8, 6), (8, 9), (9, 0))
TRAITS = ("plain", "causal+ragged+window")


def builds() -> list[BuildRequest]:
    """Every build that has to pass: both types, each with half of the traits."""
    family = families.get("sm80_bwd")
    found = []
    for device in map(limits, DEVICES):
        for d_head in D_HEADS:
            for dtype, traits in zip((DType.FP16, DType.BF16), TRAITS, strict=True):
                shape = (1, 1, 1, 1000, 1000, d_head, dtype)
                usual = family.default_for(Workload(*shape, op=BACKWARD), device)
                for config in (usual, replace(usual, two_pass=True)):
                    variant = families.variant(config)
                    found.append(BuildRequest(variant, traits, family.compile_arch(device)))
    return found


def quick_builds() -> list[BuildRequest]:
    """A part of these."""
    found = [b for b in builds() if b.arch == "sm_86" and b.traits == TRAITS[1]]
    return found[::3]  # some head dimensions, in one pass and two
