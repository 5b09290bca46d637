"""After the decision: an A/B test of the choice against the default, as a program would run them.

One fresh process takes all workloads of a search, or of several GPUs each has one that takes
its share; a workload costs about a second, and what comes out is in the journal.  Where a choice
turns out to gain nothing, the default takes its place.  A library that is to be called in the place
of the choice is tested against it in the same way.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fa_tune import families, libraries
from fa_tune.core import codec
from fa_tune.core.comparison import Confirmation
from fa_tune.core.errors import ToolMissing
from fa_tune.core.jobs import ABTestItem, ABTestJob, ABTestResult
from fa_tune.core.model import (
    Attempt,
    Measurement,
    Outcome,
    Variant,
    is_reference,
    reference_name,
    reference_subject,
)
from fa_tune.core.options import Progress
from fa_tune.core.stats import Ratio, paired_ratio
from fa_tune.core.workload import FORWARD
from fa_tune.search.decide import Decision, beats, faster_reference, keep_default
from fa_tune.store.fingerprint import Fingerprint
from fa_tune.store.journal_records import AttemptRecord
from fa_tune.store.registry import file as registry_file
from fa_tune.store.registry.schema import Registry, Served
from fa_tune.tune.dispatch import Request, run_items_on_gpus
from fa_tune.tune.fleet.gpu import WorkerGpu
from fa_tune.tune.outputs import entry_of, recorded_decision
from fa_tune.tune.results import WorkloadResult
from fa_tune.tune.session import ProfilerSelection, Session
from fa_tune.workers.supervisor import ItemResult

METHOD = "runtime"
OTHER_INPUTS = 1000  # beyond the search's seed


@dataclass(frozen=True)
class _Test:
    """Two subjects of a workload, the preferred one first, the registries that lead a program to
    them, and what a library among them is, as a fingerprint has it."""

    key: str  # of the workload
    pair: tuple[str, str]
    registries: tuple[Registry, Registry]
    library: str = ""

    @property
    def subject(self) -> str:
        """What the journal calls the comparison."""
        return f"{METHOD}:{self.pair[0]} / {self.pair[1]}"

    def fingerprint(self, session: Session) -> Fingerprint:
        ours = [s for s in self.pair if not is_reference(s)]
        found = session.fingerprint_without_profiler(METHOD, ours)
        return dataclasses.replace(found, library=self.library) if self.library else found


def confirm_all(session: Session, results: Sequence[WorkloadResult]) -> list[WorkloadResult]:
    """The results, each choice that is not the default confirmed, or replaced by the default
    where the test contradicts it.  A replay has no GPU to ask, and takes what its recording holds.

    A test that cannot be made is a warning: the choice then stands unconfirmed.
    """
    if not session.capabilities.measures_anew:
        return [_as_recorded(r, session.selection, session.progress) for r in results]
    found = _test(session, [test for r in results if (test := _of_choice(r, session))])
    return [_with(r, found.get(r.workload.key), session.progress) for r in results]


def serve_all(session: Session, results: Sequence[WorkloadResult]) -> list[WorkloadResult]:
    """The results, each with the library that is faster than its choice, by the measurements and
    as a program calls both.  A replay has no GPU to ask: there is none."""
    if not session.capabilities.measures_anew:
        return list(results)
    tests = {r.workload.key: test for r in results if (test := _of_library(r, session))}
    found = _test(session, list(tests.values()))
    return [
        _served(r, tests[key], found[key], session.progress)
        if (key := r.workload.key) in found
        else r
        for r in results
    ]


def _test(session: Session, tests: Sequence[_Test]) -> dict[str, Attempt]:
    """The A/B tests by workload key, from the journal or new."""
    found: dict[str, Attempt] = {}
    by_key = {test.key: test for test in tests}
    fingerprints = {key: test.fingerprint(session) for key, test in by_key.items()}
    for key, test in by_key.items() if session.reuse else ():
        known = session.journal.find(fingerprints[key].digest, test.subject, key)
        if known is not None:
            found[key] = known

    def job_of(part: dict[str, ABTestItem], gpu: WorkerGpu) -> Request:
        return ABTestJob(
            items=part,
            device=gpu.worker_device,
            seed=session.measure.seed + OTHER_INPUTS,
            cache_dir=str(session.machine.cache_dir),
            inputs=str(session.measure.inputs),
        ).request()

    def keep(ended: ItemResult, gpu: WorkerGpu, _: Progress) -> None:
        found[ended.item] = _attempt(by_key[ended.item], ended, gpu.device.uuid)
        session.journal.append(AttemptRecord(fingerprints[ended.item], found[ended.item]))

    with tempfile.TemporaryDirectory(prefix="fa-tune-", ignore_cleanup_errors=True) as folder:
        items = {
            key: _item(test, Path(folder) / str(i))
            for i, (key, test) in enumerate(by_key.items())
            if key not in found
        }
        try:
            run_items_on_gpus(session, "confirm", items, job_of, keep)
        except ToolMissing as error:
            session.progress.warn(f"the choices were not confirmed: {error}")
    return found


def _pair(decision: Decision | None) -> tuple[str, str] | None:
    """What is to be compared: the choice and the default, if these are two."""
    if decision is None or decision.default in (None, decision.chosen.subject):
        return None
    return decision.chosen.subject, str(decision.default)


def _of_choice(result: WorkloadResult, session: Session) -> _Test | None:
    """A registry that holds the choice, and one as before any search."""
    decision, workload = result.decision, result.workload
    pair = _pair(decision)
    if decision is None or pair is None or workload.cached:
        return None
    entry = entry_of(result, decision, session.selection)
    own = families.defaults_for(workload, session.machine.limits)
    before = Registry.of()
    if not own or families.variant(own[0]).key != pair[1]:  # it stands in for the device's own
        before = Registry.of([dataclasses.replace(entry, chosen=Variant.from_key(pair[1]))])
    return _Test(workload.key, pair, (Registry.of([entry]), before))


def _of_library(result: WorkloadResult, session: Session) -> _Test | None:
    """A registry whose entry names the library that was faster, and one whose does not."""
    decision, workload = result.decision, result.workload
    if decision is None or workload.op != FORWARD or workload.lse or workload.uneven:
        return None  # what no library is called for
    names = [reference_subject(name) for name in libraries.serving()]
    subject = faster_reference(decision, names, result.margin)
    if subject is None:
        return None
    entry = entry_of(result, decision, session.selection)
    name = reference_name(subject)
    packages = libraries.installed(name)
    ratio = Ratio(1 / decision.to_references[subject].value, None)
    served = dataclasses.replace(entry, served=Served(name, packages, ratio, decision.chosen.n))
    registries = Registry.of([served]), Registry.of([entry])
    return _Test(workload.key, (subject, decision.chosen.subject), registries, packages)


def _served(
    result: WorkloadResult, test: _Test, attempt: Attempt, progress: Progress
) -> WorkloadResult:
    """The result with the library, if it gains as a program calls it."""
    if (found := attempt.measurement) is None:
        progress.note(f"{test.key}: {test.pair[0]} is not called: {attempt.reason}")
        return result
    ratio = paired_ratio(found.samples_s, found.default_s)
    if not beats(ratio, 0.0):
        return result
    name = reference_name(test.pair[0])
    label, share = libraries.label_of(name), f"{ratio.value:.3f} of the time"
    progress.note(f"{test.key}: programs call {label}, which takes {share} of {test.pair[1]}")
    served = Served(name, test.library, ratio, len(found.samples_s))
    return dataclasses.replace(result, served=served)


def _item(test: _Test, stem: Path) -> ABTestItem:
    """A worker's item; its registries are in files that begin with `stem`."""
    chosen, defaults = stem.with_suffix(".chosen.json"), stem.with_suffix(".json")
    registry_file.save(chosen, test.registries[0])
    registry_file.save(defaults, test.registries[1])
    return ABTestItem(str(chosen), str(defaults), *test.pair)


