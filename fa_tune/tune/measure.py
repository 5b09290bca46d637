"""Measuring with a profiler: what the journal holds is not measured again, the rest is written
to the journal attempt by attempt."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from fa_tune import libraries
from fa_tune.core import input_files
from fa_tune.core.model import (
    Artifact,
    Attempt,
    Outcome,
    Variant,
    is_reference,
    reference_name,
    reference_subject,
)
from fa_tune.core.stats import MARGIN, median
from fa_tune.core.stopping import undecided
from fa_tune.core.workload import Workload
from fa_tune.profile.base import MeasurePlan
from fa_tune.store.fingerprint import Fingerprint
from fa_tune.store.journal_records import AttemptRecord
from fa_tune.tune.build import PreparedWorkload
from fa_tune.tune.results import Exploration
from fa_tune.tune.session import Session

SCOUTED = "scouted"  # beside how a scout's samples were taken: they stand for nothing else
LONGER = 2  # times as many samples again, in stages, where the order is open
FINALIST_WITHIN = 1.02  # of the leader in the first sample, whose worst error seen is 1.4 %


@dataclass(frozen=True)
class Request:
    """What is compared on one workload, and how: `plan`.

    `families` are those of all variants of the workload, whoever is in the plan; `after` is how
    many samples of each were taken before these.  `search` tells one search from another: what
    others are compared with must come from the same one.  Not `journaled`: all is measured now,
    and nothing of it kept.
    """

    plan: MeasurePlan
    families: tuple[str, ...]
    search: str = ""
    journaled: bool = True
    after: int = 0

    def only(
        self, subjects: Collection[str], references: tuple[str, ...], runs: int, *, after: int
    ) -> Request:
        """More samples of some, in another order."""
        plan = replace(
            self.plan,
            artifacts={s: a for s, a in self.plan.artifacts.items() if s in subjects},
            references=references,
            runs=runs,
            seed=self.plan.seed + 1,
        )
        return replace(self, plan=plan, after=after)


def request_for(
    session: Session,
    workload: Workload,
    artifacts: Mapping[str, Artifact],
    *,
    keep: tuple[str, ...] = (),
    order: tuple[str, ...] = (),
    margin: float = MARGIN,
    adaptive: bool = True,
    search: str = "",
    journaled: bool = True,
) -> Request:
    """The comparison of `artifacts`, by subject, on a workload under the session's conditions.

    `keep` are subjects that get as many samples as the leader; the first is the default, and
    `margin` is what it has to be beaten by (see `core.stopping`).  `order` names the artifacts
    as a tie prefers them.  Not `adaptive`: exactly `runs` samples of each.
    """
    measure = session.measure
    input_files.check(measure.inputs, workload)
    plan = MeasurePlan(
        workload=workload,
        artifacts=artifacts,
        references=measure.references,
        runs=session.runs,
        seed=measure.seed,
        keep=keep,
        item_timeout_s=measure.item_timeout_s,
        device=session.machine.options.device,
        adaptive=adaptive,
        gpu=session.machine.gpu_uuid,
        order=order,
        margin=margin,
        inputs=measure.inputs,
    )
    names = tuple(dict.fromkeys(a.variant.family for a in artifacts.values()))
    return Request(plan, names, search, journaled)


@dataclass(frozen=True)
class MeasuredWorkload:
    """One workload with everything measured on it: `attempts` to decide by, `others` that ended
    before the final; `defaults` are subjects, the first one measured is the default."""

    prepared: PreparedWorkload
    attempts: tuple[Attempt, ...]
    defaults: tuple[str, ...]
    others: tuple[Attempt, ...] = ()
    exploration: Exploration | None = None


def measured(session: Session, requests: Sequence[Request]) -> list[list[Attempt]]:
    """Attempts at every artifact and reference of each request, all of them adaptive or none.

    A profiler that is not adaptive by itself measures in stages: everyone gets one sample, and
    those within 2 % of the leader, the references and `keep` get the rest: `runs` in all.  While
    the order is not decided, those it is open for and `keep` get twice as many again.  Each stage
    is one of all workloads.
    """
    able = session.capabilities
    if not able.measures_anew:
        return [_replayed(session, request.plan) for request in requests]
    profiler = JournaledProfiler(session)
    staged = not able.adaptive and session.runs > 1 and all(r.plan.adaptive for r in requests)
    found = _in_stages(profiler, requests) if staged else profiler.attempts(requests)
    return [list(attempts.values()) for attempts in found]


def _replayed(session: Session, plan: MeasurePlan) -> list[Attempt]:
    session.progress.stage(f"replay {plan.workload.key}", len(plan.subjects))
    attempts = list(session.selection.profiler.measure_all([plan], session.progress.advance))
    session.tally.reused += len(attempts)
    return attempts


def _in_stages(profiler: JournaledProfiler, requests: Sequence[Request]) -> list[Attempts]:
    """One sample of everyone, the rest of the finalists', and more where the order is open."""
    once = [replace(r, plan=replace(r.plan, runs=1)) for r in requests]
    everyone = profiler.attempts(once)
    finals = [_final(a, found) for a, found in zip(requests, everyone, strict=True)]
    _join(everyone, profiler.attempts(finals))
    last = [_longer(f, found) for f, found in zip(finals, everyone, strict=True)]
    _join(everyone, profiler.attempts(last))
    return everyone


