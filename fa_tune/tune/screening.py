"""More boards than workloads: heats on all of them, and a final on one.

The configs of a workload are dealt out in groups, one per board.  Every group holds the same pair,
the default and another kernel, so each config has a ratio to the default of its own board, and
only ratios are compared between groups.  Who may win, by that, meets on one board, where the
decision is made as ever.  How far the boards disagree on the pair widens what is let through.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fa_tune.core.model import Attempt, Outcome, Workload
from fa_tune.core.options import SearchOptions
from fa_tune.fleet.cross_gpu import boards_of, scaled
from fa_tune.ops import flops
from fa_tune.profile.replay import ReplayProfiler
from fa_tune.profile.stats import median, paired_ratio
from fa_tune.store.journal import AttemptRecord, Journal
from fa_tune.tune.decide import Candidates, Taken
from fa_tune.tune.dispatch import Spot, on_boards
from fa_tune.tune.measure import fingerprint, measure_workload

GROUP = 32  # configs that are worth a worker process of their own
RUNS = 3  # samples of each in a heat; one under ncu
WITHIN = 1.05  # of the fastest ratio, to reach the final


@dataclass(frozen=True)
class Group:
    """The configs of one workload that one board measures; `pair` is in every group."""

    one: Candidates
    subjects: tuple[str, ...]
    pair: tuple[str, ...]
    found: Mapping[str, Attempt] = dataclasses.field(default_factory=dict)

    @property
    def default_s(self) -> tuple[float, ...]:
        """Samples of the default; none where it failed."""
        return _samples(self.found.get(self.pair[0]))

    def ratio(self, subject: str) -> float | None:
        """The time of a subject over the default's; None where one of them has no time."""
        samples = _samples(self.found.get(subject))
        both = bool(samples and self.default_s)
        return paired_ratio(samples, self.default_s).value if both else None


@dataclass(frozen=True)
class Heats:
    """What the final is between: `candidates` as before, but for those who lost in a heat, whose
    attempts are in `groups`, by workload."""

    candidates: tuple[Candidates, ...]
    groups: Mapping[str, tuple[Group, ...]] = dataclasses.field(default_factory=dict)

    def with_losers(self, taken: Taken) -> Taken:
        """A final with the attempts of those that lost before, their times multiplied by what
        the default took in the final over what it took beside them."""
        groups = self.groups.get(taken.candidates.workload.key, ())
        final = {a.subject: a for a in taken.attempts}
        losers: list[Attempt] = []
        for group in groups:
            samples = _samples(final.get(group.pair[0]))
            known = bool(samples and group.default_s)
            factor = median(samples) / median(group.default_s) if known else 1.0
            losers += [scaled(a, factor) for a in group.found.values() if a.subject not in final]
        everyone = groups[0].one if groups else taken.candidates
        return dataclasses.replace(taken, candidates=everyone, others=(*taken.others, *losers))


def run_heats(
    candidates: Sequence[Candidates],
    standard: Callable[[Workload], Sequence[str]],
    options: SearchOptions,
    here: Spot,
    journal: Journal,
) -> Heats:
    """Heats of the workloads that have many configs, where there are at least two boards for
    each; else everyone is in the final.  `standard` are the defaults of a workload."""
    pool = here.context.pool
    share = len(pool.present) // max(1, len(candidates)) if pool is not None else 1
    if share < 2 or isinstance(here.measured.profiler, ReplayProfiler):
        return Heats(tuple(candidates))
    groups = [g for one in candidates for g in _deal(one, standard(one.workload), share)]
    few = 1 if here.measured.profiler.method == "ncu" else RUNS
    quick = dataclasses.replace(options.measure, runs=few, references=())

    def measure(spot: Spot, group: Group) -> Group:
        mark = _mark(group, fingerprint(spot.measured, spot.context, few, ()).digest)
        done = _marked(journal, group, mark) if options.resume else {}
        if len(done) == len(group.subjects) + len(group.pair):
            spot.tally.reused += len(done)
            return dataclasses.replace(group, found=done)
        attempts = measure_workload(
            group.one.workload,
            {s: group.one.artifacts[s] for s in (*group.pair, *group.subjects)},
            options=quick,
            measured=spot.measured,
            context=spot.context,
            journal=journal,
            reuse=options.resume,
            keep=group.pair,
            progress=spot.progress,
            tally=spot.tally,
            adaptive=False,
            search=mark,
        )
        found = {a.subject: a for a in attempts}
        return dataclasses.replace(group, found=found)

    measured = on_boards(
        groups,
        measure,
        here,
        journal,
        workload=None,
        cost=lambda g: flops.matmul_flop(g.one.workload) * len(g.subjects),
    )
    by_workload: dict[str, tuple[Group, ...]] = {}
    for group in measured:
        key = group.one.workload.key
        by_workload[key] = (*by_workload.get(key, ()), group)
    finals = [_final(one, by_workload.get(one.workload.key, ())) for one in candidates]
    return Heats(tuple(finals), by_workload)


def _deal(one: Candidates, standard: Sequence[str], share: int) -> list[Group]:
    """The groups of one workload; none where they would be too small to be worth it."""
    here = [s for s in standard if s in one.artifacts]
    pair = tuple(dict.fromkeys([*here, *one.artifacts]))[:2]
    others = [s for s in one.artifacts if s not in pair]
    n = min(share, len(others) // GROUP)
    return [Group(one, tuple(others[i::n]), pair) for i in range(n)] if n >= 2 else []


def _final(one: Candidates, groups: Sequence[Group]) -> Candidates:
    """The candidates without those that lost in their heat; who failed has failed."""
    if not groups:
        return one
    ratios = {s: r for g in groups for s in g.subjects if (r := g.ratio(s)) is not None}
    pairs = [r for g in groups if (r := g.ratio(g.pair[-1])) is not None]
    spread = max(pairs) / min(pairs) if pairs else 1.0
    if not all(g.default_s for g in groups):  # nothing to compare groups by
        return one
    limit = min(*ratios.values(), 1.0) * WITHIN * spread if ratios else 1.0
    through = {s for s, ratio in ratios.items() if ratio <= limit} | set(groups[0].pair)
    artifacts = {s: a for s, a in one.artifacts.items() if s in through}
    return dataclasses.replace(one, artifacts=artifacts)


def _samples(attempt: Attempt | None) -> tuple[float, ...]:
    if attempt is None or attempt.outcome is not Outcome.OK or attempt.measurement is None:
        return ()
    return tuple(attempt.measurement.samples_s)


def _mark(group: Group, conditions: str) -> str:
    """The same for a group and its resumption, different for another group or under other
    conditions, such as another driver."""
    text = "\n".join([conditions, *sorted((*group.pair, *group.subjects))])
    return f"heat {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _marked(journal: Journal, group: Group, mark: str) -> dict[str, Attempt]:
    """The attempts of a group that an earlier run of it made, all on one board."""
    found: dict[str, Attempt] = {}
    key = group.one.workload.key  # which the mark does not tell
    for record in journal.records():
        if not isinstance(record, AttemptRecord) or record.attempt.workload != key:
            continue
        measurement = record.attempt.measurement
        if measurement is not None and measurement.search == mark:
            found[record.attempt.subject] = record.attempt
    return found if len(boards_of(found)) < 2 else {}
