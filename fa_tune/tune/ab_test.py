"""After the decision: the choice against the default once more, as a program would run them.

One fresh process takes all workloads of a search, or of several boards each has one that takes
its share; a workload costs about a second, and what comes out is in the journal.  Where a choice
turns out to gain nothing, the default takes its place.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from fa_tune import families
from fa_tune.core.devices import pinned_to
from fa_tune.core.errors import ToolMissing
from fa_tune.core.jobs import ABTestItem, ABTestJob, ABTestResult
from fa_tune.core.model import Attempt, Measurement, Outcome, Variant, Verdict
from fa_tune.core.options import Progress, SearchOptions
from fa_tune.fleet.gpu import Board
from fa_tune.profile.replay import ReplayProfiler
from fa_tune.profile.stats import Interval, Ratio, paired_ratio
from fa_tune.search.decide import Confirmation, Decision, keep_default
from fa_tune.store.journal import AttemptRecord, Fingerprint, Journal
from fa_tune.tune.measure import fingerprint
from fa_tune.tune.outputs import entry_of, recording_of
from fa_tune.tune.profilers import Measured
from fa_tune.tune.results import WorkloadResult
from fa_tune.tune.session import Context
from fa_tune.workers.supervisor import ItemResult, run_items

METHOD = "runtime"
START_TIMEOUT_S = 180.0

Verdicts = Mapping[str, Mapping[str, Verdict]]  # by workload key and subject


def confirm_all(
    results: Sequence[WorkloadResult],
    verdicts: Verdicts,
    *,
    options: SearchOptions,
    measured: Measured,
    context: Context,
    journal: Journal,
    progress: Progress,
) -> list[WorkloadResult]:
    """The results, each choice that is not the default with its confirmation, or replaced by
    the default where that contradicts it.  A replay has no GPU to ask, and takes what its
    recording holds.

    A comparison that cannot be made is a warning: the choice then stands unconfirmed.
    """
    asked = [one for one in results if _pair(one.decision) is not None]
    if not options.confirm or not asked:
        return list(results)
    if isinstance(measured.profiler, ReplayProfiler):
        return [_as_recorded(one, measured, progress) for one in results]
    found: dict[str, Attempt] = {}
    marks = {one.workload.key: _mark(one, measured, context) for one in asked}
    for one in asked if options.resume else ():
        known = journal.find(marks[one.workload.key].digest, _subject(one), one.workload.key)
        if known is not None:
            found[one.workload.key] = known
    left = [one for one in asked if one.workload.key not in found]
    if left:
        progress.stage("confirm", len(left))
    try:
        with tempfile.TemporaryDirectory(prefix="fa-tune-", ignore_cleanup_errors=True) as folder:
            items = {
                one.workload.key: _item(one, Path(folder), i, measured, context, verdicts)
                for i, one in enumerate(left)
            }
            job = partial(
                ABTestJob,
                seed=options.measure.seed + 1000,  # other inputs than the search had
                cache_dir=str(context.cache_dir),
            )
            by_key = {one.workload.key: one for one in left}
            item_timeout_s = options.measure.item_timeout_s

            def take(
                told: Iterator[ItemResult], shown: Progress, part: dict[str, ABTestItem], uuid: str
            ) -> None:
                for result in told:
                    one = by_key[result.item]
                    attempt = _attempt(one, result.outcome, result.value, result.reason, uuid)
                    found[result.item] = attempt
                    journal.append(AttemptRecord(marks[result.item], attempt))
                    shown.advance(result.item)
                    del part[result.item]

            if context.pool is None:
                told = run_items(
                    *job(
                        items=items, device=0 if context.board else context.options.device
                    ).request(),
                    item_timeout_s=item_timeout_s,
                    start_timeout_s=START_TIMEOUT_S,
                    env=pinned_to(context.board),
                )
                take(told, progress, dict(items), context.board)
            else:
                n = min(len(context.pool.present), len(items))
                parts = [{k: items[k] for k in list(items)[i::n]} for i in range(n)]

                def on_board(board: Board, shown: Progress, part: dict[str, ABTestItem]) -> None:
                    told = board.run_items(
                        *job(items=dict(part), device=0).request(),
                        item_timeout_s=item_timeout_s,
                        start_timeout_s=START_TIMEOUT_S,
                    )
                    take(told, shown, part, board.device.uuid)

                context.pool.each(parts, on_board, progress)
    except ToolMissing as error:
        progress.warn(f"the choices were not confirmed: {error}")
    return [_with(one, found.get(one.workload.key), progress) for one in results]


def _pair(decision: Decision | None) -> tuple[str, str] | None:
    """What is to be compared: the choice and the default, if these are two."""
    if decision is None or decision.default in (None, decision.chosen.subject):
        return None
    return decision.chosen.subject, str(decision.default)


def _subject(one: WorkloadResult) -> str:
    """What the journal calls the comparison."""
    chosen, default = _pair(one.decision) or ("", "")
    return f"{METHOD}:{chosen} / {default}"


def _mark(one: WorkloadResult, measured: Measured, context: Context) -> Fingerprint:
    names = {Variant.from_key(s).family for s in _pair(one.decision) or ()}
    return dataclasses.replace(
        fingerprint(measured, context, 0, sorted(names)),
        method=METHOD,
        profiler_version="",
        metrics=(),
        clock_policy="unlocked",
        cache_policy="cold-rotate",
    )


def _item(
    one: WorkloadResult,
    folder: Path,
    number: int,
    measured: Measured,
    context: Context,
    verdicts: Verdicts,
) -> ABTestItem:
    """A worker's item: a registry that holds the choice, and one as before any search."""
    decision = one.decision
    pair = _pair(decision)
    assert decision is not None
    assert pair is not None
    from fa_tune.store.registry import file as store
    from fa_tune.store.registry.schema import Registry  # pydantic is slow to load

    entry = entry_of(one, decision, measured, verdicts.get(one.workload.key, {}))
    own = families.defaults(one.workload.d_head, one.workload.dtype, context.limits)
    before = Registry.of()
    if not own or families.variant(own[0]).key != pair[1]:  # it stands in for the device's own
        before = Registry.of([dataclasses.replace(entry, chosen=Variant.from_key(pair[1]))])
    paths = {"registry": folder / f"{number}-chosen.json", "defaults": folder / f"{number}.json"}
    store.save(paths["registry"], Registry.of([entry]))
    store.save(paths["defaults"], before)
    return ABTestItem(str(paths["registry"]), str(paths["defaults"]), *pair)


