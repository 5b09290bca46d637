"""The sm80 backward kernels on the host, launched as their family's plan says; problems and
verdicts are those of `backward`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fa_tune import families
from fa_tune.core.workload import BACKWARD, DType, Workload
from fa_tune.families.sm80_bwd.config import Sm80BackwardConfig
from fa_tune.families.sources import closure
from tests.described import described
from tests.kernels.emulated.backward_kernels import LACKING
from tests.kernels.emulated.emulation import CLUSTERS, Shape, library_of

ENTRY = "sm80/bwd/entry.cu"
BOTH_WAYS = "!defined(__CUDA_ARCH__) || "  # adds of four words are the host's, unless this is cut


@dataclass(frozen=True)
class Sm80Kernel:
    """The kernels of a config and of compile-time traits; `scalar_adds`: as before 9.0."""

    config: Sm80BackwardConfig
    traits: str = "plain"
    scalar_adds: bool = False

    dynamic = is_dependent = False

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.config.dtype

    @property
    def d_head(self) -> int:
        """Of Q and K."""
        return self.config.d_head

    @property
    def d_head_v(self) -> int:
        """Of V; 0: as that."""
        return self.config.d_head_v

    @property
    def two_pass(self) -> bool:
        """Whether all gradients are of the same bits always."""
        return self.config.two_pass

    @property
    def key_blocks(self) -> tuple[int, ...]:
        """Sizes of blocks of keys."""
        return self.config.B_c, self.config.B_r

    @property
    def names(self) -> list[str]:
        """Instantiations."""
        return list(families.of(self.config).name_expressions(self.config, self.traits))

    @property
    def launches(self) -> tuple[str, ...]:
        """The kernels of a call."""
        return ("prepare", "dq", "kernel") if self.two_pass else ("prepare", "kernel", "finish")

    def has(self, trait: str) -> bool:
        """Whether it was compiled for it."""
        return trait in self.traits.split("+")

    def library(
        self,
        folder: Path,
        edit: Callable[[dict[str, str]], Mapping[str, str]] = lambda headers: headers,
    ) -> Path:
        """See `backward.Kernel`."""
        headers = dict(edit(dict(closure(ENTRY))))
        if self.scalar_adds:
            sums = headers["sm80/bwd/sums.cuh"]
            assert BOTH_WAYS in sums
            headers["sm80/bwd/sums.cuh"] = sums.replace(BOTH_WAYS, "defined(__CUDA_ARCH__) && ")
        return library_of(headers, f'{LACKING}#include "{ENTRY}"\n', self.names, folder)

    def shape(self, name: str, workload: Workload) -> Shape:
        """The launch of a kernel, as the core describes it; it takes no maps."""
        found = described(self.config, replace(workload, op=BACKWARD, lse=False))
        launch = found[self.launches.index(name)]
        assert not launch.maps
        return Shape(launch.grid, launch.block, launch.shared_bytes, CLUSTERS)
