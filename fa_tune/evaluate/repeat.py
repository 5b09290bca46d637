"""The same search several times, each as if it were the first: fresh processes on the GPU, an
empty journal and registry, its own seed.  What is shared is what no choice depends on: compiled
kernels, and whether their results are right."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fa_tune.build.cache import ArtifactStore, default_cache_dir
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.options import Progress, SearchOptions, Silent
from fa_tune.evaluate import repeatability_file as tunings_file
from fa_tune.evaluate.repeatability import Tuning
from fa_tune.evaluate.repeatability_file import Recorded
from fa_tune.store.journal import Journal, VerdictRecord
from fa_tune.tune.flow import search
from fa_tune.tune.results import SearchResult, WorkloadResult
from fa_tune.tune.session import JOURNAL, ready_workers


def tune_many(
    options: SearchOptions, n: int, progress: Progress, *, to: Path | None = None
) -> Recorded:
    """`n` independent tunings of the options' workloads.  With a file `to`, each is kept in it
    as soon as it is finished, and those that it holds already are not repeated.

    Raises what a search raises, and InvalidConfig for a file about other workloads.
    """
    wanted = {w.key for w in options.workloads.workloads()}
    done = tunings_file.load(to) if to is not None and to.exists() else Recorded((), "")
    if {t.workload for t in done.tunings} - wanted:
        raise InvalidConfig(f"{to} holds tunings of other workloads; name another file")
    finished = {t.seed for t in done.tunings}
    cache = options.machine.cache_dir or default_cache_dir()
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
            _prepare(own, cache, known)
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
            done = Recorded((*done.tunings, *found), result.source)
            if to is not None:
                tunings_file.save(to, done)
            progress.advance(f"tuning {i + 1}")
    return done


def tunings_of(result: SearchResult, seed: int) -> list[Tuning]:
    """What a search found, workload by workload; those without a decision are left out."""
    return [t for one in result.results if (t := _tuning(one, seed)) is not None]


def _tuning(one: WorkloadResult, seed: int) -> Tuning | None:
    if one.decision is None:
        return None
    found = {a.subject: a.measurement for a in one.attempts if a.measurement}
    chosen = one.decision.chosen.subject
    confirmed = one.confirmation
    return Tuning(
        workload=one.workload.key,
        method=one.decision.method,
        seed=seed,
        default=one.decision.default,
        chosen=chosen,
        preferred=chosen if confirmed is None else confirmed.chosen,
        samples={s: found[s].samples_s for s in sorted(found)},
        relative={s: found[s].relative for s in sorted(found) if found[s].relative},
        ranks=dict(one.ranks),
        margin=one.margin,
        confirmed=None if confirmed is None else confirmed.ratio,
    )


def _prepare(own: Path, cache: Path, known: Sequence[VerdictRecord]) -> None:
    """A cache folder with the shared kernels and an own journal, which knows verdicts alone."""
    shared = ArtifactStore(cache).path
    shared.mkdir(parents=True, exist_ok=True)
    own.mkdir(parents=True)
    (own / shared.name).symlink_to(shared, target_is_directory=True)
    journal = Journal(own / JOURNAL)
    for record in known:
        journal.append(record)
