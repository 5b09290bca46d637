"""What a finished attempt depends on: while it is the same, the attempt need not be repeated."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from functools import cached_property

from fa_tune.core import codec

CRITERION = "verify-2"  # another one asks for new verdicts


@dataclass(frozen=True)
class Fingerprint:
    """The conditions of an attempt.  Two attempts at one subject and workload with equal
    fingerprints would measure the same thing.

    `kernel_source_sha256`  the kernel sources
    `nvrtc`, `arch`         what compiled them, and for what (`13.0`, `sm_90`)
    `driver`, `gpu`         what ran them; the GPU's name as the driver spells it
    `method`                `ncu` or `events`; CRITERION or `build` by the methods below
    `profiler_version`      the profiler's own version, empty where there is none
    `metrics`               collected metrics; a set, kept sorted
    `clock_policy`, `cache_policy`, `runs`   how the samples were taken, and how many
    `inputs`                what Q, K and V held; empty for normal inputs, as all once were;
                            `X beside Y` where samples on X stand beside such on Y
    `after`                 how many samples were taken before these, which continue them
    `library`               what a reference's kernels come from: `torch 2.11.0, cudnn 9.13.0.50`

    The seed is not part of it: another order of measuring gives the same measurement.
    An empty text means that the condition does not apply.
    """

    kernel_source_sha256: str
    nvrtc: str
    arch: str
    driver: str = ""
    gpu: str = ""
    method: str = ""
    profiler_version: str = ""
    metrics: tuple[str, ...] = ()
    clock_policy: str = ""
    cache_policy: str = ""
    runs: int = 0
    inputs: str = ""
    library: str = ""
    after: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", tuple(sorted(set(self.metrics))))

    @cached_property
    def digest(self) -> str:
        """32 hexadecimal digits that stand for all fields."""
        text = json.dumps(codec.dump(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def for_verify(self) -> Fingerprint:
        """The part a verdict depends on: sources, compiler, driver and GPU, not the profiler; and
        what results are judged by."""
        return Fingerprint(
            self.kernel_source_sha256, self.nvrtc, self.arch, self.driver, self.gpu, CRITERION
        )

    def for_build(self) -> Fingerprint:
        """The part a build depends on: sources, compiler and architecture."""
        return Fingerprint(self.kernel_source_sha256, self.nvrtc, self.arch, method="build")


def explain_difference(a: Fingerprint, b: Fingerprint) -> list[str]:
    """The names of the fields that differ, in declaration order; empty when a and b agree."""
    return [
        f.name for f in dataclasses.fields(Fingerprint) if getattr(a, f.name) != getattr(b, f.name)
    ]
