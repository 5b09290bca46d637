"""More GPUs than workloads: a screening round on all of them, and a final on one.

The configs of a workload are dealt out in groups, one per GPU.  Every group holds the same pair,
the default and another kernel, so each config has a ratio to the default of its own GPU, and
only ratios are compared between groups.  Who may win, by that, meets on one GPU, where the
decision is made as ever.  How far the GPUs disagree on the pair widens what is let through.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fa_tune.core.model import Attempt, Outcome
from fa_tune.core.stats import median, paired_ratio
from fa_tune.operations import flops
from fa_tune.store.journal import AttemptRecord, Journal
from fa_tune.tune.build import PreparedWorkload
from fa_tune.tune.dispatch import run_on_gpus
from fa_tune.tune.fleet.cross_gpu import gpus_of, scaled
from fa_tune.tune.measure import MeasuredWorkload, Sampling, measure_workload
from fa_tune.tune.search_state import SearchState
from fa_tune.tune.session import Session

MIN_GROUP = 32  # configs that are worth a worker process of their own
WITHIN = 1.05  # of the fastest ratio, to reach the final


@dataclass(frozen=True)
class Group:
    """The configs of one workload that one GPU measures; `pair` is in every group."""

    prepared: PreparedWorkload
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
class Screening:
    """What the final is between: `finals` are all that was prepared, but for those who were
    eliminated, whose attempts are in `groups`, by workload."""

    finals: tuple[PreparedWorkload, ...]
    groups: Mapping[str, tuple[Group, ...]] = dataclasses.field(default_factory=dict)

    def with_eliminated(self, final: MeasuredWorkload) -> MeasuredWorkload:
        """A final with the attempts of those that were eliminated, their times multiplied by what
        the default took in the final over what it took beside them."""
        groups = self.groups.get(final.prepared.workload.key, ())
        finalists = {a.subject: a for a in final.attempts}
        eliminated: list[Attempt] = []
        for group in groups:
            samples = _samples(finalists.get(group.pair[0]))
            known = bool(samples and group.default_s)
            factor = median(samples) / median(group.default_s) if known else 1.0
            eliminated += [
                scaled(a, factor) for a in group.found.values() if a.subject not in finalists
            ]
        everyone = groups[0].prepared if groups else final.prepared
        return dataclasses.replace(final, prepared=everyone, others=(*final.others, *eliminated))


def screen(state: SearchState, prepared: Sequence[PreparedWorkload]) -> Screening:
    """A screening round of the workloads that have many configs, where there are at least two
    GPUs for each; else everyone is in the final."""
    share = len(state.session.pool.present) // max(1, len(prepared))
    if share < 2:
        return Screening(tuple(prepared))
    groups = [group for p in prepared for group in _deal(p, state.defaults.keys(p.workload), share)]
    few = state.session.capabilities.samples_per_scout
    measured = run_on_gpus(
        state.session.with_runs(few),
        groups,
        _measure,
        cost=lambda g: flops.matmul_flop(g.prepared.workload) * len(g.subjects),
    )
    by_workload: dict[str, tuple[Group, ...]] = {}
    for group in measured:
        key = group.prepared.workload.key
        by_workload[key] = (*by_workload.get(key, ()), group)
    finals = [_final(p, by_workload.get(p.workload.key, ())) for p in prepared]
    return Screening(tuple(finals), by_workload)


def _measure(session: Session, group: Group) -> Group:
    """The group with its attempts."""
    prepared = group.prepared
    tag = _tag(group, session.fingerprint(session.runs, ()).digest)
    done = _tagged(session.journal, group, tag) if session.reuse else {}
    if len(done) == len(group.subjects) + len(group.pair):
        session.tally.reused += len(done)
        return dataclasses.replace(group, found=done)
    attempts = measure_workload(
        session,
        prepared.workload,
        {s: prepared.artifacts[s] for s in (*group.pair, *group.subjects)},
        Sampling(keep=group.pair, adaptive=False, search=tag),
    )
    return dataclasses.replace(group, found={a.subject: a for a in attempts})


def _deal(prepared: PreparedWorkload, defaults: Sequence[str], share: int) -> list[Group]:
    """The groups of one workload; none where they would be too small to be worth it."""
    here = [s for s in defaults if s in prepared.artifacts]
    pair = tuple(dict.fromkeys([*here, *prepared.artifacts]))[:2]
    others = [s for s in prepared.artifacts if s not in pair]
    n = min(share, len(others) // MIN_GROUP)
    return [Group(prepared, tuple(others[i::n]), pair) for i in range(n)] if n >= 2 else []


def _final(prepared: PreparedWorkload, groups: Sequence[Group]) -> PreparedWorkload:
    """The workload without those that were eliminated; who failed has failed."""
    if not groups:
        return prepared
    ratios = {s: r for g in groups for s in g.subjects if (r := g.ratio(s)) is not None}
    pairs = [r for g in groups if (r := g.ratio(g.pair[-1])) is not None]
    spread = max(pairs) / min(pairs) if pairs else 1.0
    if not all(g.default_s for g in groups):  # nothing to compare groups by
        return prepared
    limit = min(*ratios.values(), 1.0) * WITHIN * spread if ratios else 1.0
    through = {s for s, ratio in ratios.items() if ratio <= limit} | set(groups[0].pair)
    artifacts = {s: a for s, a in prepared.artifacts.items() if s in through}
    return dataclasses.replace(prepared, artifacts=artifacts)


def _samples(attempt: Attempt | None) -> tuple[float, ...]:
    if attempt is None or attempt.outcome is not Outcome.OK or attempt.measurement is None:
        return ()
    return tuple(attempt.measurement.samples_s)


def _tag(group: Group, conditions: str) -> str:
    """The same for a group and its resumption, different for another group or under other
    conditions, such as another driver."""
    text = "\n".join([conditions, *sorted((*group.pair, *group.subjects))])
    return f"screening {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _tagged(journal: Journal, group: Group, tag: str) -> dict[str, Attempt]:
    """The attempts of a group that an earlier run of it made, all on one GPU."""
    found: dict[str, Attempt] = {}
    key = group.prepared.workload.key  # which the tag does not tell
    for record in journal.records():
        if not isinstance(record, AttemptRecord) or record.attempt.workload != key:
            continue
        measurement = record.attempt.measurement
        if measurement is not None and measurement.search == tag:
            found[record.attempt.subject] = record.attempt
    return found if len(gpus_of(found)) < 2 else {}
