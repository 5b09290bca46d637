"""What the functions of `fa_tune.tune` return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fa_tune.build.compile import BuildResult
from fa_tune.core.comparison import Confirmation, OnInputs
from fa_tune.core.errors import FaTuneError
from fa_tune.core.inputs import NORMAL
from fa_tune.core.model import (
    BARE_READ,
    Artifact,
    Attempt,
    DeviceInfo,
    Rejected,
    Resources,
    Variant,
    Verdict,
    reference_subject,
)
from fa_tune.core.stats import MARGIN
from fa_tune.core.workload import Workload
from fa_tune.operations.memory import MemoryRate, memory_rate
from fa_tune.search.decide import Decision
from fa_tune.search.strategies.audit import Audit
from fa_tune.store.registry.schema import Served


@dataclass(frozen=True)
class FamilyStanding:
    """How far one family got on one workload: its fastest config, and how that stands to the
    family's own default (time over time, below 1 = faster; None if that was not measured)."""

    family: str
    best: str  # subjects
    median_s: float
    default: str | None
    ratio_to_default: float | None


@dataclass(frozen=True)
class Exploration:
    """What a strategy did on one workload: of `configs`, it measured `scouted` (`failed` of
    them without a time), and `finalists` met in the final.  `audit` is None where none was
    asked for or nothing ran."""

    strategy: str
    seed: int
    budget: str
    configs: int
    scouted: int
    failed: int
    finalists: int
    audit: Audit | None = None

    @property
    def sentence(self) -> str:
        text = f"{self.strategy} measured {self.scouted} of {self.configs} configs"
        if self.audit is not None:
            text += f"; {self.audit.sentence}"
        return text


@dataclass(frozen=True)
class WorkloadResult:
    """All that a search learnt about one workload.  `attempts` has one entry per variant and
    reference, whatever its outcome; `decision` is None when nothing could be chosen.
    `families` are those with a measurement, the fastest first; `ranks` is the tie rule's order
    by subject, the smallest preferred; `artifacts` and `verdicts` are what was measured, and how it
    was verified, by subject."""

    workload: Workload
    attempts: tuple[Attempt, ...]
    decision: Decision | None
    problem: str = ""  # why there is no decision
    families: tuple[FamilyStanding, ...] = ()
    exploration: Exploration | None = None  # None: everything was measured
    ranks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    confirmation: Confirmation | None = None  # None: not asked, or nothing to compare
    margin: float = MARGIN  # what the default had to be beaten by
    inputs: str = str(NORMAL)  # that it was decided on
    on_inputs: Mapping[str, tuple[OnInputs, ...]] = field(default_factory=dict)  # by subject
    served: Served | None = None  # a library that is faster
    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)

    def memory_rate(self, gpu: str) -> MemoryRate | None:
        """How near the choice is to the speed of the memory of a GPU, called as its driver does;
        None where that is not its limit, and without a choice."""
        if self.decision is None:
            return None
        read = self.decision.to_references.get(reference_subject(BARE_READ))
        of_read = None if read is None else 1.0 / read.value
        return memory_rate(self.workload, self.decision.chosen.median_s, gpu, of_read)


@dataclass(frozen=True)
class SearchResult:
    """A finished search.  `source` says where the measurements come from, e.g. "measured on this
    machine's NVIDIA H200 under ncu …" or "recorded on an NVIDIA H200 on 2026-…, replayed".
    `rejected` are configs that cannot run; `reused` attempts came from the journal.
    `registry` is where the choices are kept; None if none was.  `not_kept`: why they are not
    there, where it could not be written."""

    results: tuple[WorkloadResult, ...]
    rejected: tuple[tuple[Variant, Rejected], ...]
    resources: Mapping[str, Resources]  # by subject
    source: str
    method: str
    registry: Path | None
    device: DeviceInfo | None
    reused: int = 0
    measured: int = 0
    warnings: tuple[str, ...] = ()
    not_kept: FaTuneError | None = None

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return tuple(a for r in self.results for a in r.attempts)


def as_one(found: Sequence[SearchResult]) -> SearchResult:
    """Several searches' results as one search's."""
    return replace(
        found[-1],
        results=tuple(one for result in found for one in result.results),
        rejected=tuple(dict.fromkeys(one for result in found for one in result.rejected)),
        resources={name: one for result in found for name, one in result.resources.items()},
        registry=next((result.registry for result in found if result.registry), None),
        reused=sum(result.reused for result in found),
        measured=sum(result.measured for result in found),
        warnings=tuple(dict.fromkeys(text for result in found for text in result.warnings)),
        not_kept=next((result.not_kept for result in found if result.not_kept), None),
    )


@dataclass(frozen=True)
class BuildReport:
    """Results of compiling a set for an architecture, and what was rejected before."""

    arch: str
    nvrtc: str
    results: tuple[BuildResult, ...]
    rejected: tuple[tuple[Variant, Rejected], ...]


@dataclass(frozen=True)
class VerifyReport:
    """Verdict (or the outcome that prevented one) per variant."""

    verdicts: Mapping[str, Verdict]  # by variant key
    failures: tuple[Attempt, ...]  # did not compile, crashed, timed out
    rejected: tuple[tuple[Variant, Rejected], ...]
    interrupted: bool = False  # by Ctrl-C: the rest has no verdict


@dataclass(frozen=True)
class ProfileResult:
    """Measurements with counters of a few configs and references, and the report kept."""

    attempts: tuple[Attempt, ...]
    resources: Mapping[str, Resources]
    source: str
    export: Path | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check:
    """One line of `doctor`: what was looked at, whether it is fine, and what to do if not."""

    name: str
    ok: bool | None  # None: not applicable here
    detail: str
    fix: str | None = None
