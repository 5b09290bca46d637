"""The nouns of fa-tune, frozen, one word per thing.

A *workload* is a problem; a *config* is one point of a family's knobs; a *variant* is
family + config; an *artifact* is its cubin with resource facts; a *verdict* says whether
the result is right; a *measurement* says how long it took and how that was taken; an
*outcome* is how an attempt ended.  Times are seconds, sizes are bytes, everywhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any

from fa_tune.core.codec import Figure
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.inputs import NORMAL
from fa_tune.core.outcome import Outcome as Outcome  # part of the model


@dataclass(frozen=True, order=True)
class Variant:
    """Family + config.  `config` is the family's short form, so a variant is plain text
    and crosses process and file boundaries as it is; `families.config_of(variant)`
    gives the config object back.
    """

    family: str
    config: str

    @property
    def key(self) -> str:
        """`sm80:(FP16, 128, 64, 64, 4): async+…`."""
        return f"{self.family}:{self.config}"

    @classmethod
    def from_key(cls, key: str) -> Variant:
        """The variant of a key; raises InvalidConfig."""
        family, colon, config = key.partition(":")
        if not colon or not family or not config:
            raise InvalidConfig(f"not a variant key: {key!r}")
        return cls(family, config)


BARE_READ = "read"  # no attention: K and V are read, and nothing is made of them
BARE_READ_LABEL = "bare read"
REFERENCE_FAMILY = "ref"  # in place of a family's name: a library's kernel, `ref:fa2`

USER_FAMILY = "user"  # the same of a user's kernel, `user:module:function`
NEVER_CHOSEN = (REFERENCE_FAMILY, USER_FAMILY)


def is_reference(subject: str) -> bool:
    """Whether a subject is measured for comparison alone: a library's kernel or a user's."""
    return subject.partition(":")[0] in NEVER_CHOSEN


def is_users(subject: str) -> bool:
    """Whether a subject is a user's kernel."""
    return subject.startswith(f"{USER_FAMILY}:")


def user_subject(place: str) -> str:
    """The subject of a user's kernel by its place: `user:module:function`."""
    return f"{USER_FAMILY}:{place}"


def user_place(subject: str) -> str:
    """`module:function` of `user:module:function`; any other text as it is."""
    return subject.removeprefix(f"{USER_FAMILY}:")


def reference_subject(name: str) -> str:
    """The subject of a library's kernel by its name: `ref:fa2`; a user's as it is."""
    return name if is_users(name) else f"{REFERENCE_FAMILY}:{name}"


def reference_name(subject: str) -> str:
    """`fa2` of `ref:fa2`; any other text as it is."""
    return subject.removeprefix(f"{REFERENCE_FAMILY}:")


@dataclass(frozen=True)
class Rejected:
    """Why a config cannot run: the constraint's name and one sentence with the figures."""

    constraint: str
    reason: str


@dataclass(frozen=True)
class Resources:
    """What a compiled kernel uses, as ptxas and the launch geometry state it.

    Sizes are bytes; `registers` are per thread; spills are bytes per thread of local
    memory stores and loads in the code; `ctas_per_sm` is the theoretical occupancy.
    """

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    static_smem_bytes: int
    dynamic_smem_bytes: int
    threads: int
    ctas_per_sm: int

    @classmethod
    def largest(cls, kernels: Sequence[Resources]) -> Resources:
        """Those of several kernels that are launched one after another: the most of each, and
        the fewest CTAs."""
        most = {f.name: max(getattr(k, f.name) for k in kernels) for f in fields(cls)}
        return replace(cls(**most), ctas_per_sm=min(k.ctas_per_sm for k in kernels))


@dataclass(frozen=True)
class Artifact:
    """A cubin on disk: where it is, what to call in it, and what it uses.

    `symbol` is the mangled name of the kernel that is launched first, `more_symbols` those of the
    launches after it; `resources` are the largest of them all.  `diagnostics` are the compiler's
    warnings about this very variant; `compile_s` is the time NVRTC took when it was first built.
    """

    variant: Variant
    traits: str
    arch: str
    cubin: str
    symbol: str
    resources: Resources
    diagnostics: tuple[str, ...] = ()
    compile_s: float = 0.0
    more_symbols: tuple[str, ...] = ()

    @property
    def symbols(self) -> tuple[str, ...]:
        """The mangled name of each launch of a call, in their order."""
        return (self.symbol, *self.more_symbols)


@dataclass(frozen=True)
class CaseError:
    """One verification case: the largest error against fp64 of the kernel and of the
    same-precision reference, the limit of the former, and the same of the root mean squares.

    Errors are what exceeds the share that fp32 scores leave open (docs/measuring.md).  `inputs`
    is a word of `operations.base`.  Records of earlier versions have no root mean squares: None.
    """

    workload: str
    max_abs_error: Figure
    reference_max_abs_error: Figure
    limit: Figure
    ok: bool
    rms_error: Figure | None = None
    reference_rms_error: Figure | None = None
    rms_limit: Figure | None = None
    inputs: str = "normal"

    @property
    def share(self) -> float:
        """The part of its limits that a case uses, by the figure that is nearer its own; infinite
        for a NaN."""
        pairs = ((self.max_abs_error, self.limit), (self.rms_error, self.rms_limit))
        return max(_share(e, limit) for e, limit in pairs if e is not None and limit is not None)


