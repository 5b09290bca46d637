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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fa_tune import families
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.model import Artifact, Attempt, Outcome, Verdict
from fa_tune.core.stats import median
from fa_tune.core.workload import Workload
from fa_tune.families.base import Config
from fa_tune.search.strategies import USES_FACTS, Observation, Point, Space, Strategy, create
from fa_tune.search.strategies.audit import Audit, judge, sample
from fa_tune.search.strategies.baseline import InOrder
from fa_tune.search.strategies.budget import spend
from fa_tune.search.strategies.points import point, with_derived
from fa_tune.search.strategies.round_robin import RoundRobin
from fa_tune.search.strategies.transfer import Prior, with_prior
from fa_tune.tune.build import PreparedWorkload, prepare
from fa_tune.tune.measure import MeasuredWorkload, measured, request_for
from fa_tune.tune.plan import Scouting, SearchPlan
from fa_tune.tune.results import Exploration
from fa_tune.tune.session import Session

FINALISTS = 8
FINAL_WITHIN = 1.05  # of the fastest proposal's median


def explore(
    plan: SearchPlan,
    scouting: Scouting,
    session: Session,
    workload: Workload,
    configs: Sequence[Config],
    first: Sequence[str],
) -> MeasuredWorkload:
    """Search one workload by a strategy, in a session of its own.  `first` are subjects
    to measure before all others and again in the final: the defaults, and what the registry holds.

    Raises NoUsableVariant when nothing compiles, and what compiling and measuring raise.
    """
    run = _Run(plan, session, workload, {families.variant(c).key: c for c in configs}, first)
    if scouting.strategy in USES_FACTS:
        run.build_everything()
    spaces = with_priors(run.spaces(), scouting.priors, session.selection.device.name)
    keys = [p.key for space in spaces for p in space.points]
    strategy = strategy_over(scouting.strategy, spaces, session.measure.seed)
    observed = spend(strategy, scouting.budget, lambda indices: run.scout(indices, keys))

    times = {keys[o.index]: o.time_s for o in observed if o.time_s is not None}
    skipped = sorted(set(range(len(keys))) - {o.index for o in observed})
    audited = [keys[i] for i in sample(skipped, scouting.audit, session.measure.seed)]
    finalists = list(dict.fromkeys([*(s for s in first if s in times), *_best(times)]))
    final = run.final(finalists, audited)
    exploration = Exploration(
        strategy=scouting.strategy,
        seed=session.measure.seed,
        budget=str(scouting.budget),
        configs=len(keys),
        scouted=len(observed),
        failed=sum(o.time_s is None for o in observed),
        finalists=len(finalists),
        audit=_audit(final, finalists, audited, len(skipped)) if scouting.audit else None,
    )
    return run.result(final, exploration)


