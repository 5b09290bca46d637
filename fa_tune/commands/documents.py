"""The JSON documents of the commands, as types: what `fa-tune schema` prints.

Times are in seconds.  What was not measured or does not apply is null.  A name that ends in a
number has another one as soon as a document changes in a way that breaks a reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass
from typing import Annotated, Any, Literal, get_args, get_type_hints

from fa_tune.core.codec import NOT_NEGATIVE, Figure
from fa_tune.core.comparison import OnInputs
from fa_tune.core.model import DeviceInfo, Outcome
from fa_tune.core.stats import Ratio
from fa_tune.core.workload import DType
from fa_tune.lab.between import Single
from fa_tune.lab.repeatability import Agreement
from fa_tune.lab.strategies import Comparison
from fa_tune.profile.explain import Explanation
from fa_tune.search.decide import Decision
from fa_tune.store.registry.schema import Entry, Registry
from fa_tune.store.table import columns
from fa_tune.tune.results import Exploration, FamilyStanding
from fa_tune.tune.staleness import Standing

Seconds = Annotated[float, NOT_NEGATIVE]
Count = Annotated[int, NOT_NEGATIVE]
Stages = Annotated[Mapping[str, Seconds], "How long each stage took, in the order of the stages."]

_TYPES: Mapping[str, Any] = {
    columns.WHOLE.name: int,
    columns.BOOLEAN.name: bool,
    columns.TEXT.name: str,
    columns.DTYPE.name: Literal[tuple(dtype.name for dtype in DType)],
    columns.OUTCOME.name: Outcome,
    columns.SAMPLES.name: tuple[Seconds, ...],
    columns.RATIOS.name: tuple[float, ...],
}


def _row_fields() -> list[tuple[Any, ...]]:
    """A field per column of a table; one that only some files have may be left out."""
    fields: list[tuple[Any, ...]] = []
    for column in columns.COLUMNS:
        kind = _TYPES.get(column.kind.name, float) | None
        kind = Annotated[kind, column.heading]
        fields.append((column.field, kind, *([None] if column.only_unless else [])))
    told = "Of the tensors, each once; only where memory may be the limit."
    fields.append(("bytes_per_s", Annotated[float | None, told], None))
    fields.append(("source", Annotated[str, "The file that the row was read from."], ""))
    return fields


Row: Any = make_dataclass("Row", _row_fields(), kw_only=True)
Row.__doc__ = "One kernel on one workload, by the columns of a table."


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A config that cannot run, or that a set leaves out."""

    variant: str
    constraint: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """The A/B test of a choice against the default; `upheld`: the choice stood."""

    chosen: str
    default: str
    ratio: Ratio
    n: Count
    upheld: bool


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What crosses between memory and the chip if everything crosses once, in a second: as a
    share of the GPU's peak, and of the speed of a bare read of K and V."""

    bytes_per_s: float
    of_peak: float | None
    of_read: float | None


