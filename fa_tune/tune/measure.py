"""Measuring with a profiler: what the journal holds is not measured again, the rest is written
to the journal attempt by attempt."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fa_tune.core import input_files
from fa_tune.core.model import Artifact, Attempt, Outcome, Variant, is_reference, reference_subject
from fa_tune.core.stats import MARGIN, median
from fa_tune.core.workload import Workload
from fa_tune.profile.base import MeasurePlan
from fa_tune.search.stopping import undecided
from fa_tune.store.journal import AttemptRecord, Fingerprint, Journal
from fa_tune.tune.build import PreparedWorkload
from fa_tune.tune.fleet.cross_gpu import gpu_of, gpus_of, normalise
from fa_tune.tune.results import Exploration
from fa_tune.tune.session import Session

SCOUTED = "scouted"  # beside how a scout's samples were taken: they stand for nothing else
LONGER = 2  # times as many samples again, in stages, where the order is open
FINALIST_WITHIN = 1.02  # of the leader in the first sample, whose worst error seen is 1.4 %


@dataclass(frozen=True)
class Sampling:
    """How the variants of one workload are compared.

    `keep` are subjects that get as many samples as the leader; the first is the default, and
    `margin` is what it has to be beaten by (see `search.stopping`).  `order` names the artifacts
    as a tie prefers them.  Not `adaptive`: exactly `runs` samples of each.  `search` tells one
    search from another: what others are compared with must come from the same one.  Not
    `journaled`: all is measured now, and nothing of it kept.
    """

    keep: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    margin: float = MARGIN
    adaptive: bool = True
    search: str = ""
    journaled: bool = True


@dataclass(frozen=True)
class MeasuredWorkload:
    """One workload with everything measured on it: `attempts` to decide by, `others` that ended
    before the final; `defaults` are subjects, the first one measured is the default."""

    prepared: PreparedWorkload
    attempts: tuple[Attempt, ...]
    defaults: tuple[str, ...]
    others: tuple[Attempt, ...] = ()
    exploration: Exploration | None = None


def measure_workload(
    session: Session,
    workload: Workload,
    artifacts: Mapping[str, Artifact],
    sampling: Sampling,
) -> list[Attempt]:
    """Attempts at every artifact and reference of one workload.

    A profiler that is not adaptive by itself measures in stages: everyone gets one sample, and
    those within 2 % of the leader, the references and `keep` get the rest: `runs` in all.  While
    the order is not decided, those it is open for and `keep` get twice as many again.
    """
    measure = session.measure
    input_files.check(measure.inputs, workload)
    plan = MeasurePlan(
        workload=workload,
        artifacts=artifacts,
        references=measure.references,
        runs=session.runs,
        seed=measure.seed,
        keep=sampling.keep,
        item_timeout_s=measure.item_timeout_s,
        device=session.machine.options.device,
        adaptive=sampling.adaptive,
        gpu=session.machine.gpu_uuid,
        order=sampling.order,
        margin=sampling.margin,
        inputs=measure.inputs,
    )
    able = session.capabilities
    if not able.measures_anew:
        return _replayed(session, plan)
    profiler = JournaledProfiler(session, sampling, artifacts)
    if able.adaptive or plan.runs == 1 or not plan.adaptive:
        return list(profiler.attempts(plan).values())
    return list(_in_stages(profiler, plan).values())


def _replayed(session: Session, plan: MeasurePlan) -> list[Attempt]:
    session.progress.stage(f"replay {plan.workload.key}", len(plan.subjects))
    attempts = list(session.selection.profiler.measure(plan, session.progress.advance))
    session.tally.reused += len(attempts)
    return attempts


def _in_stages(profiler: JournaledProfiler, plan: MeasurePlan) -> dict[str, Attempt]:
    """One sample of everyone, the rest of the finalists', and more where the order is open."""
    runs, keep = plan.runs, plan.keep
    everyone = profiler.attempts(dataclasses.replace(plan, runs=1))
    finalists = _finalists(everyone, keep)
    final = dataclasses.replace(
        plan,
        artifacts={s: a for s, a in plan.artifacts.items() if s in finalists},
        references=tuple(r for r in plan.references if reference_subject(r) in finalists),
        runs=runs - 1,
        seed=plan.seed + 1,
    )
    for subject, more in profiler.attempts(final, runs=runs).items():
        everyone[subject] = _joined(everyone[subject], more)
    times = {
        s: a.measurement.samples_s
        for s, a in everyone.items()
        if s in final.artifacts and a.measurement is not None
    }
    default = next((s for s in keep if s in times), "")
    if left := undecided(times, default, plan.order, plan.margin):
        last = dataclasses.replace(
            final,
            artifacts={s: a for s, a in plan.artifacts.items() if s in {*left, *keep} & set(times)},
            references=(),
            runs=LONGER * runs,
            seed=plan.seed + 2,
        )
        for subject, more in profiler.attempts(last, runs=(1 + LONGER) * runs).items():
            everyone[subject] = _joined(everyone[subject], more)
    return everyone


