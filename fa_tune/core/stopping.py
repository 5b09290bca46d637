"""When rounds of samples are over: which kernels take part in the next one, and why no others.

Every kernel gets 5 rounds; up to 50 go to those that may still win, and more, while seconds are
left, where the *choice* depends on it.  The choice is the first by a fixed order of preference
that is no further behind the best than a tie (see `search.decide`).  So little has to be known:
whether the best beats the default by the margin, and if so, on which side of the tie limit those
lie that are preferred to the first one that is surely within it.  A limit that is met by chance
would be another choice the next time.

Samples come in, names go out.  Nothing is measured here, so simulated noise can test it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

from fa_tune.core.model import is_reference
from fa_tune.core.stats import MARGIN, TIE, Interval, median, median_bounds

ABANDON = 3.0  # times the best's: a sample like this ends a candidate
DOMINATED = 0.02  # the bounds of the ratio to the best lie this far above 1
STAGES = (1, 3, 10)  # rounds, in multiples of the first number: first, late, enough
MOST = 100  # rounds at all, in the same multiples, for what is open after enough of them
SECONDS = 4.0  # after the first rounds; beyond these none gets more than enough
NEXT_LOOK = 1.2  # times the rounds so far: looks become rarer, each is a chance to err


class StopReason(StrEnum):
    """Why there are no more samples of a kernel, in words for the record."""

    ENOUGH = "as many rounds as were asked for"
    ABANDONED = "a multiple of the best time"
    DOMINATED = "clearly slower than the best"
    NOT_TIED = "cannot be tied with the best"
    DECIDED = "the choice was decided"
    LIMIT = "the limit of rounds"
    BEFORE = "ended by the worker before"


class StoppingRule:
    """Rounds of one workload.  `samples` are lists by name, which the caller goes on filling, of
    seconds or of ratios to something common; sample i of each was taken in round i.

    Not `adaptive`: exactly `runs` rounds for all.  `keep` are not left out before there are
    enough rounds, and neither are references (`ref:fa2`), which no candidate is compared with.
    `default`, one of `keep` or empty, is what a winner has to beat by the `margin`, and stays to
    the end.  `order` names the candidates as they are preferred in a tie, the first one first;
    without it every tie has to be known.  `stop_reasons` say for
    each name why it has no more samples.
    """

    def __init__(
        self,
        samples: Mapping[str, list[float]],
        runs: int,
        *,
        adaptive: bool = True,
        keep: Collection[str] = (),
        default: str = "",
        order: Sequence[str] = (),
        margin: float = MARGIN,
    ) -> None:
        self._samples = dict(samples)
        self._runs = runs
        self._adaptive = adaptive
        self._keep = frozenset(keep)
        self._default = default if default in keep else ""
        self._order = tuple(order)
        self._margin = margin
        self._extra = 0
        self._next_look = runs
        self._began_s: float | None = None  # when the first rounds were over
        self.stop_reasons: dict[str, StopReason] = {}
        most = max((len(s) for s in self._samples.values()), default=0)
        for name, taken in self._samples.items():
            if len(taken) < most - 1:  # one behind: the worker before died within that round
                self.stop_reasons[name] = StopReason.BEFORE

    @property
    def active(self) -> list[str]:
        """Those that may take part in another round."""
        return [name for name in self._samples if name not in self.stop_reasons]

    def drop(self, name: str) -> None:
        """Forget a subject that failed."""
        self._samples.pop(name, None)
        self.stop_reasons.pop(name, None)

    def repeat(self) -> None:
        """One round was disturbed: one more, for all that are active."""
        self._extra += 1

    def next_round(self, now_s: float = 0.0) -> tuple[int, list[str]]:
        """The next round's number, from 0, and who takes part; none when it is over.
        `now_s` is any clock's time in seconds."""
        active = self.active
        if not active:
            return 0, []
        done = max(len(self._samples[n]) for n in active)
        if behind := [n for n in active if len(self._samples[n]) < done]:
            return done - 1, behind
        self._judge(done, now_s)
        return done, self.active

    def _judge(self, done: int, now_s: float) -> None:
        """End those that another round would tell nothing about; all have `done` samples."""
        counted = done - self._extra
        own = self._candidates()
        if not self._adaptive or not done or not own:
            if counted >= self._runs:
                self._end(self.active, StopReason.ENOUGH)
            return
        if counted <= self._runs:
            limit = ABANDON * min(median(self._samples[n]) for n in own)
            free = [n for n in own if n not in self._keep]
            self._end([n for n in free if median(self._samples[n]) > limit], StopReason.ABANDONED)
        if counted < self._next_look:
            return
        best = _best({n: self._samples[n] for n in own})
        most, runs = MOST * self._runs, self._runs
        later = max(counted + runs, runs * math.ceil(NEXT_LOOK * counted / runs))
        self._next_look = min(later, most)
        if self._began_s is None:
            self._began_s = now_s
        late = counted >= STAGES[1] * self._runs
        self._leave_out(best, late=late)
        ours = {name: self._samples[name] for name in self._candidates()}
        if not undecided(ours, self._default, self._order, self._margin, early=not late):
            self._end(self.active, StopReason.DECIDED)
        elif counted >= STAGES[-1] * self._runs:
            over = now_s - self._began_s > SECONDS or counted >= most
            rest = [n for n in self.active if n not in ours or n in self._keep - {self._default}]
            self._end(self.active if over else rest, StopReason.LIMIT)

    def _leave_out(self, best: str, *, late: bool) -> None:
        """End those that are dominated; `late`, also those who can no longer be tied."""
        for name in self._candidates():
            if name == best or name in self._keep:
                continue
            low = bounds(self._samples[name], self._samples[best]).low
            if low > 1.0 + DOMINATED:
                self.stop_reasons[name] = StopReason.DOMINATED
            elif late and low > 1.0 + TIE:
                self.stop_reasons[name] = StopReason.NOT_TIED

    def _candidates(self) -> list[str]:
        return [n for n in self.active if not is_reference(n)]

    def _end(self, names: Sequence[str], why: StopReason) -> None:
        for name in names:
            self.stop_reasons[name] = why


