"""After the decision: an A/B test of the choice against the default, as a program would run them.

One fresh process takes all workloads of a search, or of several GPUs each has one that takes
its share; a workload costs about a second, and what comes out is in the journal.  Where a choice
turns out to gain nothing, the default takes its place.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from fa_tune import families
from fa_tune.core import codec
from fa_tune.core.comparison import Confirmation
from fa_tune.core.errors import ToolMissing
from fa_tune.core.jobs import ABTestItem, ABTestJob, ABTestResult
from fa_tune.core.model import Attempt, Measurement, Outcome, Variant
from fa_tune.core.options import Progress
from fa_tune.core.stats import paired_ratio
from fa_tune.search.decide import Decision, keep_default
from fa_tune.store.journal_records import AttemptRecord
from fa_tune.store.registry import file as registry_file
from fa_tune.store.registry.schema import Registry
from fa_tune.tune.dispatch import Request, run_items_on_gpus
from fa_tune.tune.fleet.gpu import WorkerGpu
from fa_tune.tune.outputs import entry_of, recorded_decision
from fa_tune.tune.results import WorkloadResult
from fa_tune.tune.session import ProfilerSelection, Session
from fa_tune.workers.supervisor import ItemResult

METHOD = "runtime"
OTHER_INPUTS = 1000  # beyond the search's seed


def confirm_all(session: Session, results: Sequence[WorkloadResult]) -> list[WorkloadResult]:
    """The results, each choice that is not the default confirmed, or replaced by the default
    where the test contradicts it.  A replay has no GPU to ask, and takes what its recording holds.

    A test that cannot be made is a warning: the choice then stands unconfirmed.
    """
    if not session.capabilities.measures_anew:
        return [_as_recorded(r, session.selection, session.progress) for r in results]
    requested = {r.workload.key: r for r in results if _pair(r.decision) and not r.workload.cached}
    found: dict[str, Attempt] = {}
    try:
        _test(session, requested, found)
    except ToolMissing as error:
        session.progress.warn(f"the choices were not confirmed: {error}")
    return [_with(r, found.get(r.workload.key), session.progress) for r in results]


def _test(
    session: Session,
    requested: Mapping[str, WorkloadResult],
    found: dict[str, Attempt],
) -> None:
    """Put the A/B tests of the results into `found`, by workload key, from the journal or new;
    raises ToolMissing."""
    measure = session.measure
    fingerprints = {
        key: session.fingerprint_without_profiler(METHOD, _pair(result.decision) or ())
        for key, result in requested.items()
    }
    for key, result in requested.items() if session.reuse else ():
        known = session.journal.find(fingerprints[key].digest, _subject(result), key)
        if known is not None:
            found[key] = known

    def job_of(part: dict[str, ABTestItem], gpu: WorkerGpu) -> Request:
        return ABTestJob(
            items=part,
            device=gpu.worker_device,
            seed=measure.seed + OTHER_INPUTS,
            cache_dir=str(session.machine.cache_dir),
            inputs=str(measure.inputs),
        ).request()

    def keep(ended: ItemResult, gpu: WorkerGpu, _: Progress) -> None:
        found[ended.item] = _attempt(requested[ended.item], ended, gpu.device.uuid)
        session.journal.append(AttemptRecord(fingerprints[ended.item], found[ended.item]))

    with tempfile.TemporaryDirectory(prefix="fa-tune-", ignore_cleanup_errors=True) as folder:
        items = {
            key: _item(result, Path(folder) / str(i), session)
            for i, (key, result) in enumerate(requested.items())
            if key not in found
        }
        run_items_on_gpus(session, "confirm", items, job_of, keep)


def _pair(decision: Decision | None) -> tuple[str, str] | None:
    """What is to be compared: the choice and the default, if these are two."""
    if decision is None or decision.default in (None, decision.chosen.subject):
        return None
    return decision.chosen.subject, str(decision.default)


def _subject(result: WorkloadResult) -> str:
    """What the journal calls the comparison."""
    chosen, default = _pair(result.decision) or ("", "")
    return f"{METHOD}:{chosen} / {default}"


def _item(result: WorkloadResult, stem: Path, session: Session) -> ABTestItem:
    """A worker's item: a registry that holds the choice, and one as before any search, in files
    that begin with `stem`."""
    decision, workload = result.decision, result.workload
    pair = _pair(decision)
    assert decision is not None
    assert pair is not None
    entry = entry_of(result, decision, session.selection)
    own = families.defaults_for(workload, session.machine.limits)
    before = Registry.of()
    if not own or families.variant(own[0]).key != pair[1]:  # it stands in for the device's own
        before = Registry.of([dataclasses.replace(entry, chosen=Variant.from_key(pair[1]))])
    chosen, defaults = stem.with_suffix(".chosen.json"), stem.with_suffix(".json")
    registry_file.save(chosen, Registry.of([entry]))
    registry_file.save(defaults, before)
    return ABTestItem(str(chosen), str(defaults), *pair)


def _attempt(result: WorkloadResult, ended: ItemResult, uuid: str) -> Attempt:
    """The comparison as the journal keeps it: the choice's times, the default's beside them."""
    key, value = result.workload.key, ended.value
    if ended.outcome is not Outcome.OK or not isinstance(value, dict):
        return Attempt(_subject(result), key, ended.outcome, ended.reason)
    found = codec.load(ABTestResult, value)
    measurement = Measurement(
        _subject(result), key, METHOD, found.chosen_s, gpu_uuid=uuid, default_s=found.default_s
    )
    return Attempt(_subject(result), key, Outcome.OK, "", measurement)


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
