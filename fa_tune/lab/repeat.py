"""The same search several times, each as if it were the first: fresh processes on the GPU, an
empty journal and registry, its own seed.  What is shared is what no choice depends on: compiled
kernels, and whether their results are right."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.options import Progress, SearchOptions, Silent
from fa_tune.lab import repeatability
from fa_tune.lab.repeatability import RecordedTunings, Tuning
from fa_tune.store.journal import Journal
from fa_tune.store.journal_records import VerdictRecord
from fa_tune.tune.flow import search
from fa_tune.tune.results import SearchResult, WorkloadResult
from fa_tune.tune.session import JOURNAL, open_machine, ready_workers


def tune_many(
    options: SearchOptions, n: int, progress: Progress, *, to: Path | None = None
) -> RecordedTunings:
    """`n` independent tunings of the options' workloads.  With a file `to`, each is kept in it
    as soon as it is finished, and those that it holds already are not repeated.

    Raises what a search raises, and InvalidConfig for a file about other workloads.
    """
    wanted = {w.key for w in options.workloads.workloads()}
    done = repeatability.load(to) if to is not None and to.exists() else RecordedTunings((), "")
    if {t.workload for t in done.tunings} - wanted:
        raise InvalidConfig(f"{to} holds tunings of other workloads; name another file")
    finished = {t.seed for t in done.tunings}
    compiled = open_machine(options.machine, Silent()).store.path
    progress.stage("tune", n)
    with (
        tempfile.TemporaryDirectory(prefix="fa-tune-", ignore_cleanup_errors=True) as folder,
        ready_workers(options.machine),
    ):
        known: tuple[VerdictRecord, ...] = ()
        for i in range(n):
            seed = options.measure.seed + i
            if seed in finished:
                progress.advance(f"tuning {i + 1}, as recorded")
                continue
            own = Path(folder) / f"tuning-{i}"
            _make_private_cache(own, compiled, known)
            result = search(
                dataclasses.replace(
                    options,
                    measure=dataclasses.replace(options.measure, seed=seed),
                    machine=dataclasses.replace(options.machine, cache_dir=own),
                    registry=own / "registry.json",
                    csv=None,
                    record=None,
                    resume=True,
                ),
                Silent(),
            )
            found = tunings_of(result, seed)
            journal = Journal(own / JOURNAL)
            known = known or tuple(r for r in journal.records() if isinstance(r, VerdictRecord))
            done = RecordedTunings((*done.tunings, *found), result.source)
            if to is not None:
                repeatability.save(to, done)
            progress.advance(f"tuning {i + 1}")
    return done


def _make_private_cache(folder: Path, compiled: Path, verdicts: Sequence[VerdictRecord]) -> None:
    """Make `folder` a cache with the kernels in the folder `compiled` and a journal of its own that
    knows these verdicts alone."""
    compiled.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True)
    (folder / compiled.name).symlink_to(compiled, target_is_directory=True)
    journal = Journal(folder / JOURNAL)
    for verdict in verdicts:
        journal.append(verdict)


def tunings_of(result: SearchResult, seed: int) -> list[Tuning]:
    """What a search found, workload by workload; those without a decision are left out."""
    return [
        t for workload_result in result.results if (t := _tuning(workload_result, seed)) is not None
    ]


def _tuning(workload_result: WorkloadResult, seed: int) -> Tuning | None:
    if workload_result.decision is None:
        return None
    found = {a.subject: a.measurement for a in workload_result.attempts if a.measurement}
    chosen = workload_result.decision.chosen.subject
    confirmed = workload_result.confirmation
    return Tuning(
        workload=workload_result.workload.key,
        method=workload_result.decision.method,
        seed=seed,
        default=workload_result.decision.default,
        chosen=chosen,
        preferred=chosen if confirmed is None else confirmed.chosen,
        samples_s={s: found[s].samples_s for s in sorted(found)},
        relative={s: found[s].relative for s in sorted(found) if found[s].relative},
        ranks=dict(workload_result.ranks),
        margin=workload_result.margin,
        confirmed=None if confirmed is None else confirmed.ratio,
    )
