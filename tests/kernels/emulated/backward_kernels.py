"""The sm90 backward kernels, compiled for the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fa_tune.core.workload import DType
from fa_tune.families.sources import closure
from tests.gpu.score_hooks import BENT
from tests.kernels.emulated.emulation import library_of

ENTRY = "sm90/bwd/entry.cu"
TRAITS = ("causal", "ragged", "lse", "window", "sink", "softcap", "alibi", "hook", "packed")
ONE_PASS = ("prepare", "kernel", "finish")
TWO_PASSES, WIDE = ("dq", "kernel"), ("dq", "wide")
LAYOUTS = {"kernel": "SharedMemory", "wide": "WideSharedMemory", "dq": "DqSharedMemory"}
HOOK = f'#define FA_TUNE_SCORE_HOOK\n#include "common/score_hook.cuh"\n{BENT}'
LACKING = 'int lacking = 0;\nextern "C" void set_lacking(int number) { lacking = number; }\n'


@dataclass(frozen=True)
class Kernel:
    """The kernels of a config and of compile-time traits (`causal+ragged`)."""

    dtype: DType
    d_head: int
    q_stages: int = 2
    turns: bool = True
    two_pass: bool = False
    dynamic: bool = False
    dq_keys: int = 96
    d_head_v: int = 0
    same_step: bool = False
    cluster: int = 1
    dq_cluster: int = 1
    B_c: int = 128  # keys of a CTA
    traits: str = ""

    @property
    def B_r(self) -> int:
        """Queries of a step."""
        return 128 if self.d_head <= 64 else 64

    is_dependent = True  # launches but the first, on the one before

    @property
    def key_blocks(self) -> tuple[int, ...]:
        """Sizes of blocks of keys."""
        return self.B_c, self.dq_keys

    @property
    def launches(self) -> tuple[str, ...]:
        """The kernels of a call."""
        if self.d_head > 128:
            return WIDE
        return TWO_PASSES if self.two_pass else ONE_PASS

    def has(self, trait: str) -> bool:
        """Whether it was compiled for it."""
        return trait in self.traits.split("+")

    def library(
        self,
        folder: Path,
        edit: Callable[[dict[str, str]], Mapping[str, str]] = lambda headers: headers,
    ) -> Path:
        """Compiled, of the sources that `edit` makes of those there are, where `lacking` is a
        number that `judge` is given.  Raises ValueError, ToolMissing."""
        fields = (
            *(f"DType::{self.dtype.name}", self.d_head, self.B_r, self.B_c, self.q_stages),
            *(self.turns, self.two_pass, self.dynamic, self.dq_keys, self.d_head_v),
            *(self.same_step, self.cluster, self.dq_cluster),
        )
        config = f"Sm90BackwardConfig{{{', '.join(map(_literal, fields))}}}"
        traits = f"WorkloadTraits{{{', '.join(_literal(self.has(name)) for name in TRAITS)}}}"
        sizes = "".join(
            f'extern "C" unsigned shared_bytes_{kernel}() '
            f"{{ return sizeof(fa_tune::sm90::backward::{layout}<{config}>); }}\n"
            for kernel, layout in LAYOUTS.items()
        )
        headers = edit(dict(closure(ENTRY)))
        names = [f"sm90_backward_{kernel}<{config}, {traits}>" for kernel in self.launches]
        hook = HOOK if self.has("hook") else ""
        return library_of(headers, f'{LACKING}{hook}#include "{ENTRY}"\n{sizes}', names, folder)


def _literal(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