def undecided(
    samples: Mapping[str, Sequence[float]],
    default: str = "",
    order: Sequence[str] = (),
    margin: float = MARGIN,
    *,
    early: bool = False,
) -> frozenset[str]:
    """What the choice depends on, as far as is known: the best and those that another round would
    tell more about; empty if the choice is decided.  All are candidates, sample i of each of the
    same round.

    Whether the `default`, if there, is left comes first: only if it is, ties matter.  Of these
    the one is chosen that is first in `order`, so those after one that is surely tied do
    not matter either.  `early`: a tie is not believed yet.
    """
    if len(samples) < 2:
        return frozenset()
    best = _best(samples)
    others = {n: taken for n, taken in samples.items() if n != default}
    to_default = {}
    if default in samples:
        to_default = {n: bounds(taken, samples[default]) for n, taken in others.items()}
        if not any(gain.high < 1.0 - margin for gain in to_default.values()):
            found = {n for n, gain in to_default.items() if gain.low <= 1.0 - margin}
            return frozenset({*found, default, best}) if found else frozenset()
    found = set()
    for name in [n for n in order if n in others] or others:
        # The best may be so by chance, so that being it is no more than being near all others.
        behind = [bounds(samples[name], taken) for n, taken in others.items() if n != name]
        gain = to_default.get(name, Interval(0.0, 0.0))
        surely = all(b.high <= 1.0 + TIE for b in behind) and gain.high < 1.0
        alone = all(b.high < 1.0 - TIE for b in behind)
        if surely and (alone or not early):
            if order:
                break
        elif all(b.low <= 1.0 + TIE for b in behind) and gain.low < 1.0:
            found.add(name)
    return frozenset({*found, best}) if found else frozenset()


def bounds(numerator: Sequence[float], denominator: Sequence[float]) -> Interval:
    """Bounds of the ratio over the rounds that both took part in; of a single pair nothing is
    known."""
    ratios = [a / b for a, b in zip(numerator, denominator, strict=False)]
    return median_bounds(ratios) if len(ratios) > 1 else Interval(-math.inf, math.inf)


def _best(samples: Mapping[str, Sequence[float]]) -> str:
    return min(samples, key=lambda n: (median(samples[n]), n))