@dataclass(frozen=True, kw_only=True)
class WorkloadFound:
    """One workload of a search: the decision, or the problem in its place."""

    workload: str
    decision: Decision | None
    confirmation: Confirmation | None
    inputs: str
    on_inputs: Mapping[str, tuple[OnInputs, ...]]
    exploration: Exploration | None
    problem: str | None
    memory: Memory | None
    families: tuple[FamilyStanding, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class Search:
    """`fa-tune search --json`"""

    schema: Literal["fa-tune-search-1"]
    whose: str
    method: str
    device: DeviceInfo | None
    registry: str | None
    measured: Count
    reused: Count
    warnings: tuple[str, ...]
    workloads: tuple[WorkloadFound, ...]
    rejected: tuple[Rejected, ...]
    stages_s: Stages


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A counter in base units."""

    value: float
    unit: str


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One kernel on one workload, with its counters by ncu's names."""

    subject: str
    workload: str
    outcome: Outcome
    reason: str | None
    samples_s: tuple[Seconds, ...]
    counters: Mapping[str, Quantity]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """`fa-tune profile --json`"""

    schema: Literal["fa-tune-profile-1"]
    whose: str
    written_at: str | None = None  # ISO 8601; older documents do not say
    export: str | None
    warnings: tuple[str, ...]
    rows: tuple[Row, ...]
    measurements: tuple[Measured, ...]
    stages_s: Stages


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One kernel timed by events."""

    kernel: str
    reference: bool
    workload: str
    inputs: str | None
    method: str | None
    outcome: Outcome
    reason: str | None
    mean_s: Seconds | None
    median_s: Seconds | None
    min_s: Seconds | None
    max_s: Seconds | None
    sd_s: Seconds | None
    n: Count
    tflops: float | None
    bytes_per_s: float | None
    host_launch_s: Seconds | None
    samples_s: tuple[Seconds, ...]


@dataclass(frozen=True, kw_only=True)
class _Timed:
    whose: str
    timings: tuple[Timing, ...]


@dataclass(frozen=True, kw_only=True)
class Bench(_Timed):
    """`fa-tune bench --json`"""

    schema: Literal["fa-tune-bench-1"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One case of a verification; errors are differences to the result in fp64."""

    workload: str
    max_abs_error: Figure
    reference_max_abs_error: Figure
    limit: float
    rms_error: Figure | None
    reference_rms_error: Figure | None
    rms_limit: Figure | None
    inputs: str
    ok: bool


@dataclass(frozen=True, kw_only=True)
class KernelVerdict:
    """Whether a kernel is right, and on what."""

    variant: str
    correct: bool
    reason: str | None
    cases: tuple[Case, ...]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A kernel without a verdict."""

    variant: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True, kw_only=True)
class _Verified:
    verdicts: tuple[KernelVerdict, ...]
    failures: tuple[Failure, ...]
    rejected: tuple[Rejected, ...]


@dataclass(frozen=True, kw_only=True)
class Verify(_Verified):
    """`fa-tune verify --json`"""

    schema: Literal["fa-tune-verify-1"]


@dataclass(frozen=True, kw_only=True)
class Run(_Verified, _Timed):
    """`fa-tune run --json`"""

    schema: Literal["fa-tune-run-1"]


@dataclass(frozen=True, kw_only=True)
class Report:
    """`fa-tune report --format json`"""

    schema: Literal["fa-tune-report-1"]
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line of `doctor`; `ok` is null where it does not apply."""

    name: str
    ok: bool | None
    detail: str
    fix: str | None


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """`fa-tune doctor --json`"""

    schema: Literal["fa-tune-doctor-1"]
    ok: bool
    checks: tuple[Check, ...]


@dataclass(frozen=True, kw_only=True)
class Explain:
    """`fa-tune explain --json`"""

    schema: Literal["fa-tune-explain-1"]
    whose: str
    explanations: tuple[Explanation, ...]


@dataclass(frozen=True, kw_only=True)
class Stale:
    """`fa-tune search --why-stale --json`"""

    schema: Literal["fa-tune-stale-1"]
    standings: tuple[Standing, ...]


@dataclass(frozen=True, kw_only=True)
class Named:
    """A config that is left out, and the name of the rule."""

    config: str
    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How many configs there are of each kind."""

    kept: Count
    rejected: Mapping[str, Count]
    not_in_tune: Mapping[str, Count]


@dataclass(frozen=True, kw_only=True)
class Space:
    """`fa-tune space --json`"""

    schema: Literal["fa-tune-space-1"]
    arch: str
    kept: tuple[str, ...]
    rejected: tuple[Named, ...]
    not_in_tune: tuple[Named, ...]
    counts: Counts


@dataclass(frozen=True, kw_only=True)
class Built:
    """One kernel: what it uses, or why it did not compile."""

    variant: str
    arch: str
    outcome: Outcome
    reason: str | None
    registers: Count | None
    spill_store_bytes: Count | None
    spill_load_bytes: Count | None
    stack_bytes: Count | None
    static_smem_bytes: Count | None
    dynamic_smem_bytes: Count | None
    threads: Count | None
    ctas_per_sm: Count | None
    compile_s: Seconds | None
    cached: bool
    diagnostics: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Build:
    """`fa-tune build --json`"""

    schema: Literal["fa-tune-build-1"]
    arch: str
    nvrtc: str
    builds: tuple[Built, ...]
    rejected: tuple[Rejected, ...]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One choice against the default; ratios are times over the default's."""

    gpu: str
    workload: str
    method: str
    chosen: str
    default: str | None
    ratio: Ratio | None
    confirmed: Ratio | None
    n: int | None
    slower: bool
    on_inputs: Mapping[str, Ratio | None]
    behind_on: tuple[str, ...]
    source: str


@dataclass(frozen=True, kw_only=True)
class RegistryCheck:
    """`fa-tune registry check --json`"""

    schema: Literal["fa-tune-check-1"]
    slower: Count
    choices: tuple[Choice, ...]


@dataclass(frozen=True, kw_only=True)
class Best:
    """`fa-tune registry best --json`"""

    schema: Literal["fa-tune-best-1"]
    family: str
    config: str
    workload: str
    exact: bool
    distance: float
    explanation: str
    warnings: tuple[str, ...]
    memory: Annotated[Memory | None, "Of the entry's workload and time."]
    entry: Entry


@dataclass(frozen=True, kw_only=True)
class Needed:
    """Measurements until a share of the best was reached, of half and of nine tenths of the runs;
    null where so many did not get there."""

    median: int | None
    p90: int | None


@dataclass(frozen=True, kw_only=True)
class Score:
    """One strategy on one space."""

    strategy: str
    seeds: Count
    needed: Mapping[str, Needed]
    behind_random_at: tuple[int, ...]
    share_of_best: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True)
class Scored:
    """One space."""

    space: str
    workload: str
    configs: Count
    scores: tuple[Score, ...]


@dataclass(frozen=True, kw_only=True)
class BenchSearch:
    """`fa-tune bench-search --json`"""

    schema: Literal["fa-tune-bench-search-1"]
    plan: Comparison
    spaces: tuple[Scored, ...]


@dataclass(frozen=True, kw_only=True)
class BenchDecisions:
    """`fa-tune bench-decisions --json`"""

    schema: Literal["fa-tune-bench-decisions-1"]
    whose: str
    workloads: tuple[Agreement, ...]
    tunings: Annotated[tuple[Mapping[str, Any], ...], "As the columns of its CSV."]


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A workload that was taken out: losses are fractions more time than the tuned config's, null
    where a config was not measured there."""

    gpu: str
    method: str
    workload: str
    tuned: str
    chosen: str
    near: str
    rule: float | None
    nearest: float | None
    default: float | None
    single: float | None


@dataclass(frozen=True, kw_only=True)
class BenchBetween:
    """`fa-tune bench-between --json`"""

    schema: Literal["fa-tune-bench-between-1"]
    losses: tuple[Lost, ...]
    single: tuple[Single, ...]


_PRINTED: tuple[type, ...] = (
    *(Search, Profile, Bench, Verify, Run, Report, Doctor),
    *(Explain, Stale, Space, Build, RegistryCheck, Best),
    *(BenchSearch, BenchDecisions, BenchBetween),
)


def _name(document: type) -> str:
    (name,) = get_args(get_type_hints(document)["schema"])
    return str(name)


# By the name that documents of a type have in `schema`; a registry's is a number.
DOCUMENTS: Mapping[str, type] = {**{_name(d): d for d in _PRINTED}, "registry": Registry}
