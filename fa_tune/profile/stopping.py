"""When a race of kernels is over: who takes part in the next round, and why nobody else does.

Rounds are cheap and numbers are dear: 5 for everyone, up to 15 for whoever may still win, up to
50 for whoever cannot be told from the leader, and no more than it takes to decide the order.
Samples come in, names go out; nothing is measured here, so that simulated noise can test it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

from fa_tune.profile.stats import MARGIN, TIE, Ratio, median, paired_ratio

REFERENCE_PREFIX = "ref:"
ABANDON = 3.0  # times the leader's: a sample like this ends a candidate
LOSER = 0.02  # the whole interval of the ratio to the leader lies this far above 1
EXACT = 0.0025  # half the width of that interval: no more samples would tell more
STAGES = (1, 3, 10)  # rounds at most, in multiples of the first number


class Ended(StrEnum):
    """What ended a candidate's samples, in words for the record."""

    ENOUGH = "as many rounds as were asked for"
    ABANDONED = "a multiple of the leader's time"
    LOST = "clearly slower than the leader"
    NOT_TIED = "cannot be tied with the leader"
    DECIDED = "the order was decided"
    LIMIT = "the limit of rounds"
    BEFORE = "ended by the worker before"


class Race:
    """Rounds of one workload.  `samples` are lists by name, which the caller goes on filling, of
    seconds or of ratios to something common; sample i of each was taken in round i.

    Not `adaptive`: exactly `runs` rounds for all.  `keep` are never left out while the race
    lasts, and neither are references (`ref:fa2`), which no candidate is compared with.
    `default`, one of `keep` or empty, is what a winner has to beat by the margin.  `ended` says
    for each name why it has no more samples.
    """

    def __init__(
        self,
        samples: Mapping[str, list[float]],
        runs: int,
        *,
        adaptive: bool = True,
        keep: Collection[str] = (),
        default: str = "",
    ) -> None:
        self._samples = dict(samples)
        self._runs = runs
        self._adaptive = adaptive
        self._keep = frozenset(keep)
        self._default = default if default in keep else ""
        self._extra = 0
        self.ended: dict[str, Ended] = {}
        most = max((len(s) for s in self._samples.values()), default=0)
        for name, taken in self._samples.items():
            if len(taken) < most - 1:  # one behind: the worker before died within that round
                self.ended[name] = Ended.BEFORE

    @property
    def live(self) -> list[str]:
        """Who may take part in another round."""
        return [name for name in self._samples if name not in self.ended]

    def drop(self, name: str) -> None:
        """Forget a subject that failed."""
        self._samples.pop(name, None)
        self.ended.pop(name, None)

    def repeat(self) -> None:
        """One round was disturbed: one more, for all who are still in the race."""
        self._extra += 1

    def next_round(self) -> tuple[int, list[str]]:
        """The next round's number, from 0, and who takes part; nobody when the race is over."""
        live = self.live
        if not live:
            return 0, []
        done = max(len(self._samples[n]) for n in live)
        if behind := [n for n in live if len(self._samples[n]) < done]:
            return done - 1, behind
        self._judge(done)
        return done, self.live

    def _judge(self, done: int) -> None:
        """End whom another round would tell nothing about; all have `done` samples."""
        counted = done - self._extra
        if not self._adaptive:
            if counted >= self._runs:
                self._end(self.live, Ended.ENOUGH)
            return
        own = self._candidates()
        if not done or not own:
            if counted >= self._runs:
                self._end(self.live, Ended.ENOUGH)
            return
        leader = min(own, key=lambda n: (median(self._samples[n]), n))
        limit = ABANDON * median(self._samples[leader])
        free = [n for n in own if n not in self._keep]
        self._end([n for n in free if median(self._samples[n]) > limit], Ended.ABANDONED)
        if counted >= STAGES[-1] * self._runs:
            self._end(self.live, Ended.LIMIT)
        elif counted >= self._runs and counted % self._runs == 0:
            self._leave_out(leader, late=counted >= STAGES[1] * self._runs)
            ours = {name: self._samples[name] for name in self._candidates()}
            early = counted < STAGES[1] * self._runs  # too few to call a tie one
            if not undecided(ours, self._default, early=early):
                self._end(self.live, Ended.DECIDED)

    def _leave_out(self, leader: str, *, late: bool) -> None:
        """End those who have lost; `late`, also those who can no longer be tied."""
        for name in self._candidates():
            if name == leader or name in self._keep:
                continue
            low = _ends(self._to(name, leader))[0]
            if low > 1.0 + LOSER:
                self.ended[name] = Ended.LOST
            elif late and low > 1.0 + TIE:
                self.ended[name] = Ended.NOT_TIED

    def _candidates(self) -> list[str]:
        return [n for n in self.live if not n.startswith(REFERENCE_PREFIX)]

    def _to(self, name: str, other: str) -> Ratio:
        return paired_ratio(self._samples[name], self._samples[other])

    def _end(self, names: Sequence[str], why: Ended) -> None:
        for name in names:
            self.ended[name] = why


def undecided(
    samples: Mapping[str, Sequence[float]], default: str = "", *, early: bool = False
) -> frozenset[str]:
    """Whose place another round would tell more about, the leader with them; empty if the order
    is decided.  All are candidates, sample i of each of the same round.

    Decided is who is known to be tied with the leader or not to be, or as exactly as is needed;
    and the `default`, if there, where it is known whether the leader beats it by the margin.
    `early`: a tie is not believed yet.
    """
    if not samples:
        return frozenset()
    leader = min(samples, key=lambda n: (median(samples[n]), n))
    found = set()
    for name in samples:
        if name == leader:
            continue
        low, high = _ends(paired_ratio(samples[name], samples[leader]))
        apart = low > 1.0 + TIE
        tied = high <= 1.0 + TIE and low >= 1.0 - TIE
        if not (apart or (not early and (tied or high - low <= 2 * EXACT))):
            found.add(name)
        elif name == default:
            low, high = _ends(paired_ratio(samples[leader], samples[name]))
            if low <= 1.0 - MARGIN <= high:
                found.add(name)
    return frozenset({*found, leader}) if found else frozenset()


def _ends(ratio: Ratio) -> tuple[float, float]:
    """The interval; of a single pair nothing is known."""
    return ratio.interval or (-math.inf, math.inf)