def _share(error: float, limit: float) -> float:
    if math.isnan(error) or math.isnan(limit):
        return math.inf
    if not limit:
        return math.inf if error else 0.0
    return error / limit


@dataclass(frozen=True)
class Verdict:
    """Correct or not, with the error figures of every case tried."""

    correct: bool
    cases: tuple[CaseError, ...]
    reason: str = ""


@dataclass(frozen=True)
class Quantity:
    """A number with its base unit (`s`, `hz`, `byte`, `byte/s`, `%`, or a count's own)."""

    value: float
    unit: str


@dataclass(frozen=True)
class Measurement:
    """Times and counters of one variant (or reference) on one workload.

    `samples_s` are the single durations in seconds in the order they were taken;
    `counters` hold the median of each collected metric; a metric that was not collected
    is absent, never zero.  `method` is `ncu` or `events`: results of different methods
    are never ranked together.  `conditions` say how it was taken, as text for a reader: no
    code asks for them.  What code asks for is a field:

    - `relative`: each sample over the mean of the baseline's samples right before and after
      it, so that a drifting clock cancels out; one per sample, or empty.
    - `baseline`: the subject that `relative` is over; empty without it, and in old journals.
    - `preference`: the place in the order of the tie-break, from 0; None if not known.
    - `host_launch_s`: what one launch took the process that made it, in seconds.
    - `search`: the search it belongs to; empty outside a search.
    - `gpu_uuid`: the GPU that measured it; empty if not known.
    - `scaled_by`: the factor by which `samples_s` were multiplied afterwards; None: as measured.
    - `replayed_from`: the label of the recording it was read from; empty if measured now.
    - `default_s`: in an A/B test, the default's samples beside `samples_s`, in seconds.
    - `inputs`: what Q, K and V held, as text (`core.inputs`).
    - `held_out_s`, `held_out_relative`: as `samples_s` and `relative`, of rounds after the race:
      nothing was chosen by them.  Empty for whom the choice did not come into question.
    - `to_own_inputs`: in the comparison on other inputs, of what the others are compared with: its
      time on `inputs` over that on the inputs of the search, by round; empty where they are these.
    - `error`: there, its root mean square error over FlashAttention 2's; None without one.
    - `versions`: of the packages that it ran with, by name (`torch`, `cudnn`, `fa4`, `cupy`);
      empty if not known.
    """

    subject: str  # a variant's key, or `ref:fa2`
    workload: str
    method: str
    samples_s: tuple[float, ...]
    counters: Mapping[str, Quantity] = field(default_factory=dict)
    conditions: Mapping[str, str] = field(default_factory=dict)
    relative: tuple[float, ...] = ()
    preference: int | None = None
    host_launch_s: float | None = None
    search: str = ""
    gpu_uuid: str = ""
    scaled_by: float | None = None
    replayed_from: str = ""
    default_s: tuple[float, ...] = ()
    inputs: str = str(NORMAL)  # as all recordings before there was a choice
    held_out_s: tuple[float, ...] = ()
    held_out_relative: tuple[float, ...] = ()
    to_own_inputs: tuple[float, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    baseline: str = ""
    error: float | None = None


@dataclass(frozen=True)
class Attempt:
    """One variant on one workload: how it ended, why, and what was measured if it ran."""

    subject: str
    workload: str
    outcome: Outcome
    reason: str = ""
    measurement: Measurement | None = None

    @property
    def gpu_uuid(self) -> str:
        """The GPU that measured; empty where it is not known or nothing was measured."""
        return self.measurement.gpu_uuid if self.measurement is not None else ""


@dataclass(frozen=True)
class DeviceInfo:
    """The GPU that measurements belong to.  `name` as the driver spells it; None: not known."""

    name: str
    compute_capability: tuple[int, int]
    driver: str
    memory_bytes: int | None = None
    uuid: str = ""
    multiprocessors: int | None = None

    @property
    def slug(self) -> str:
        """File-name form of the model: `nvidia_h200`."""
        return re.sub(r"[^a-z0-9]+", "_", self.name.lower()).strip("_")


@dataclass(frozen=True)
class Provenance:
    """Everything needed to repeat or distrust a result.

    `kernel_source_sha256` covers the kernel sources; `profiler_args` is the complete
    argument list of the profiler; `recorded_at` is UTC, ISO 8601.
    """

    gpu: str
    driver: str
    cuda: str
    nvrtc: str
    method: str
    profiler_version: str
    profiler_args: tuple[str, ...]
    clock_policy: str
    cache_policy: str
    kernel_source_sha256: str
    recorded_at: str
    fa_tune_version: str
    extra: Mapping[str, Any] = field(default_factory=dict)


def parse_time(text: str) -> datetime:
    """An ISO 8601 time, UTC where it names no zone; raises ValueError."""
    try:
        time = datetime.fromisoformat(text)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):  # in the years 1 and 9999 not every zone has every time
        raise ValueError(f"not an ISO 8601 time: {text!r}") from None
