"""A search that need not measure everything: a strategy scouts, the best meet in a final.

Scouting measures what the strategy proposes, in small batches with few samples each, until
the budget is spent.  The final measures the fastest of them, the defaults, what the registry
holds and the references side by side, as a search of that set alone would; the decision rests
on the final.  An audit's random sample of what was skipped takes part in it.

Everything goes through the journal.  A strategy proposes by what it observed, so a search
that was killed gets the same observations from the journal, and goes on as it would have.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fa_tune import families
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.model import Artifact, Attempt, Outcome, Verdict, Workload
from fa_tune.core.options import Progress, SearchOptions
from fa_tune.families.base import Config
from fa_tune.profile.stats import median
from fa_tune.search.derived_features import with_derived
from fa_tune.search.strategies import USES_FACTS, Observation, Point, Space, Strategy, create
from fa_tune.search.strategies.audit import Audit, judge, sample
from fa_tune.search.strategies.budget import Budget, spend
from fa_tune.search.strategies.points import point
from fa_tune.search.strategies.round_robin import RoundRobin
from fa_tune.store.journal import Journal
from fa_tune.tune.decide import Candidates
from fa_tune.tune.measure import Tally, measure_workload
from fa_tune.tune.prior import informed
from fa_tune.tune.profilers import Measured
from fa_tune.tune.results import Exploration
from fa_tune.tune.session import Context
from fa_tune.tune.tie_break import Preferences

SCOUT_RUNS = 3  # samples of each proposal; one under ncu
FINALISTS = 8
FINAL_WITHIN = 1.05  # of the fastest proposal's median

# Configs of a workload to compiled candidates; checked against the reference, or only compiled.
Prepare = Callable[[Sequence[Config], bool], Candidates]


@dataclass(frozen=True)
class Explored:
    """One workload after its search: `candidates` are all that were compiled, `final` the
    attempts to decide by, `others` the attempts that ended before the final."""

    candidates: Candidates
    final: tuple[Attempt, ...]
    others: tuple[Attempt, ...]
    exploration: Exploration


@dataclass
class _Scouts:
    """What has been compiled and measured on the way, by subject."""

    artifacts: dict[str, Artifact] = field(default_factory=dict)
    failures: dict[str, Attempt] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    attempts: dict[str, Attempt] = field(default_factory=dict)

    def take(self, prepared: Candidates) -> None:
        self.artifacts |= prepared.artifacts
        self.failures |= {a.subject: a for a in prepared.failures}
        self.verdicts |= prepared.verdicts


def explore(
    workload: Workload,
    configs: Sequence[Config],
    first: Sequence[str],
    *,
    options: SearchOptions,
    measured: Measured,
    context: Context,
    journal: Journal,
    progress: Progress,
    tally: Tally,
    search: str,
    prepare: Prepare,
    preferred: Preferences,
) -> Explored:
    """Search one workload.  `first` are subjects to measure before all others and again in the
    final: the defaults, and what the registry holds.

    Raises NoUsableVariant when nothing compiles, and what compiling and measuring raise.
    """
    by_key = {families.variant(c).key: c for c in configs}
    scouts = _Scouts()
    if options.strategy in USES_FACTS:
        scouts.take(prepare(configs, False))
        by_key = {key: c for key, c in by_key.items() if key in scouts.artifacts}
        if not by_key:
            reasons = dict.fromkeys(a.reason for a in scouts.failures.values())
            raise NoUsableVariant(f"nothing compiles for {workload.key}: {'; '.join(reasons)}")
    spaces = informed(
        _spaces(by_key, scouts.artifacts, first, workload),
        options.learn_from,
        measured.device.name,
    )
    keys = [p.key for space in spaces for p in space.points]
    strategy = strategy_over(options.strategy, spaces, options.measure.seed)
    runs = options.measure.runs or measured.profiler.default_runs
    few = 1 if measured.profiler.method == "ncu" else min(SCOUT_RUNS, max(1, runs - 1))

    def measure(subjects: Sequence[str], how: SearchOptions, final: bool) -> list[Attempt]:
        return measure_workload(
            workload,
            {s: scouts.artifacts[s] for s in subjects if s in scouts.artifacts},
            options=how.measure,
            measured=measured,
            context=context,
            journal=journal,
            reuse=options.resume,
            keep=tuple(first) if final else (),
            progress=progress,
            tally=tally,
            adaptive=final,
            search=search,
            order=preferred.order(workload, scouts.artifacts),
            margin=preferred.margin(workload, next(iter(first), None)),
        )

    scouting = dataclasses.replace(
        options, measure=dataclasses.replace(options.measure, runs=few, references=())
    )

    def scout(indices: Sequence[int]) -> list[Observation]:
        subjects = [keys[i] for i in indices]
        scouts.take(_checked(prepare([by_key[s] for s in subjects], True), scouts))
        right = [s for s in subjects if s not in scouts.failures]
        scouts.attempts |= {a.subject: a for a in measure(right, scouting, False)}
        return [_observation(i, scouts.attempts.get(keys[i])) for i in indices]

    budget = Budget(options.measurements, options.seconds)
    observed = spend(strategy, budget, scout)
    times = {keys[o.index]: o.time_s for o in observed if o.time_s is not None}
    skipped = sorted(set(range(len(keys))) - {o.index for o in observed})
    audited = [keys[i] for i in sample(skipped, options.audit, options.measure.seed)]
    if audited:
        scouts.take(_checked(prepare([by_key[s] for s in audited], True), scouts))
    finalists = list(dict.fromkeys([*(s for s in first if s in times), *_best(times)]))
    again = set(finalists) if measured.profiler.method == "ncu" else set()
    reused = tally.reused
    final = measure(
        [s for s in (*finalists, *audited) if s not in scouts.failures], options, final=True
    )
    # Under ncu the first of a finalist's samples is the scout's: nothing of an earlier run.
    tally.reused = max(reused, tally.reused - len(again))
    taken = {a.subject for a in final}
    exploration = Exploration(
        strategy=options.strategy,
        seed=options.measure.seed,
        budget=str(budget),
        configs=len(keys),
        scouted=len(observed),
        failed=sum(o.time_s is None for o in observed),
        finalists=len(finalists),
        audit=_audit(final, finalists, audited, len(skipped)) if options.audit else None,
    )
    failures = {s: a for s, a in scouts.failures.items() if s not in taken}
    candidates = Candidates(
        workload,
        {s: a for s, a in scouts.artifacts.items() if s not in failures},
        tuple(failures.values()),
        scouts.verdicts,
    )
    others = tuple(a for s, a in scouts.attempts.items() if s not in taken)
    return Explored(candidates, tuple(final), others, exploration)


def strategy_over(name: str, spaces: Sequence[Space], seed: int) -> Strategy:
    """A strategy over the spaces of one or several families, numbered through."""
    strategies = [create(name, space, seed) for space in spaces]
    return strategies[0] if len(spaces) == 1 else RoundRobin(name, spaces, strategies)


def _spaces(
    by_key: Mapping[str, Config],
    artifacts: Mapping[str, Artifact],
    first: Sequence[str],
    workload: Workload,
) -> list[Space]:
    """One space per family, with facts where the artifact is known."""
    points: dict[str, list[Point]] = {}
    for key, config in by_key.items():
        known = artifacts.get(key)
        made = point(config, known.resources if known is not None else None)
        made = dataclasses.replace(made, facts=with_derived(made.knobs, made.facts, workload))
        points.setdefault(families.of(config).name, []).append(made)
    spaces = []
    for some in points.values():
        index = {p.key: i for i, p in enumerate(some)}
        spaces.append(Space(tuple(some), tuple(index[s] for s in first if s in index)))
    return spaces


def _checked(prepared: Candidates, scouts: _Scouts) -> Candidates:
    """The same; a kernel that failed its check is no candidate, whatever was known before."""
    for attempt in prepared.failures:
        scouts.artifacts.pop(attempt.subject, None)
    return prepared


def _observation(index: int, attempt: Attempt | None) -> Observation:
    """What a strategy is told; None: it did not compile or failed its check."""
    found = attempt.measurement if attempt is not None and attempt.outcome is Outcome.OK else None
    if found is None:
        return Observation(index, None)
    counters = {name: q.value for name, q in found.counters.items()}
    return Observation(index, median(found.samples_s), counters)


def _best(times: Mapping[str, float]) -> list[str]:
    """The finalists, fastest first."""
    ordered = sorted(times, key=lambda s: (times[s], s))
    limit = FINAL_WITHIN * times[ordered[0]] if ordered else 0.0
    return list(itertools.takewhile(lambda s: times[s] <= limit, ordered[:FINALISTS]))


def _audit(
    final: Sequence[Attempt], finalists: Sequence[str], audited: Sequence[str], n_skipped: int
) -> Audit | None:
    """What the final says of the audited; None where no finalist has a time."""
    times = {a.subject: median(a.measurement.samples_s) for a in final if a.measurement}
    best = min((times[s] for s in finalists if s in times), default=None)
    if best is None:
        return None
    return judge(best, {s: times.get(s) for s in audited}, n_skipped)