def _attempt(test: _Test, ended: ItemResult, uuid: str) -> Attempt:
    """The comparison as the journal keeps it: the choice's times, the default's beside them."""
    if ended.outcome is not Outcome.OK or not isinstance(ended.value, dict):
        return Attempt(test.subject, test.key, ended.outcome, ended.reason)
    found = codec.load(ABTestResult, ended.value)
    measurement = Measurement(
        test.subject, test.key, METHOD, found.chosen_s, gpu_uuid=uuid, default_s=found.default_s
    )
    return Attempt(test.subject, test.key, Outcome.OK, "", measurement)


def _with(result: WorkloadResult, attempt: Attempt | None, progress: Progress) -> WorkloadResult:
    """The result with what the comparison says of it."""
    pair = _pair(result.decision)
    if result.decision is None or pair is None or attempt is None:
        return result
    if attempt.measurement is None:
        progress.warn(
            f"{result.workload.key}: {pair[0]} was not confirmed against the default: "
            f"{attempt.outcome}: {attempt.reason}"
        )
        return result
    chosen_s = attempt.measurement.samples_s
    default_s = attempt.measurement.default_s
    confirmation = Confirmation(*pair, paired_ratio(chosen_s, default_s), len(chosen_s))
    return _judged(result, result.decision, confirmation, progress)


def _as_recorded(
    result: WorkloadResult, selection: ProfilerSelection, progress: Progress
) -> WorkloadResult:
    """The result with the comparison that its recording holds, if that is of the same two."""
    decided = recorded_decision(result, selection)
    found = decided.confirmed if decided is not None else None
    pair = _pair(result.decision)
    if result.decision is None or found is None or (found.chosen, found.default) != pair:
        return result
    return _judged(result, result.decision, found, progress)


def _judged(
    result: WorkloadResult, decision: Decision, confirmation: Confirmation, progress: Progress
) -> WorkloadResult:
    """The result with its confirmation, which may put the default in the choice's place."""
    if not confirmation.upheld:
        measurements = [a.measurement for a in result.attempts if a.measurement is not None]
        decision = keep_default(decision, measurements, confirmation)
        progress.warn(f"{result.workload.key}: {decision.sentence}")
    return dataclasses.replace(result, decision=decision, confirmation=confirmation)