def _finalists(attempts: Mapping[str, Attempt], keep: Sequence[str]) -> set[str]:
    times = {s: median(a.measurement.samples_s) for s, a in attempts.items() if a.measurement}
    candidates = [t for s, t in times.items() if not is_reference(s)]
    leader = min(candidates, default=0.0)
    return {
        s for s, t in times.items() if is_reference(s) or s in keep or t <= leader * FINALIST_WITHIN
    }


def _joined(first: Attempt, more: Attempt) -> Attempt:
    """One attempt with the samples of both rounds; a failure in the second is what counts."""
    if first.measurement is None or more.measurement is None:
        return more
    samples = first.measurement.samples_s + more.measurement.samples_s
    return dataclasses.replace(
        more, measurement=dataclasses.replace(more.measurement, samples_s=samples)
    )


class JournaledProfiler:
    """The profiler behind the journal, for variants of one workload.

    A variant that any search has finished under the same fingerprint is not measured again.
    References and `keep`, which every ratio rests on, are measured again beside variants that
    are new, unless it was this very search that measured them and was interrupted.
    """

    def __init__(self, session: Session, sampling: Sampling, subjects: Iterable[str]) -> None:
        self._session = session
        self._search = sampling.search
        self._journaled = sampling.journaled
        # Of all variants, whoever is measured in one plan.
        self._families = tuple(dict.fromkeys(Variant.from_key(s).family for s in subjects))

    def attempts(self, plan: MeasurePlan, *, runs: int | None = None) -> dict[str, Attempt]:
        """Every subject's attempt, from the journal or new; `runs` is what the journal files
        it under when a plan is one part of a larger number of runs."""
        fingerprints = self._fingerprints(plan, runs or plan.runs)
        found: dict[str, Attempt] = {}
        known: dict[str, tuple[str, float]] = {}  # before anything is measured here
        if self._journaled and self._session.reuse:
            journal = self._session.journal
            digests = {subject: f.digest for subject, f in fingerprints.items()}
            for subject in plan.subjects:
                old = journal.find(digests[subject], subject, plan.workload.key)
                if old is not None:
                    found[subject] = old
            known = reference_times(journal, plan.keep, plan.workload.key, digests)
            if not _is_complete(found, plan):
                found = {
                    s: a
                    for s, a in found.items()
                    if self._can_normalise(a, known) and not self._from_other_search(s, a, plan)
                }
        self._session.tally.reused += len(found)
        rest = dataclasses.replace(
            plan,
            artifacts={s: a for s, a in plan.artifacts.items() if s not in found},
            references=tuple(r for r in plan.references if reference_subject(r) not in found),
        )
        if rest.subjects:
            found |= self._measure(rest, fingerprints)
        found = normalise(found, self._session.machine.gpu_uuid, known)
        return {s: found[s] for s in plan.subjects if s in found}

    def _measure(
        self, plan: MeasurePlan, fingerprints: Mapping[str, Fingerprint]
    ) -> dict[str, Attempt]:
        """New attempts, each in the journal as soon as it is final."""
        session, progress = self._session, self._session.progress
        progress.stage(f"measure {plan.workload.key}", len(plan.subjects) * plan.runs)
        found = {}
        best = float("inf")
        for measured in session.selection.profiler.measure(plan, progress.advance):
            attempt = self._tagged(measured, plan)
            found[attempt.subject] = attempt
            session.tally.measured += 1
            if self._journaled:
                session.journal.append(AttemptRecord(fingerprints[attempt.subject], attempt))
            if attempt.outcome is not Outcome.OK:
                progress.warn(f"{attempt.subject}: {attempt.outcome}: {attempt.reason}")
            elif attempt.measurement and not is_reference(attempt.subject):
                time_s = median(attempt.measurement.samples_s)
                if time_s < best:
                    best = time_s
                    progress.leader(f"{attempt.subject} {time_s * 1e3:.3f} ms")
        return found

    def _fingerprints(self, plan: MeasurePlan, runs: int) -> dict[str, Fingerprint]:
        """The fingerprint of each subject's attempt."""

        def fingerprint(*names: str) -> Fingerprint:
            found = self._session.fingerprint(runs, names)
            if plan.adaptive or self._session.capabilities.independent_samples:
                return found
            # A few samples in a process of their own are no measurement beside the leader.
            return dataclasses.replace(found, clock_policy=f"{found.clock_policy}, {SCOUTED}")

        own = {name: fingerprint(name) for name in self._families}
        of_references = fingerprint(*self._families)
        return {s: own.get(Variant.from_key(s).family, of_references) for s in plan.subjects}

    def _can_normalise(self, attempt: Attempt, known: Mapping[str, tuple[str, float]]) -> bool:
        """Whether an attempt may stand beside those of this GPU, as it is or scaled."""
        there, here = gpu_of(attempt), self._session.machine.gpu_uuid
        return not there or not here or there in known or attempt.measurement is None

    def _from_other_search(self, subject: str, attempt: Attempt, plan: MeasurePlan) -> bool:
        """Whether a base of comparison was measured by another search, or on another GPU."""
        if not is_reference(subject) and subject not in plan.keep:
            return False
        measurement = attempt.measurement
        if measurement is None:
            return False
        here = self._session.machine.gpu_uuid
        elsewhere = bool(here) and gpu_of(attempt) not in ("", here)
        return elsewhere or measurement.search != self._search

    def _tagged(self, attempt: Attempt, plan: MeasurePlan) -> Attempt:
        """The attempt with the names of this search, of its GPU and of its inputs."""
        measurement = attempt.measurement
        if measurement is None:
            return attempt
        search = self._search or measurement.search
        gpu_uuid = self._session.machine.gpu_uuid or measurement.gpu_uuid
        tagged = dataclasses.replace(
            measurement, search=search, gpu_uuid=gpu_uuid, inputs=str(plan.inputs)
        )
        return dataclasses.replace(attempt, measurement=tagged)


def _is_complete(found: Mapping[str, Attempt], plan: MeasurePlan) -> bool:
    """Whether nothing is left to measure, and all was measured on one GPU."""
    return all(s in found for s in plan.artifacts) and len(gpus_of(found)) < 2


def reference_times(
    journal: Journal, keep: Sequence[str], workload: str, digests: Mapping[str, str]
) -> dict[str, tuple[str, float]]:
    """For each GPU that the journal knows, a subject of `keep` measured there last (the first
    of `keep` that there is) and its median; `digests` are the fingerprints by subject."""
    found: dict[str, tuple[str, float]] = {}
    for subject in reversed(keep):
        for record in journal.history(subject, workload):
            uuid = gpu_of(record.attempt)
            if uuid and record.fingerprint.digest == digests.get(subject):
                assert record.attempt.measurement is not None
                found[uuid] = subject, median(record.attempt.measurement.samples_s)
    return found