def _final(request: Request, found: Attempts) -> Request:
    """The finalists' other samples."""
    plan, runs = request.plan, request.plan.runs
    finalists = _finalists(found, plan.keep)
    references = tuple(r for r in plan.references if reference_subject(r) in finalists)
    return request.only(finalists, references, runs - 1, after=1)


def _longer(final: Request, found: Attempts) -> Request:
    """More samples of those finalists for whom the order is open; of none where it is decided."""
    plan, runs = final.plan, final.after + final.plan.runs
    times = {
        s: a.measurement.samples_s
        for s, a in found.items()
        if s in plan.artifacts and a.measurement is not None
    }
    default = next((s for s in plan.keep if s in times), "")
    left = undecided(times, default, plan.order, plan.margin)
    wanted = {*left, *plan.keep} & set(times) if left else set()
    return final.only(wanted, (), LONGER * runs, after=runs)


def _join(everyone: Sequence[Attempts], more: Sequence[Attempts]) -> None:
    """Add the samples of a further round."""
    for found, further in zip(everyone, more, strict=True):
        found |= {s: _joined(found[s], attempt) for s, attempt in further.items()}


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
    return replace(more, measurement=replace(more.measurement, samples_s=samples))


Attempts = dict[str, Attempt]  # by subject


@dataclass(frozen=True)
class _Looked:
    """What the journal holds of a plan; `rest` is what it does not hold."""

    request: Request
    fingerprints: Mapping[str, Fingerprint]
    found: Attempts
    rest: MeasurePlan


