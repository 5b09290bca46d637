"""The JSON documents of the commands, as types: what `docs/schemas` is made of.

Times are in seconds.  What was not measured or does not apply is null.  A name that ends in a
number has another one as soon as a document changes in a way that breaks a reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from fa_tune.core.comparison import OnInputs
from fa_tune.core.model import DeviceInfo, Outcome
from fa_tune.core.stats import Ratio
from fa_tune.core.workload import DType
from fa_tune.lab.between import Single
from fa_tune.lab.repeatability import Agreement
from fa_tune.lab.strategies import Comparison
from fa_tune.operations.memory import MemoryRate
from fa_tune.profile.explain import Explanation
from fa_tune.search.decide import Decision
from fa_tune.store.table import columns
from fa_tune.tune.results import Exploration, FamilyStanding
from fa_tune.tune.staleness import Standing

Seconds = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
Stages = Annotated[
    dict[str, Seconds], Field(description="How long each stage took, in the order of the stages.")
]
NOT_FINITE = Literal["nan", "inf", "-inf"]  # JSON has no such numbers

_TYPES: Mapping[str, Any] = {
    columns.WHOLE.name: int,
    columns.BOOLEAN.name: bool,
    columns.TEXT.name: str,
    columns.DTYPE.name: Literal[tuple(dtype.name for dtype in DType)],
    columns.OUTCOME.name: Outcome,
    columns.SAMPLES.name: list[Seconds],
    columns.RATIOS.name: list[float],
}


class Model(BaseModel):
    """An object that has these fields and no others."""

    model_config = ConfigDict(extra="forbid")


def _row_fields() -> dict[str, Any]:
    """A field per column of a table; one that only some files have may be left out."""
    fields: dict[str, Any] = {}
    for column in columns.COLUMNS:
        kind = _TYPES.get(column.kind.name, float)
        about = Field(... if not column.only_unless else None, description=column.heading)
        fields[column.field] = (kind | None, about)
    told = "Of the tensors, each once; only where memory may be the limit."
    fields["bytes_per_s"] = (float | None, Field(None, description=told))
    fields["source"] = (str, Field("", description="The file that the row was read from."))
    return fields


Row = create_model("Row", __base__=Model, **_row_fields())


class Rejected(Model):
    """A config that cannot run, or that a set leaves out."""

    variant: str
    constraint: str
    reason: str


class Confirmation(Model):
    """The A/B test of a choice against the default; `upheld`: the choice stood."""

    chosen: str
    default: str
    ratio: Ratio
    n: Count
    upheld: bool


class WorkloadFound(Model):
    """One workload of a search: the decision, or the problem in its place."""

    workload: str
    decision: Decision | None
    confirmation: Confirmation | None
    inputs: str
    on_inputs: dict[str, list[OnInputs]]
    exploration: Exploration | None
    problem: str | None
    memory: MemoryRate | None
    families: list[FamilyStanding]
    rows: list[Row]  # type: ignore[valid-type]


class Search(Model):
    """`fa-tune search --json`"""

    schema_: Literal["fa-tune-search-1"] = Field(alias="schema")
    whose: str
    method: str
    device: DeviceInfo | None
    registry: str | None
    measured: Count
    reused: Count
    warnings: list[str]
    workloads: list[WorkloadFound]
    rejected: list[Rejected]
    stages_s: Stages


class Quantity(Model):
    """A counter in base units."""

    value: float
    unit: str


class Measured(Model):
    """One kernel on one workload, with its counters by ncu's names."""

    subject: str
    workload: str
    outcome: Outcome
    reason: str | None
    samples_s: list[Seconds]
    counters: dict[str, Quantity]


class Profile(Model):
    """`fa-tune profile --json`"""

    schema_: Literal["fa-tune-profile-1"] = Field(alias="schema")
    whose: str
    written_at: str | None = None  # ISO 8601; older documents do not say
    export: str | None
    warnings: list[str]
    rows: list[Row]  # type: ignore[valid-type]
    measurements: list[Measured]
    stages_s: Stages


class Timing(Model):
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
    samples_s: list[Seconds]


class _Timed(Model):
    whose: str
    timings: list[Timing]


class Bench(_Timed):
    """`fa-tune bench --json`"""

    schema_: Literal["fa-tune-bench-1"] = Field(alias="schema")


class Case(Model):
    """One case of a verification; errors are differences to the result in fp64."""

    workload: str
    max_abs_error: float | NOT_FINITE
    reference_max_abs_error: float | NOT_FINITE
    limit: float
    rms_error: float | NOT_FINITE | None
    reference_rms_error: float | NOT_FINITE | None
    rms_limit: float | NOT_FINITE | None
    inputs: str
    ok: bool


class KernelVerdict(Model):
    """Whether a kernel is right, and on what."""

    variant: str
    correct: bool
    reason: str | None
    cases: list[Case]


