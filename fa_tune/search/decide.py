"""Which config wins, by rules that give the same answer for the same numbers.

The *leader* is the fastest.  Its *tie set* is everything the measurements cannot tell from it.
The choice is the first, by properties that do not vary from run to run, of those that are no
further behind the leader than a tie; and the default config is left only for a gain that is
larger than the margin and than the noise.  What the choice hangs on is asked in this order, so
that a race (`core.stopping`) knows what another sample is worth.  Numbers come in, a
`Decision` goes out; nothing is measured or printed here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fa_tune.core.comparison import Confirmation, OnInputs
from fa_tune.core.errors import InvalidConfig, NoUsableVariant
from fa_tune.core.model import Measurement, is_reference
from fa_tune.core.stats import (
    MARGIN,
    TIE,
    Interval,
    Ratio,
    comparable,
    is_tied,
    levels,
    median,
    median_interval,
    paired_ratio,
)
from fa_tune.search.data_dependence import first_sound, worst

TieBreak = Callable[[str], tuple[Any, ...]]


class Rule(StrEnum):
    """What ended the decision."""

    ONLY_CANDIDATE = "only_candidate"
    DEFAULT_IS_LEADER = "default_is_leader"
    DEFAULT_IS_TIED = "default_is_tied"
    WITHIN_MARGIN = "within_margin"
    ONE_SAMPLE = "one_sample"
    CLEAR_WINNER = "clear_winner"
    TIE_BREAK = "tie_break"
    CONTRADICTED = "contradicted"
    BEHIND_ON_INPUTS = "behind_on_inputs"


@dataclass(frozen=True)
class Standing:
    """One candidate's place.  Times in seconds; `interval_s` is None for a single sample.

    `to_leader` and `to_chosen` are time ratios over the shared rounds, above 1 = slower.
    """

    subject: str
    median_s: float
    interval_s: Interval | None
    n: int
    to_leader: Ratio
    to_chosen: Ratio
    tied: bool


@dataclass(frozen=True)
class Decision:
    """The choice by one method, and everything it rests on.

    `standings` are all candidates, fastest first.  `tie_set` are the subjects that cannot be
    told from the leader, in the order of the fixed rule; the chosen one is not among them
    when the default stays although something is a little faster.  `to_default` and
    `to_references` are chosen/other, below 1 = the chosen one is faster; `to_default` is None
    when the default was not measured.  `sentence` says for a reader which rule ended it.
    """

    method: str
    chosen: Standing
    leader: Standing
    tie_set: tuple[str, ...]
    standings: tuple[Standing, ...]
    default: str | None
    to_default: Ratio | None
    to_references: Mapping[str, Ratio]
    rule: Rule
    sentence: str

    @property
    def runners_up(self) -> tuple[Standing, ...]:
        """Every candidate but the chosen one, fastest first."""
        return tuple(s for s in self.standings if s.subject != self.chosen.subject)


def decide(
    measurements: Sequence[Measurement],
    default_key: str | None,
    *,
    margin: float = MARGIN,
    tie: float = TIE,
    tie_break: TieBreak = lambda subject: (),
) -> Decision:
    """Choose among measurements of one workload, all taken with one method.

    Subjects starting with `ref:` are compared with, never chosen.  `default_key` is the
    default variant's key; None, or one that was not measured, leaves the default out.
    `tie_break` gives the sort key of a tied subject, for example (shared memory bytes,
    registers); the subject's text decides what is left.  `margin` and `tie` are fractions.

    Raises InvalidConfig for methods or workloads that are mixed, a subject given twice and
    times that are not positive and finite; NoUsableVariant when there is no candidate at all.
    """
    workload, method = _check(measurements)
    samples = {m.subject: m.samples_s for m in measurements}
    compared = comparable(samples, {m.subject: m.relative for m in measurements})
    candidates = [s for s in samples if not is_reference(s)]
    if not candidates:
        raise NoUsableVariant(f"nothing to choose from for {workload}: only references ran")

    def order(subject: str) -> tuple[tuple[Any, ...], str]:
        return tuple(tie_break(subject)), subject

    default = default_key if default_key in candidates else None
    # Who left the race early did so at another clock: the lowest median may be theirs.  Where
    # all took part in every round, or are compared by ratios, it is the fastest one's.
    base = default or max(candidates, key=lambda s: (len(samples[s]), order(s)))
    ours = {s: compared[s] for s in candidates}
    level = {s: median(taken) for s, taken in ours.items()}
    if compared == samples and len({len(taken) for taken in ours.values()}) > 1:
        level = levels(ours, base)
    ordered = sorted(candidates, key=lambda s: (level[s], order(s)))
    leader = ordered[0]
    to_leader = {s: paired_ratio(compared[s], compared[leader]) for s in candidates}
    tied = sorted((s for s in candidates if s == leader or is_tied(to_leader[s], tie)), key=order)
    near = [s for s in tied if s == leader or is_near(to_leader[s], tie)]
    chosen, rule = _choose(compared, leader, tied, near, default, margin)
    to_default = None if default is None else paired_ratio(compared[chosen], compared[default])
    leader_gain = 1.0 - 1.0 / to_leader[chosen].value
    sentence = _sentence(
        rule,
        chosen,
        leader,
        len(near),
        _against(chosen, to_default, default_key),
        f"{_percent(leader_gain)} less time, where more than {_percent(margin)} is asked",
    )
    basis = _Basis(method, samples, compared, tuple(ordered), leader, tuple(tied), default)
    return basis.decision(chosen, rule, sentence)


def keep_default(
    decision: Decision, measurements: Sequence[Measurement], confirmation: Confirmation
) -> Decision:
    """The decision with the default in the place of a choice that was not confirmed;
    `measurements` are those it was made by."""
    assert decision.default is not None
    ratio = confirmation.ratio
    change = "no less" if ratio.value == 1.0 else f"{_percent(ratio.value - 1.0)} more"
    basis = _basis_of(decision, measurements)
    sentence = (
        f"{decision.default} stays: it is the default, and {confirmation.chosen}, which the "
        f"search preferred, took {change} time than it in {confirmation.n} pairs run as a "
        "program runs them."
    )
    return basis.decision(decision.default, Rule.CONTRADICTED, sentence)


def faster_reference(
    decision: Decision, names: Collection[str], margin: float = MARGIN
) -> str | None:
    """The fastest of these references if it beats the choice by more than the margin and the
    noise, else None."""
    sure = {
        subject: ratio.value
        for subject, ratio in decision.to_references.items()
        if subject in names and ratio.interval is not None and ratio.interval.low > 1.0
    }
    fastest = max(sure, key=sure.__getitem__, default=None)
    return fastest if fastest is not None and 1.0 / sure[fastest] < 1.0 - margin else None


def contenders(
    decision: Decision, measurements: Sequence[Measurement], margin: float = MARGIN
) -> tuple[str, ...]:
    """Who may be chosen, in the order in which they would be: the choice, and unless that is the
    default, those others that beat the default by more than the margin; what is tied with the
    leader comes before what is slower.  `measurements` are those it was made by."""
    chosen, default = decision.chosen.subject, decision.default
    if default in (None, chosen):
        return (chosen,)
    basis = _basis_of(decision, measurements)
    others = [s for s in (*basis.tie_set, *basis.ordered) if s != default]
    faster = [s for s in others if _may_beat(basis.ratio(s, str(default)), margin)]
    return tuple(dict.fromkeys([chosen, *faster]))


def sound_choice(
    decision: Decision,
    measurements: Sequence[Measurement],
    figures: Mapping[str, Sequence[OnInputs]],
    margin: float = MARGIN,
) -> Decision:
    """The decision; where its choice is too far behind the default on any inputs, one for the next
    contender that is not, or for the default.  `figures` by subject: whoever has none is no
    contender, since it may be behind as well; `measurements` are those it was made by."""
    refused = decision.chosen.subject
    behind = worst(figures.get(refused, ()))
    if decision.default is None or behind is None or not behind.is_behind:
        return decision
    assert behind.to_default is not None
    others = [s for s in contenders(decision, measurements, margin) if s in figures]
    subject = first_sound(others, figures) or decision.default
    more = f"{_percent(behind.to_default.value - 1.0)} more"
    behind_in_words = f"takes {more} time than the default on {behind.inputs} inputs"
    basis = _basis_of(decision, measurements)
    if subject == decision.default:
        sentence = (
            f"{subject} stays: it is the default, and {refused}, which the search preferred, "
            f"{behind_in_words}."
        )
    else:
        against = _against(subject, basis.ratio(subject, decision.default), decision.default)
        sentence = (
            f"{subject} comes next: {refused}, which the search preferred, {behind_in_words}; "
            f"{against}."
        )
    return basis.decision(subject, Rule.BEHIND_ON_INPUTS, sentence)


def _basis_of(decision: Decision, measurements: Sequence[Measurement]) -> _Basis:
    """What a decision by these measurements rests on."""
    samples = {m.subject: m.samples_s for m in measurements}
    return _Basis(
        method=decision.method,
        samples=samples,
        compared=comparable(samples, {m.subject: m.relative for m in measurements}),
        ordered=tuple(s.subject for s in decision.standings),
        leader=decision.leader.subject,
        tie_set=decision.tie_set,
        default=decision.default,
    )


@dataclass(frozen=True)
class _Basis:
    """What a decision rests on.  `samples` in seconds, `compared` what they are compared by;
    `ordered` are the candidates, fastest first."""

    method: str
    samples: Mapping[str, Sequence[float]]
    compared: Mapping[str, Sequence[float]]
    ordered: tuple[str, ...]
    leader: str
    tie_set: tuple[str, ...]
    default: str | None

    def decision(self, chosen: str, rule: Rule, sentence: str) -> Decision:
        """The decision for `chosen`, with all its figures."""
        by_subject = {
            s: Standing(
                subject=s,
                median_s=median(self.samples[s]),
                interval_s=median_interval(self.samples[s]),
                n=len(self.samples[s]),
                to_leader=self.ratio(s, self.leader),
                to_chosen=self.ratio(s, chosen),
                tied=s in self.tie_set,
            )
            for s in self.ordered
        }
        references = (s for s in sorted(self.compared) if is_reference(s))
        return Decision(
            method=self.method,
            chosen=by_subject[chosen],
            leader=by_subject[self.leader],
            tie_set=self.tie_set,
            standings=tuple(by_subject.values()),
            default=self.default,
            to_default=None if self.default is None else self.ratio(chosen, self.default),
            to_references={s: self.ratio(chosen, s) for s in references},
            rule=rule,
            sentence=sentence,
        )

    def ratio(self, numerator: str, denominator: str) -> Ratio:
        """One candidate's time over another's."""
        return paired_ratio(self.compared[numerator], self.compared[denominator])


def is_near(to_leader: Ratio, tie: float = TIE) -> bool:
    """Whether candidate/leader is no further behind than a tie.  Not so is one that is known so
    badly that it may be: chosen is what is fast in any case."""
    return to_leader.value <= 1.0 + tie


def beats(to_default: Ratio, margin: float = MARGIN) -> bool:
    """Whether challenger/default is a gain of more than `margin` and its interval excludes 1; of a
    single pair of samples none is known, so it proves nothing."""
    interval = to_default.interval
    return to_default.value < 1.0 - margin and interval is not None and interval.high < 1.0


def _may_beat(to_default: Ratio, margin: float) -> bool:
    """The same for what is measured further before it is chosen: a single sample will do."""
    if to_default.interval is None:
        return to_default.value < 1.0 - margin
    return beats(to_default, margin)


def _check(measurements: Sequence[Measurement]) -> tuple[str, str]:
    """The one workload and method of all measurements; raises as `decide` does."""
    if not measurements:
        raise NoUsableVariant("nothing to choose from: no measurement")
    first = measurements[0]
    seen: set[str] = set()
    for m in measurements:
        if m.method != first.method:
            raise InvalidConfig(
                f"{m.subject} was measured by {m.method} and {first.subject} by {first.method}: "
                "results of different methods are never ranked together"
            )
        if m.workload != first.workload:
            raise InvalidConfig(
                f"{m.subject} was measured on {m.workload} and {first.subject} on "
                f"{first.workload}: only one workload can be decided at a time"
            )
        if m.subject in seen:
            raise InvalidConfig(f"{m.subject} was given twice for {m.workload}")
        seen.add(m.subject)
        if not m.samples_s:
            raise InvalidConfig(f"{m.subject} has no samples on {m.workload}")
        if not all(0.0 < s < float("inf") for s in (*m.samples_s, *m.relative)):
            raise InvalidConfig(f"{m.subject} has a time that is not positive and finite")
    return first.workload, first.method


def _choose(
    samples: Mapping[str, Sequence[float]],
    leader: str,
    tied: Sequence[str],
    near: Sequence[str],
    default: str | None,
    margin: float,
) -> tuple[str, Rule]:
    """The chosen subject and the rule that ended it.  `near` are those of `tied` that are no
    further behind the leader than a tie, in the fixed rule's order."""
    if not any(s != leader and not is_reference(s) for s in samples):
        return leader, Rule.ONLY_CANDIDATE
    if default == leader:
        return leader, Rule.DEFAULT_IS_LEADER
    # Whether the default is left is asked once, of the leader: asked of every one near it, it
    # would be chance which of them are just beyond the margin.
    gain = None if default is None else paired_ratio(samples[leader], samples[default])
    if default is not None and gain is not None and not beats(gain, margin):
        return default, _why_default(gain, default in tied, margin)
    winners = list(near)
    if default is not None:
        winners = [
            s for s in near if s == leader or beats(paired_ratio(samples[s], samples[default]), 0.0)
        ]
    return winners[0], Rule.CLEAR_WINNER if len(near) == 1 else Rule.TIE_BREAK


