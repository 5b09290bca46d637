"""Measuring with a profiler: what the journal holds is not measured again, the rest is written
to the journal attempt by attempt."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fa_tune import families
from fa_tune.build import nvrtc
from fa_tune.build.compile import kernel_source_identity
from fa_tune.core.model import (
    Artifact,
    Attempt,
    Outcome,
    Variant,
    Workload,
    is_reference,
    reference_subject,
)
from fa_tune.core.options import MeasureOptions, Progress, SearchOptions
from fa_tune.families.base import KernelFamily
from fa_tune.fleet.cross_gpu import board_of, boards_of, carried
from fa_tune.profile.base import MeasurePlan
from fa_tune.profile.replay import ReplayProfiler
from fa_tune.profile.stats import MARGIN, median
from fa_tune.profile.stopping import undecided
from fa_tune.store.journal import AttemptRecord, Fingerprint, Journal
from fa_tune.tune.profilers import Measured
from fa_tune.tune.session import Context

SCOUTED = "scouted"  # beside how a scout's samples were taken: they stand for nothing else
LONGER = 2  # times as many samples again, under ncu, where the order is open
FINALIST_WITHIN = 1.02  # of the leader in the first sample, whose worst error seen is 1.4 %


def fingerprint(
    measured: Measured, context: Context, runs: int, names: Sequence[str]
) -> Fingerprint:
    """What an attempt of this search depends on: one at a variant, with its family's name, on
    that family's sources and architecture; one at a reference, which is measured for
    comparison, on those of all families beside it."""
    profiler = measured.profiler
    names = sorted(set(names)) or sorted(families.family_names())
    archs = (families.get(name).compile_arch(context.limits) for name in names)
    return Fingerprint(
        kernel_source_sha256=kernel_source_identity(*names),
        nvrtc=nvrtc.version(),
        arch="+".join(dict.fromkeys(archs)),
        driver=measured.device.driver,
        gpu=measured.device.name,
        method=profiler.method,
        profiler_version=profiler.version,
        metrics=profiler.metrics,
        clock_policy=profiler.clock_policy,
        cache_policy=profiler.cache_policy,
        runs=runs,
    )


def search_id(options: SearchOptions, chosen: Sequence[KernelFamily]) -> str:
    """The same for a search and its resumption, different for a search of another set, by
    another strategy, or of other kernel sources."""
    sources = (f"{f.name} {kernel_source_identity(f.name)}" for f in chosen)
    parts = [options.kernels, *options.axes, *options.measure.references, *sources]
    if options.explores:  # whose final has other members, each time
        budget = options.measurements, options.seconds, options.audit
        parts += [options.strategy, *map(str, budget), str(options.measure.seed)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


@dataclass
class Tally:
    """Attempts taken from the journal and attempts made now."""

    reused: int = 0
    measured: int = 0


def measure_workload(
    workload: Workload,
    artifacts: Mapping[str, Artifact],
    *,
    options: MeasureOptions,
    measured: Measured,
    context: Context,
    journal: Journal | None,
    reuse: bool,
    keep: Sequence[str],
    progress: Progress,
    tally: Tally,
    adaptive: bool = True,
    search: str = "",
    order: Sequence[str] = (),
    margin: float = MARGIN,
) -> list[Attempt]:
    """Attempts at every artifact and reference of one workload.  Not `adaptive`: exactly
    `runs` samples of each.  `search` tells one search from another: what others are compared
    with must come from the same one (see `_Book`).  `order` names the artifacts as a tie prefers
    them, and `margin` is what the default has to be beaten by (see `profile.stopping`).

    Under ncu, where a launch costs a fifth of a second, everyone gets one sample and those
    within 2 % of the leader, the references and `keep` get the rest: `runs` in all.  While the
    order is not decided, those it is open for and `keep` get twice as many again.
    """
    runs = options.runs or measured.profiler.default_runs
    plan = MeasurePlan(
        workload=workload,
        artifacts=artifacts,
        references=options.references,
        runs=runs,
        seed=options.seed,
        keep=tuple(keep),
        item_timeout_s=options.item_timeout_s,
        device=context.options.device,
        adaptive=adaptive,
        board=context.board,
        order=tuple(order),
        margin=margin,
    )
    if isinstance(measured.profiler, ReplayProfiler):
        progress.stage(f"replay {workload.key}", len(plan.subjects))
        attempts = list(measured.profiler.measure(plan, progress.advance))
        tally.reused += len(attempts)
        return attempts
    names = tuple(dict.fromkeys(Variant.from_key(subject).family for subject in artifacts))
    book = _Book(measured, context, journal, reuse, progress, tally, search, names)
    if measured.profiler.method != "ncu" or runs == 1 or not adaptive:
        return list(book.attempts(plan).values())
    everyone = book.attempts(dataclasses.replace(plan, runs=1))
    finalists = _finalists(everyone, keep)
    final = dataclasses.replace(
        plan,
        artifacts={s: a for s, a in artifacts.items() if s in finalists},
        references=tuple(r for r in plan.references if reference_subject(r) in finalists),
        runs=runs - 1,
        seed=options.seed + 1,
    )
    for subject, more in book.attempts(final, runs=runs).items():
        everyone[subject] = _joined(everyone[subject], more)
    times = {
        s: a.measurement.samples_s
        for s, a in everyone.items()
        if s in final.artifacts and a.measurement is not None
    }
    default = next((s for s in keep if s in times), "")
    if left := undecided(times, default, order, margin):
        last = dataclasses.replace(
            final,
            artifacts={s: a for s, a in artifacts.items() if s in {*left, *keep} & set(times)},
            references=(),
            runs=LONGER * runs,
            seed=options.seed + 2,
        )
        for subject, more in book.attempts(last, runs=(1 + LONGER) * runs).items():
            everyone[subject] = _joined(everyone[subject], more)
    return list(everyone.values())


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


class _Book:
    """The profiler behind the journal.

    A variant that any search has finished under the same fingerprint is not measured again.
    References and `keep`, which every ratio rests on, are measured again beside variants that
    are new, unless it was this very search that measured them and was interrupted.
    """

    def __init__(
        self,
        measured: Measured,
        context: Context,
        journal: Journal | None,
        reuse: bool,
        progress: Progress,
        tally: Tally,
        search: str,
        families: Sequence[str],
    ) -> None:
        self._search = search
        self._families = families  # of all variants, whoever is measured in one plan
        self._measured = measured
        self._context = context
        self._journal = journal
        self._reuse = reuse
        self._progress = progress
        self._tally = tally

    def attempts(self, plan: MeasurePlan, *, runs: int | None = None) -> dict[str, Attempt]:
        """Every subject's attempt, from the journal or new; `runs` is what the journal files
        it under when a plan is one part of a larger number of runs."""
        marks = self._marks(plan, runs or plan.runs)
        found: dict[str, Attempt] = {}
        known: dict[str, tuple[str, float]] = {}  # before anything is measured here
        if self._journal is not None and self._reuse:
            for subject in plan.subjects:
                old = self._journal.find(marks[subject].digest, subject, plan.workload.key)
                if old is not None:
                    found[subject] = old
            known = reference_times(self._journal, plan.keep, plan.workload.key, _digests(marks))
            if not _is_whole(found, plan):
                found = {s: a for s, a in found.items() if self._can_carry(a, known)}
                found = {s: a for s, a in found.items() if not self._is_foreign(s, a, plan)}
        self._tally.reused += len(found)
        rest = dataclasses.replace(
            plan,
            artifacts={s: a for s, a in plan.artifacts.items() if s not in found},
            references=tuple(r for r in plan.references if reference_subject(r) not in found),
        )
        if rest.subjects:
            name = f"measure {plan.workload.key}"
            self._progress.stage(name, len(rest.subjects) * plan.runs)
            best = float("inf")
            for attempt in self._measured.profiler.measure(rest, self._progress.advance):
                attempt = self._signed(attempt)
                found[attempt.subject] = attempt
                self._tally.measured += 1
                if self._journal is not None:
                    self._journal.append(AttemptRecord(marks[attempt.subject], attempt))
                if attempt.outcome is not Outcome.OK:
                    self._progress.warn(f"{attempt.subject}: {attempt.outcome}: {attempt.reason}")
                elif attempt.measurement and not is_reference(attempt.subject):
                    time_s = median(attempt.measurement.samples_s)
                    if time_s < best:
                        best = time_s
                        self._progress.leader(f"{attempt.subject} {time_s * 1e3:.3f} ms")
        found = carried(found, self._context.board, known)
        return {s: found[s] for s in plan.subjects if s in found}

    def _can_carry(self, attempt: Attempt, known: Mapping[str, tuple[str, float]]) -> bool:
        """Whether an attempt may stand beside those of this board, as it is or scaled."""
        board = board_of(attempt)
        return not board or not self._context.board or board in known or attempt.measurement is None

    def _marks(self, plan: MeasurePlan, runs: int) -> dict[str, Fingerprint]:
        """The fingerprint of each subject's attempt."""

        def mark(*names: str) -> Fingerprint:
            found = fingerprint(self._measured, self._context, runs, names)
            if plan.adaptive or self._measured.profiler.method == "ncu":
                return found
            # A few samples in a process of their own are no measurement beside the leader; under
            # ncu, where every launch stands alone, they are.
            return dataclasses.replace(found, clock_policy=f"{found.clock_policy}, {SCOUTED}")

        own = {name: mark(name) for name in self._families}
        of_references = mark(*self._families)
        return {s: own.get(Variant.from_key(s).family, of_references) for s in plan.subjects}

    def _is_foreign(self, subject: str, attempt: Attempt, plan: MeasurePlan) -> bool:
        """Whether a base of comparison was measured by another search, or on another board."""
        if not is_reference(subject) and subject not in plan.keep:
            return False
        measurement = attempt.measurement
        if measurement is None:
            return False
        here = self._context.board
        elsewhere = bool(here) and board_of(attempt) not in ("", here)
        return elsewhere or measurement.search != self._search

    def _signed(self, attempt: Attempt) -> Attempt:
        """The attempt with this search's mark, and its board's."""
        measurement = attempt.measurement
        if measurement is None:
            return attempt
        search = self._search or measurement.search
        gpu_uuid = self._context.board or measurement.gpu_uuid
        signed = dataclasses.replace(measurement, search=search, gpu_uuid=gpu_uuid)
        return dataclasses.replace(attempt, measurement=signed)


def _digests(marks: Mapping[str, Fingerprint]) -> dict[str, str]:
    return {subject: mark.digest for subject, mark in marks.items()}


def _is_whole(found: Mapping[str, Attempt], plan: MeasurePlan) -> bool:
    """Whether nothing is left to measure, and all was measured on one board."""
    return all(s in found for s in plan.artifacts) and len(boards_of(found)) < 2


def reference_times(
    journal: Journal, keep: Sequence[str], workload: str, digests: Mapping[str, str]
) -> dict[str, tuple[str, float]]:
    """For each board that the journal knows, a subject of `keep` measured there last (the first
    of `keep` that there is) and its median; `digests` are the fingerprints by subject."""
    found: dict[str, tuple[str, float]] = {}
    for subject in reversed(keep):
        for record in journal.history(subject, workload):
            board = board_of(record.attempt)
            if board and record.fingerprint.digest == digests.get(subject):
                assert record.attempt.measurement is not None
                found[board] = subject, median(record.attempt.measurement.samples_s)
    return found