class Failure(Model):
    """A kernel without a verdict."""

    variant: str
    outcome: Outcome
    reason: str


class _Verified(Model):
    verdicts: list[KernelVerdict]
    failures: list[Failure]
    rejected: list[Rejected]


class Verify(_Verified):
    """`fa-tune verify --json`"""

    schema_: Literal["fa-tune-verify-1"] = Field(alias="schema")


class Run(_Verified, _Timed):
    """`fa-tune run --json`"""

    schema_: Literal["fa-tune-run-1"] = Field(alias="schema")


class Report(Model):
    """`fa-tune report --format json`"""

    schema_: Literal["fa-tune-report-1"] = Field(alias="schema")
    rows: list[Row]  # type: ignore[valid-type]


class Check(Model):
    """One line of `doctor`; `ok` is null where it does not apply."""

    name: str
    ok: bool | None
    detail: str
    fix: str | None


class Doctor(Model):
    """`fa-tune doctor --json`"""

    schema_: Literal["fa-tune-doctor-1"] = Field(alias="schema")
    ok: bool
    checks: list[Check]


class Explain(Model):
    """`fa-tune explain --json`"""

    schema_: Literal["fa-tune-explain-1"] = Field(alias="schema")
    whose: str
    explanations: list[Explanation]


class Stale(Model):
    """`fa-tune search --why-stale --json`"""

    schema_: Literal["fa-tune-stale-1"] = Field(alias="schema")
    standings: list[Standing]


class Named(Model):
    """A config that is left out, and the name of the rule."""

    config: str
    name: str
    reason: str


class Counts(Model):
    """How many configs there are of each kind."""

    kept: Count
    rejected: dict[str, Count]
    not_in_tune: dict[str, Count]


class Space(Model):
    """`fa-tune space --json`"""

    schema_: Literal["fa-tune-space-1"] = Field(alias="schema")
    arch: str
    kept: list[str]
    rejected: list[Named]
    not_in_tune: list[Named]
    counts: Counts


class Built(Model):
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
    diagnostics: list[str]


class Build(Model):
    """`fa-tune build --json`"""

    schema_: Literal["fa-tune-build-1"] = Field(alias="schema")
    arch: str
    nvrtc: str
    builds: list[Built]
    rejected: list[Rejected]


class Choice(Model):
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
    on_inputs: dict[str, Ratio | None]
    behind_on: list[str]
    source: str


class RegistryCheck(Model):
    """`fa-tune registry check --json`"""

    schema_: Literal["fa-tune-check-1"] = Field(alias="schema")
    slower: Count
    choices: list[Choice]


class Best(Model):
    """`fa-tune registry best --json`"""

    schema_: Literal["fa-tune-best-1"] = Field(alias="schema")
    family: str
    config: str
    workload: str
    exact: bool
    distance: float
    explanation: str
    warnings: list[str]
    memory: MemoryRate | None = Field(description="Of the entry's workload and time.")
    entry: dict[str, Any] = Field(description="An entry of the registry; see its own schema.")


class Needed(Model):
    """Measurements until a share of the best was reached, of half and of nine tenths of the runs;
    null where so many did not get there."""

    median: int | None
    p90: int | None


class Score(Model):
    """One strategy on one space."""

    strategy: str
    seeds: Count
    needed: dict[str, Needed]
    behind_random_at: list[int]
    share_of_best: dict[str, list[float]]


class Scored(Model):
    """One space."""

    space: str
    workload: str
    configs: Count
    scores: list[Score]


class BenchSearch(Model):
    """`fa-tune bench-search --json`"""

    schema_: Literal["fa-tune-bench-search-1"] = Field(alias="schema")
    plan: Comparison
    spaces: list[Scored]


class BenchDecisions(Model):
    """`fa-tune bench-decisions --json`"""

    schema_: Literal["fa-tune-bench-decisions-1"] = Field(alias="schema")
    whose: str
    workloads: list[Agreement]
    tunings: list[dict[str, Any]] = Field(description="As the columns of its CSV.")


class Lost(Model):
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


class BenchBetween(Model):
    """`fa-tune bench-between --json`"""

    schema_: Literal["fa-tune-bench-between-1"] = Field(alias="schema")
    losses: list[Lost]
    single: list[Single]


DOCUMENTS: tuple[type[Model], ...] = (
    *(Search, Profile, Bench, Verify, Run, Report, Doctor),
    *(Explain, Stale, Space, Build, RegistryCheck, Best),
    *(BenchSearch, BenchDecisions, BenchBetween),
)


def name_of(document: type[Model]) -> str:
    """The name that documents of a type have in `schema`."""
    (name,) = document.model_fields["schema_"].annotation.__args__  # type: ignore[union-attr]
    return str(name)
