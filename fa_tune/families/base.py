"""What a kernel family supplies.  Everything outside this package asks a family through the
protocol below and knows none by name; docs/architecture.md lists the files that add one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fa_tune.core.arch import ArchLimits
from fa_tune.core.model import Rejected
from fa_tune.core.workload import DType, Workload
from fa_tune.families.plan import CallPlan

# An object of some family's config class: a frozen, ordered dataclass whose fields are the
# knobs, `dtype` and `d_head` among them, and `d_head_v` (0: as `d_head`) where V may have another
# head dimension.  `B_r` and `B_c` are the query rows and the key rows of its tile, `str` is its
# short form, `exact` whether the largest weight of a row is 1, `as_exact()` the nearest config that
# is so.  No two families share a class.
Config = Any


class KernelFamily(Protocol):
    """A way to compute one operation: config class, sets, constraints, kernels and launches.

    A call is one launch or several, each of a kernel of its own; all are compiled as one
    translation unit.  `families.template` has what a family of one kernel is like.

    `operation`      what it computes, by its name in `fa_tune.operations`
    `name`           how variants, files and `--family` call it: a word
    `config_class`   the class of its configs
    `example`        a short form, for messages
    `set_keys`       what `configs` takes as a key, for messages
    `outrun_by`      the family that was faster on all that was measured where both run, by its
                     name; "" for none
    """

    operation: str
    name: str
    config_class: type[Any]
    example: str
    set_keys: str
    outrun_by: str

    def __hash__(self) -> int:
        """By identity: what is known of one family's texts is no other's."""

    # Names ----------------------------------------------------------------------------------

    def recognises(self, text: str) -> bool:
        """Whether `text` is meant as this family's short form, or is a name of its kernels.
        A short form is recognised by one family only, however it is damaged."""

    def parse(self, text: str, *, d_head: int = 128) -> Config:
        """The config of a short form, or of a demangled name of its kernels.  `d_head` serves
        a short form that leaves it out.  Raises InvalidConfig."""

    # Device ---------------------------------------------------------------------------------

    def suits(self, workload: Workload, config: Config | None = None) -> bool:
        """Whether the family computes such a workload, and it or this config may be the fastest
        on it."""

    def carries_over(
        self,
        config: Config,
        measured: Workload,
        requested: Workload,
        limits: ArchLimits | None = None,
    ) -> bool:
        """Whether how fast a config was on one workload tells how fast it is on the other, whose
        sizes are not far from it, on the same device; without `limits` on the usual one."""

    def compile_arch(self, limits: ArchLimits) -> str:
        """What to compile for on such a device: `limits.arch`, or `sm_90a` where the kernels
        need instructions of that very architecture."""

    # Configs --------------------------------------------------------------------------------

    def constraints(self, config: Config, limits: ArchLimits) -> Rejected | None:
        """The first reason why the config cannot run on such a device, or None; where the
        family does not run, the same one for all."""

    def default_config(self, d_head: int, dtype: DType, *, d_head_v: int = 0) -> Config:
        """What a user without tuning results should run; `d_head_v` 0: as `d_head`.  The one for
        d_head 128 runs on every device of the family.  Where the family has nothing for these
        heads, a config that `constraints` refuses; a family that knows no other `d_head_v` may
        leave it aside, and its config is not taken."""

    def default_for(self, workload: Workload, limits: ArchLimits) -> Config:
        """What a user without tuning results should run for a workload on such a device."""

    def configs(
        self,
        key: str,
        *,
        dtypes: Sequence[DType] | None = None,
        d_head: int = 128,
        d_head_v: int = 0,
    ) -> list[Config]:
        """A named set, at least `tune`, for these dtypes (None: the set's own); `d_head_v` 0: as
        `d_head`; empty if the set has none for these heads.  Raises InvalidConfig for a key that
        is not its own."""

    def tune_rejection(self, config: Config) -> Rejected | None:
        """The rule, an opinion on speed, that keeps a config out of the tune set, or None."""

    # Compiling ------------------------------------------------------------------------------

    def traits(self, config: Config, workload: Workload, *, lse: bool = False) -> str:
        """The compile-time facts of a workload, as text; see `operations.traits`.  `lse`: with the
        log-sum-exp, whatever the workload says.  Raises InvalidConfig for a workload that the
        family's kernels, or those of this config, do not compute."""

    def source_files(self) -> Mapping[str, str]:
        """Include name -> text of every file a kernel of the family includes, and no other:
        what they hash to is what its measurements depend on.  See `families.sources`."""

    def entry_source(self, config: Config, traits: str) -> str:
        """The translation unit given to the compiler."""

    def name_expressions(self, config: Config, traits: str) -> Sequence[str]:
        """Template instantiations to ask the compiler for: the kernel of each launch of a call, the
        one by whose name reports know the config among them; one that is launched twice stands here
        twice."""

    def plan(self, config: Config, traits: str, arch: str) -> CallPlan:
        """The launches of a call, one of each kernel of `name_expressions`, compiled with these
        traits for `arch` (`sm_90a`): all that is said of launching.  Raises InvalidConfig where the
        family has no such launch."""

    # Checking -------------------------------------------------------------------------------

    def extra_verification(self, config: Config, traits: str) -> Sequence[Workload]:
        """Workloads to verify a config on besides the common ones, for what those do not
        reach: a persistent grid's second round, for instance.  Theirs are these very traits."""