@dataclass
class _Run:
    """The search of one workload, and what has been compiled and measured on the way, by
    subject."""

    plan: SearchPlan
    session: Session
    workload: Workload
    configs: Mapping[str, Config]
    first: Sequence[str]
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    failures: dict[str, Attempt] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    attempts: dict[str, Attempt] = field(default_factory=dict)

    def build_everything(self) -> None:
        """Compile all, without a check, and forget what does not compile; raises NoUsableVariant
        where nothing is left."""
        self._prepare(list(self.configs), verify=False, facts=True)
        self.configs = {key: c for key, c in self.configs.items() if key in self.artifacts}
        if not self.configs:
            reasons = "; ".join(dict.fromkeys(a.reason for a in self.failures.values()))
            raise NoUsableVariant(f"nothing compiles for {self.workload.key}: {reasons}")

    def spaces(self) -> list[Space]:
        """One space per family, with facts where the artifact is known."""
        by_family: dict[str, list[Point]] = {}
        for key, config in self.configs.items():
            known = self.artifacts.get(key)
            made = point(config, known.resources if known is not None else None)
            facts = with_derived(made.knobs, made.facts, self.workload)
            made = dataclasses.replace(made, facts=facts)
            by_family.setdefault(families.of(config).name, []).append(made)
        spaces = []
        for points in by_family.values():
            index = {p.key: i for i, p in enumerate(points)}
            spaces.append(Space(tuple(points), tuple(index[s] for s in self.first if s in index)))
        return spaces

    def scout(self, indices: Sequence[int], keys: Sequence[str]) -> list[Observation]:
        """What a strategy is told of the points that it proposes; `keys` are all of them."""
        subjects = [keys[i] for i in indices]
        self._prepare(subjects)
        able = self.session.capabilities
        few = min(able.samples_per_scout, max(1, self.session.runs - 1))
        right = [s for s in subjects if s not in self.failures]
        attempts = self._measure(self.session.with_runs(few), right, final=False)
        self.attempts |= {a.subject: a for a in attempts}
        return [_observation(i, self.attempts.get(keys[i])) for i in indices]

    def final(self, finalists: Sequence[str], audited: Sequence[str]) -> list[Attempt]:
        if audited:
            self._prepare(audited)
        tally = self.session.tally
        before = tally.reused
        subjects = [s for s in (*finalists, *audited) if s not in self.failures]
        attempts = self._measure(self.session, subjects, final=True)
        if self.session.capabilities.independent_samples:
            # The first of a finalist's samples is the scout's: nothing of an earlier run.
            tally.reused = max(before, tally.reused - len(set(finalists)))
        return attempts

    def result(self, final: Sequence[Attempt], exploration: Exploration) -> MeasuredWorkload:
        """The workload after its final."""
        ended = {a.subject for a in final}
        failures = {s: a for s, a in self.failures.items() if s not in ended}
        prepared = PreparedWorkload(
            self.workload,
            {s: a for s, a in self.artifacts.items() if s not in failures},
            tuple(failures.values()),
            self.verdicts,
        )
        others = tuple(a for s, a in self.attempts.items() if s not in ended)
        defaults = self.plan.defaults.keys(self.workload)
        return MeasuredWorkload(prepared, tuple(final), defaults, others, exploration)

    def _prepare(
        self, subjects: Sequence[str], *, verify: bool = True, facts: bool = False
    ) -> None:
        configs = [self.configs[s] for s in subjects]
        (found,) = prepare(self.session, [self.workload], configs, verify=verify, facts=facts)
        if verify:  # a kernel that failed its check is no candidate, whatever was known before
            for attempt in found.failures:
                self.artifacts.pop(attempt.subject, None)
        self.artifacts |= found.artifacts
        self.failures |= {a.subject: a for a in found.failures}
        self.verdicts |= found.verdicts

    def _measure(self, session: Session, subjects: Sequence[str], *, final: bool) -> list[Attempt]:
        known = {s: self.artifacts[s] for s in subjects if s in self.artifacts}
        if final:
            request = self.plan.request(session, self.workload, known, tuple(self.first))
        else:
            request = request_for(
                session, self.workload, known, adaptive=False, search=self.plan.tag
            )
        (attempts,) = measured(session, [request])
        return attempts


def strategy_over(name: str, spaces: Sequence[Space], seed: int) -> Strategy:
    """A strategy over the spaces of one or several families, numbered through.  Each begins with
    its start points, `random` too: the default competes in every search."""
    strategies = [create(name, space, seed) for space in spaces]
    for strategy, space in zip(strategies, spaces, strict=True):
        if isinstance(strategy, InOrder):
            strategy.begin_with(space.start)
    return strategies[0] if len(spaces) == 1 else RoundRobin(spaces, strategies)


def _observation(index: int, attempt: Attempt | None) -> Observation:
    """What a strategy is told; None: it did not compile or failed its check."""
    found = attempt.measurement if attempt is not None and attempt.outcome is Outcome.OK else None
    return Observation(index, None if found is None else median(found.samples_s))


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


def with_priors(spaces: Sequence[Space], known: Sequence[Prior], gpu: str) -> list[Space]:
    """The spaces with what may be expected of their points by what is `known` of that GPU model;
    as they are where nothing is.  Raises NoUsableVariant where nothing of it is of that GPU, or has
    the knobs of any of them."""
    if not known:
        return list(spaces)
    ours = [prior for prior in known if prior.gpu == gpu]
    if not ours:
        raise NoUsableVariant(f"no recorded space of an {gpu} to learn from")
    found = [with_prior(space, ours) for space in spaces]
    if not any(space.expected for space in found):
        raise NoUsableVariant("no recorded space has the knobs of these configs")
    return found