def _why_default(gain: Ratio, is_tied: bool, margin: float) -> Rule:
    """The rule by which the default stays although something, by `gain` over it, leads."""
    if is_tied:
        return Rule.DEFAULT_IS_TIED
    return Rule.ONE_SAMPLE if _may_beat(gain, margin) else Rule.WITHIN_MARGIN


def _sentence(
    rule: Rule, chosen: str, leader: str, n_tied: int, against: str, leader_gain: str
) -> str:
    """One sentence for a reader: what was chosen and why."""
    match rule:
        case Rule.ONLY_CANDIDATE:
            return f"{chosen} is the only candidate that was measured."
        case Rule.DEFAULT_IS_LEADER:
            return f"{chosen} is the default, and no other config leads it by more than a tie."
        case Rule.DEFAULT_IS_TIED:
            return (
                f"{chosen} stays: it is the default, and the measurements cannot tell it from "
                f"the fastest, {leader}."
            )
        case Rule.WITHIN_MARGIN:
            return (
                f"{chosen} stays: it is the default, and what the fastest, {leader}, gains is "
                f"not enough to leave it: {leader_gain}."
            )
        case Rule.ONE_SAMPLE:
            return (
                f"{chosen} stays: it is the default, and a single sample cannot tell what "
                f"the fastest, {leader}, gains from chance: more samples are needed."
            )
        case Rule.CLEAR_WINNER:
            return f"{chosen} is the fastest and tied with nothing; {against}."
        case Rule.TIE_BREAK:
            return (
                f"{chosen} comes first of {n_tied} tied candidates by what is recorded of this "
                f"workload, least time lost on neighbouring ones, less shared memory, fewer "
                f"registers, config text; "
                f"{against}."
            )
        case Rule.CONTRADICTED | Rule.BEHIND_ON_INPUTS:  # told where the contradiction is
            raise AssertionError(rule)


def _against(chosen: str, to_default: Ratio | None, default_key: str | None) -> str:
    """How the chosen one stands to the default, for the sentence; which one that is, where it
    is of another family."""
    if default_key is None:
        return "no default was named"
    if to_default is None:
        return f"the default, {default_key}, was not measured"
    which = "" if _family(chosen) == _family(default_key) else f", {default_key}"
    return f"it takes {_percent(1.0 - to_default.value)} less time than the default{which}"


def _family(subject: str) -> str:
    return subject.partition(":")[0]


def _percent(fraction: float) -> str:
    return f"{100.0 * fraction:.2f} %"