def _attempt(
    one: WorkloadResult, outcome: Outcome, value: object, reason: str, uuid: str
) -> Attempt:
    """The comparison as the journal keeps it: the choice's times, the default's beside them."""
    key = one.workload.key
    if outcome is not Outcome.OK or not isinstance(value, dict):
        return Attempt(_subject(one), key, outcome, reason)
    found = ABTestResult.from_json(value)
    measurement = Measurement(
        _subject(one), key, METHOD, found.chosen_s, gpu_uuid=uuid, default_s=found.default_s
    )
    return Attempt(_subject(one), key, Outcome.OK, "", measurement)


def _with(one: WorkloadResult, attempt: Attempt | None, progress: Progress) -> WorkloadResult:
    """The result with what the comparison says of it."""
    pair = _pair(one.decision)
    if one.decision is None or pair is None or attempt is None:
        return one
    if attempt.measurement is None:
        progress.warn(
            f"{one.workload.key}: {pair[0]} was not confirmed against the default: "
            f"{attempt.outcome}: {attempt.reason}"
        )
        return one
    chosen_s = attempt.measurement.samples_s
    default_s = attempt.measurement.default_s
    confirmation = Confirmation(*pair, paired_ratio(chosen_s, default_s), len(chosen_s))
    return _judged(one, one.decision, confirmation, progress)


def _as_recorded(one: WorkloadResult, measured: Measured, progress: Progress) -> WorkloadResult:
    """The result with the comparison that its recording holds, if that is of the same two."""
    pair = _pair(one.decision)
    recording = recording_of(pair[0], one, measured) if pair is not None else None
    decided = recording.meta.decided.get(one.workload.key) if recording is not None else None
    found = decided.confirmed if decided is not None else None
    if one.decision is None or found is None or (found.chosen, found.default) != pair:
        return one
    interval = Interval(*found.interval) if found.interval is not None else None
    confirmation = Confirmation(*pair, Ratio(found.ratio, interval), found.n)
    return _judged(one, one.decision, confirmation, progress)


def _judged(
    one: WorkloadResult, decision: Decision, confirmation: Confirmation, progress: Progress
) -> WorkloadResult:
    """The result with its confirmation, which may put the default in the choice's place."""
    if not confirmation.upheld:
        measurements = [a.measurement for a in one.attempts if a.measurement is not None]
        decision = keep_default(decision, measurements, confirmation)
        progress.warn(f"{one.workload.key}: {decision.sentence}")
    return dataclasses.replace(one, decision=decision, confirmation=confirmation)
