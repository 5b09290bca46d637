"""What a family of one CUDA template, whose config says all about a variant, does like any other.

A family inherits it and adds what is its own: the sets, the constraints, the launch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import ClassVar, Generic, Protocol, TypeVar

from fa_tune.core.model import Workload
from fa_tune.families.sources import closure
from fa_tune.ops.traits import Traits


class TemplateConfig(Protocol):
    """A config class as `TemplateFamily` asks for it."""

    @property
    def B_r(self) -> int:
        """Query rows per CTA."""

    @property
    def B_c(self) -> int:
        """Key rows per block."""

    @property
    def threads(self) -> int:
        """Threads per CTA."""

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory per CTA."""

    def short_form(self) -> str:
        """The config as text."""

    def to_cpp_struct(self) -> str:
        """The config as a C++ literal."""

    def kernel_name(self) -> str:
        """The template's name."""


@cache
def _sources(entry: str) -> Mapping[str, str]:
    return closure(entry)


ConfigT = TypeVar("ConfigT", bound=TemplateConfig)


class TemplateFamily(Generic[ConfigT]):
    """The shared part of `families.base.KernelFamily`.  `entry`: the translation unit,
    relative to `kernels/`."""

    entry: ClassVar[str]

    def short_form(self, config: ConfigT) -> str:
        return config.short_form()

    def kernel_traits(self, kernel_name: str) -> str | None:
        found = Traits.in_kernel_name(kernel_name)
        return None if found is None else str(found)

    def traits(self, config: ConfigT, workload: Workload, *, lse: bool = False) -> str:
        ragged = bool(workload.seq_len_q % config.B_r or workload.seq_len_kv % config.B_c)
        return str(Traits(causal=workload.causal, ragged=ragged, lse=lse or workload.lse))

    def source_files(self) -> Mapping[str, str]:
        return _sources(self.entry)

    def entry_source(self, config: ConfigT, traits: str) -> str:
        return _sources(self.entry)[self.entry]

    def name_expression(self, config: ConfigT, traits: str) -> str:
        arguments = f"{config.to_cpp_struct()}, {Traits.parse(traits).to_cpp_struct()}"
        return f"{config.kernel_name()}<{arguments}>"

    def compile_options(self, arch: str) -> Sequence[str]:
        return ("-std=c++20", "--use_fast_math")

    def threads(self, config: ConfigT) -> int:
        return config.threads

    def dynamic_smem_bytes(self, config: ConfigT) -> int:
        return config.smem_bytes

    def blocks(self, config: ConfigT) -> tuple[int, int]:
        return config.B_r, config.B_c