class JournaledProfiler:
    """The profiler behind the journal.

    A variant that any search has finished under the same fingerprint is not measured again.
    References and `keep`, which every ratio rests on, are measured again beside variants that
    are new; not so where each sample stands alone and this very search took them before it was
    interrupted.  Ratios to another baseline than that of the new ones are not taken over.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def attempts(self, requests: Sequence[Request]) -> list[Attempts]:
        """Every subject's attempt of each plan, from the journal or new."""
        looked = [self._look(one) for one in requests]
        fresh = self._measure([one for one in looked if one.rest.subjects])
        results = []
        for one in looked:
            plan = one.request.plan
            found = one.found | fresh.get(plan.workload.key, {})
            results.append({s: found[s] for s in plan.subjects if s in found})
        return results

    def _look(self, request: Request) -> _Looked:
        plan, search = request.plan, request.search
        fingerprints = self._fingerprints(request)
        found: Attempts = {}
        if request.journaled and self._session.reuse:
            journal = self._session.journal
            digests = {subject: f.digest for subject, f in fingerprints.items()}
            for subject in plan.subjects:
                old = journal.find(digests[subject], subject, plan.workload.key)
                # Older journals have parts of a measurement under the number of the whole.
                if old and not (old.measurement and len(old.measurement.samples_s) < plan.runs):
                    found[subject] = old
            if not _is_complete(found, plan):
                baseline, here = _baseline_beside(found, plan), self._session.machine.gpu_uuid
                found = {
                    s: a
                    for s, a in found.items()
                    if (not here or a.gpu_uuid in ("", here))  # as far as it is known
                    and _baseline_of(a) in ("", baseline)
                    and not self._from_other_search(s, a, plan, search)
                }
        self._session.tally.reused += len(found)
        rest = replace(
            plan,
            artifacts={s: a for s, a in plan.artifacts.items() if s not in found},
            references=tuple(r for r in plan.references if reference_subject(r) not in found),
        )
        return _Looked(request, fingerprints, found, rest)

    def _measure(self, looked: Sequence[_Looked]) -> dict[str, Attempts]:
        """New attempts by workload, each in the journal as soon as it is final."""
        if not looked:
            return {}
        session, progress = self._session, self._session.progress
        by_workload = {one.rest.workload.key: one for one in looked}
        several = len(looked) > 1
        name = f"{len(looked)} workloads" if several else next(iter(by_workload))
        progress.stage(
            f"measure {name}", sum(len(one.rest.subjects) * one.rest.runs for one in looked)
        )
        found: dict[str, Attempts] = {key: {} for key in by_workload}
        best: dict[str, float] = {}
        plans = [one.rest for one in looked]
        for measured in session.selection.profiler.measure_all(plans, progress.advance):
            key = measured.workload
            one = by_workload[key]
            attempt = self._tagged(measured, one)
            found[key][attempt.subject] = attempt
            session.tally.measured += 1
            if one.request.journaled:
                session.journal.append(AttemptRecord(one.fingerprints[attempt.subject], attempt))
            if attempt.outcome is not Outcome.OK:
                progress.warn(f"{attempt.subject}: {attempt.outcome}: {attempt.reason}")
            elif attempt.measurement and not is_reference(attempt.subject):
                time_s = median(attempt.measurement.samples_s)
                if time_s < best.get(key, float("inf")):
                    best[key] = time_s
                    text = f"{attempt.subject} {time_s * 1e3:.3f} ms"
                    progress.leader(f"{key}: {text}" if several else text)
        return found

    def _fingerprints(self, request: Request) -> dict[str, Fingerprint]:
        plan = request.plan

        def fingerprint(*names: str) -> Fingerprint:
            found = self._session.fingerprint(plan.runs, names)
            found = replace(found, after=request.after)
            if plan.adaptive or self._session.capabilities.independent_samples:
                return found
            # A few samples in a process of their own are no measurement beside the leader.
            return replace(found, clock_policy=f"{found.clock_policy}, {SCOUTED}")

        own = {name: fingerprint(name) for name in request.families}
        of_references = fingerprint(*request.families)
        return {
            s: replace(of_references, library=libraries.installed(reference_name(s)))
            if is_reference(s)
            else own[Variant.from_key(s).family]
            for s in plan.subjects
        }

    def _from_other_search(
        self, subject: str, attempt: Attempt, plan: MeasurePlan, search: str
    ) -> bool:
        """Whether a base of comparison was measured by another search.  An adaptive profiler's
        never stand beside samples of another run of it."""
        if not is_reference(subject) and subject not in plan.keep:
            return False
        measurement = attempt.measurement
        if measurement is None:
            return False
        return self._session.capabilities.adaptive or measurement.search != search

    def _tagged(self, attempt: Attempt, looked: _Looked) -> Attempt:
        """The attempt with the names of this search, of its GPU and of its inputs."""
        measurement = attempt.measurement
        if measurement is None:
            return attempt
        search = looked.request.search or measurement.search
        gpu_uuid = self._session.machine.gpu_uuid or measurement.gpu_uuid
        tagged = replace(
            measurement, search=search, gpu_uuid=gpu_uuid, inputs=str(looked.rest.inputs)
        )
        return replace(attempt, measurement=tagged)


def _is_complete(found: Mapping[str, Attempt], plan: MeasurePlan) -> bool:
    """Whether nothing is left to measure, and all was measured on one GPU and has ratios to one
    baseline."""
    baselines = {_baseline_of(attempt) for attempt in found.values()} - {""}
    gpus = {attempt.gpu_uuid for attempt in found.values()} - {""}
    return all(s in found for s in plan.artifacts) and len(gpus) < 2 and len(baselines) < 2


def _baseline_of(attempt: Attempt) -> str:
    """What an attempt's ratios are over; empty without ratios, or where it is not known."""
    return attempt.measurement.baseline if attempt.measurement is not None else ""


def _baseline_beside(found: Attempts, plan: MeasurePlan) -> str:
    """The baseline of what is measured beside `found`: who failed is not measured again."""
    failed = {s for s, attempt in found.items() if attempt.measurement is None}
    able = {s: a for s, a in plan.artifacts.items() if s not in failed}
    return replace(plan, artifacts=able).baseline
