"""What a family of one CUDA template, whose config says all about a variant, does like any other.

A family inherits it and adds what is its own: the sets, the constraints, the launch.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from fa_tune import operations
from fa_tune.core import hooks
from fa_tune.core.arch import ArchLimits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Rejected
from fa_tune.core.workload import DType, Workload
from fa_tune.families import computed
from fa_tune.families.base import Config
from fa_tune.families.fields import is_kv_e4m3
from fa_tune.families.name_parser import NameParser
from fa_tune.families.plan import CallPlan
from fa_tune.families.sources import closure
from fa_tune.operations.traits import Traits


class TemplateConfig(Protocol):
    """A config class as `TemplateFamily` asks for it."""

    @property
    def B_r(self) -> int:
        """Query rows per CTA."""

    @property
    def B_c(self) -> int:
        """Key rows per block."""

    def to_cpp_struct(self) -> str:
        """The config as a C++ literal."""

    def kernel_name(self) -> str:
        """The template's name."""


@cache
def _sources(entry: str) -> Mapping[str, str]:
    return closure(entry)


ConfigT = TypeVar("ConfigT", bound=TemplateConfig)


@cache
def _names(family: str, config_class: type[Any]) -> re.Pattern[str]:
    """What a short form, or a kernel's name, has."""
    return re.compile(rf"\b{family}\s*\(|\b{config_class.__name__}\b")


@cache
def _parser(config_class: type[ConfigT]) -> NameParser[ConfigT]:
    return NameParser(config_class)


class TemplateFamily(ABC, Generic[ConfigT]):
    """The shared part of `families.base.KernelFamily`.  `entry`: the translation unit,
    relative to `kernels/`; `computes`: optional fields of a workload.  A short form begins with
    the family's name."""

    entry: ClassVar[str]
    operation: str
    name: str
    config_class: type[ConfigT]
    example: str
    computes: frozenset[str] = computed.BASIC
    outrun_by: str = ""

    def recognises(self, text: str) -> bool:
        return _names(self.name, self.config_class).search(text) is not None

    def parse(self, text: str, *, d_head: int = 128) -> ConfigT:
        if not self.recognises(text):
            shown = " ".join(text.split())[:100]
            raise InvalidConfig(
                f'no {self.name} config in "{shown}"; write it like {self.example!r}'
            )
        nameless = re.sub(rf"\b{self.name}\s*\(", "(", text)
        found: ConfigT = _parser(self.config_class).parse(nameless, d_head=d_head)
        return found

    def suits(self, workload: Workload, config: Config | None = None) -> bool:
        return not computed.not_among(workload, self.computes)

    def carries_over(
        self,
        config: Config,
        measured: Workload,
        requested: Workload,
        limits: ArchLimits | None = None,
    ) -> bool:
        return True

    @abstractmethod
    def default_config(self, d_head: int, dtype: DType, *, d_head_v: int = 0) -> Config:
        """What a user without tuning results should run."""

    def default_for(self, workload: Workload, limits: ArchLimits) -> Config:
        w = workload
        return self.default_config(w.d_head, w.dtype, d_head_v=w.d_head_v)

    def tune_rejection(self, config: Config) -> Rejected | None:
        return None

    def name_expressions(self, config: Config, traits: str) -> Sequence[str]:
        return (self.name_expression(config, traits),)

    @abstractmethod
    def plan(self, config: Config, traits: str, arch: str) -> CallPlan:
        """The launches of a call."""

    def compile_arch(self, limits: ArchLimits) -> str:
        return limits.arch

    def traits(self, config: ConfigT, workload: Workload, *, lse: bool = False) -> str:
        if workload.op != self.operation:
            raise InvalidConfig(f"kernels of {self.operation} do not compute {workload.key}")
        if workload.kv_e4m3 != is_kv_e4m3(config):
            raise InvalidConfig(f"{config} is not for K and V as in {workload.key}")
        if strange := computed.not_among(workload, self.computes):
            named = ", ".join(strange)
            raise InvalidConfig(f"{self.name} kernels do not compute {named}: {workload.key}")
        whole = self.whole_lengths(config)
        return str(operations.get(self.operation).traits(workload, whole, lse=lse))

    def source_files(self) -> Mapping[str, str]:
        return _sources(self.entry)

    def entry_source(self, config: ConfigT, traits: str) -> str:
        source = _sources(self.entry)[self.entry]
        if not (hook := Traits.parse(traits).hook):
            return source
        found = hooks.hook_of(hook)
        form = "_BY_FOUR" if found.by_four else ""
        return (
            f"#define FA_TUNE_SCORE_HOOK{form}\n"
            f'#include "common/score_hook.cuh"\n{found.source}\n{source}'
        )

    def name_expression(self, config: ConfigT, traits: str) -> str:
        """The instantiation of the template."""
        arguments = f"{config.to_cpp_struct()}, {Traits.parse(traits).to_cpp_struct()}"
        return f"{config.kernel_name()}<{arguments}>"

    def whole_lengths(self, config: ConfigT) -> tuple[int, int]:
        """Numbers of queries and of keys: lengths that are no multiples of them need the trait
        `ragged`."""
        return config.B_r, config.B_c
