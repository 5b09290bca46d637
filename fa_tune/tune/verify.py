"""Verification through worker processes, remembered in the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from fa_tune.core.devices import pinned_to
from fa_tune.core.jobs import CALIBRATION, CalibrateJob, PairItem, PairTimes, VerifyItem, VerifyJob
from fa_tune.core.model import Artifact, Attempt, Outcome, Verdict
from fa_tune.core.options import MeasureOptions, Progress
from fa_tune.fleet.calibration import board_times
from fa_tune.fleet.gpu import Board
from fa_tune.fleet.pool import Pool
from fa_tune.ops.verification import verdict_from_json
from fa_tune.store.journal import AttemptRecord, Fingerprint, Journal, VerdictRecord
from fa_tune.tune.session import Context
from fa_tune.workers.supervisor import ItemResult, run_items

NO_WORKLOAD = "verify"  # a verdict is about a kernel, not about one workload

# A worker's items to their results.
Run = Callable[[Mapping[str, VerifyItem]], Iterator[ItemResult]]


def verdict_key(artifact: Artifact) -> str:
    """What a verdict is about: a variant with the traits it was compiled for."""
    return f"{artifact.variant.key} @ {artifact.traits}"


def verify_all(
    artifacts: Sequence[Artifact],
    *,
    fingerprint: Callable[[str], Fingerprint],
    journal: Journal,
    reuse: bool,
    device: int,
    seed: int,
    item_timeout_s: float,
    progress: Progress,
    context: Context | None = None,
) -> tuple[dict[str, Verdict], dict[str, Attempt]]:
    """Verdicts by `verdict_key`, and attempts that ended without one (crashed, timed out).

    `fingerprint` gives the conditions of a family's attempts by its name.  Verdicts and
    failures are remembered, so that a resumed search does not die twice of the same kernel.
    `context` says on which boards, instead of `device`; several share the work, and each that
    has some times the pool's calibration pair besides.
    """
    marks = {n: fingerprint(n).for_verify() for n in {a.variant.family for a in artifacts}}
    verdicts: dict[str, Verdict] = {}
    failures: dict[str, Attempt] = {}
    todo: dict[str, Artifact] = {}
    for artifact in artifacts:
        key = verdict_key(artifact)
        digest = marks[artifact.variant.family].digest
        known = journal.find_verdict(digest, key) if reuse else None
        failure = journal.find(digest, key, NO_WORKLOAD) if reuse else None
        if known is not None:
            verdicts[key] = known
        elif failure is not None:
            failures[key] = failure
        else:
            todo[key] = artifact
    if not todo:
        return verdicts, failures
    progress.stage("verify", len(todo))

    def check(run: Run, shown: Progress, part: dict[str, Artifact]) -> None:
        """Verify a part; what has its result is removed from it, so that the rest can be done
        elsewhere."""
        items = {key: VerifyItem.of_artifact(artifact) for key, artifact in part.items()}
        for result in run(items):
            variant = part.pop(result.item).variant
            shown.advance(variant.config)
            if result.outcome is Outcome.OK and isinstance(result.value, dict):
                verdict = verdict_from_json(result.value)
                verdicts[result.item] = verdict
                journal.append(VerdictRecord(marks[variant.family], result.item, verdict))
            else:
                failure = Attempt(result.item, NO_WORKLOAD, result.outcome, result.reason)
                failures[result.item] = failure
                journal.append(AttemptRecord(marks[variant.family], failure))

    pool = context.pool if context is not None else None
    if pool is not None:
        names = list(todo)
        n_parts = min(len(pool.present), len(names))
        parts = [{k: todo[k] for k in names[i::n_parts]} for i in range(n_parts)]

        def on_board(board: Board, shown: Progress, part: dict[str, Artifact]) -> None:
            shown.stage("verify", len(part))
            check(partial(_calibrating, pool, board, shown, seed, item_timeout_s), shown, part)

        pool.each(parts, on_board, progress)
    elif context is not None and context.seat is not None:
        seat = context.seat
        check(
            lambda items: seat.run_items(
                *VerifyJob(
                    items=items, device=0, seed=seed, item_timeout_s=item_timeout_s
                ).request(),
                item_timeout_s=item_timeout_s,
            ),
            progress,
            todo,
        )
    else:
        pinned = context.board if context is not None else ""
        number = 0 if pinned else device
        check(
            lambda items: run_items(
                *VerifyJob(
                    items=items, device=number, seed=seed, item_timeout_s=item_timeout_s
                ).request(),
                item_timeout_s=item_timeout_s,
                env=pinned_to(pinned),
                retry_after_sigkill=True,
            ),
            progress,
            todo,
        )
    return verdicts, failures


def calibrate(pool: Pool, options: MeasureOptions, progress: Progress) -> None:
    """Time the pool's pair on every board that has not yet; nothing without a pair."""
    left = [b for b in pool.present if b.device.uuid not in pool.calibrations]
    if pool.pair is None or not left:
        return
    progress.stage("calibrate", len(left))

    def on_board(board: Board, shown: Progress, _: object) -> None:
        if board.device.uuid not in pool.calibrations:
            list(_calibrating(pool, board, shown, options.seed, options.item_timeout_s, {}))

    wanted = [b.device.uuid for b in left]
    pool.each(wanted, on_board, progress, prefers=str)


def _calibrating(
    pool: Pool,
    board: Board,
    shown: Progress,
    seed: int,
    item_timeout_s: float,
    items: Mapping[str, VerifyItem],
) -> Iterator[ItemResult]:
    """The results of verifying `items` on a board, which times the pool's pair at the end."""
    pair = pool.pair if board.device.uuid not in pool.calibrations else None
    with_pair: dict[str, VerifyItem | PairItem] = {**items}
    if pair is not None:
        with_pair[CALIBRATION] = pair.item()
    job = CalibrateJob(items=with_pair, device=0, seed=seed)
    for result in board.run_items(*job.request(), item_timeout_s=item_timeout_s):
        if result.item != CALIBRATION:
            yield result
        elif result.outcome is Outcome.OK and isinstance(result.value, dict):
            found = board_times(board.label, board.device.uuid, PairTimes.from_json(result.value))
            pool.calibrations[board.device.uuid] = found
        else:
            shown.warn(f"{board.label} did not time the calibration pair: {result.reason}")
