"""How often independent tunings of one workload agree, by our rule and by plain minimum.

A `Tuning` is one search's samples and choice.  Recorded ones can be decided again, and others
simulated from them by drawing whole rounds, so that a rule is judged without a GPU.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from fa_tune.core import codec
from fa_tune.core.codec import POSITIVE
from fa_tune.core.errors import ProfileFormatError
from fa_tune.core.files import read_json, replace_file, storage_errors
from fa_tune.core.model import Measurement, is_reference
from fa_tune.core.stats import MARGIN, Ratio, comparable, median, paired_ratio
from fa_tune.core.stopping import StoppingRule
from fa_tune.search.decide import decide

RUNS = 5  # rounds that everyone gets, by events


@dataclass(frozen=True)
class Tuning:
    """One workload in one search.

    `samples_s` by subject, sample i of each from round i, and `relative` to the
    baseline's right beside each, where there is that; `ranks` is the order of the
    tie rule, `chosen` what was kept.  `preferred` is what the search chose before it was
    compared with the default once more, by `confirmed` (chosen / default; None: not compared).
    """

    workload: str
    method: str
    seed: int
    default: str | None
    chosen: str
    preferred: str
    samples_s: Mapping[str, tuple[Annotated[float, POSITIVE], ...]]
    ranks: Mapping[str, tuple[int, ...]]
    confirmed: Ratio | None = None
    relative: Mapping[str, tuple[Annotated[float, POSITIVE], ...]] = field(default_factory=dict)
    margin: float = MARGIN  # what the default had to be beaten by

    @property
    def candidates(self) -> dict[str, tuple[float, ...]]:
        """The samples without those of references."""
        return {s: t for s, t in self.samples_s.items() if not is_reference(s)}

    @property
    def lowest_median(self) -> str:
        """What plain minimum of the medians chooses."""
        return min(self.candidates, key=lambda s: (median(self.samples_s[s]), s))

    @property
    def lowest_sample(self) -> str:
        """What plain minimum of all samples chooses."""
        return min(self.candidates, key=lambda s: (min(self.samples_s[s]), s))

    def decided(self) -> Tuning:
        """The same samples, decided by the present rule, without another comparison."""
        measurements = [
            Measurement(
                s, self.workload, self.method, taken, relative=tuple(self.relative.get(s, ()))
            )
            for s, taken in self.samples_s.items()
        ]
        found = decide(
            measurements,
            self.default,
            margin=self.margin,
            tie_break=lambda s: self.ranks.get(s, (1 << 30,)),
        )
        chosen = found.chosen.subject
        return dataclasses.replace(self, chosen=chosen, preferred=chosen, confirmed=None)

    def to_default(self, subject: str) -> Ratio | None:
        """A subject's time over the default's in this tuning; None where one was not measured."""
        if self.default is None or not {self.default, subject} <= set(self.samples_s):
            return None
        compared = comparable(self.samples_s, self.relative)
        return paired_ratio(compared[subject], compared[self.default])


@dataclass(frozen=True)
class Agreement:
    """What several tunings of one workload came to; flips are tunings whose choice is not the
    most frequent one.  `worst` is the largest ratio of a tuning's choice to the default in the
    samples of the *other* tunings, which it was not chosen by, `worst_confirmed` in the
    comparison after tuning; None where there is none.  `slower` tunings chose something that is
    slower than the default by more than the margin, by either."""

    workload: str
    tunings: int
    choices: tuple[tuple[str, int], ...]  # the most frequent first
    flips: int
    flips_lowest_median: int
    flips_lowest_sample: int
    worst: Ratio | None
    worst_confirmed: Ratio | None
    slower: int


def agreement(tunings: Sequence[Tuning]) -> Agreement:
    """Compare tunings of one workload."""
    choices = Counter(t.chosen for t in tunings)
    found: list[tuple[int, Ratio]] = []
    for i, mine in enumerate(tunings):
        others = (o for j, o in enumerate(tunings) if j != i and mine.chosen != o.default)
        found += [(i, r) for o in others if (r := o.to_default(mine.chosen)) is not None]
    kept = [
        (i, t.confirmed)
        for i, t in enumerate(tunings)
        if t.confirmed is not None and t.chosen == t.preferred
    ]
    return Agreement(
        workload=tunings[0].workload,
        tunings=len(tunings),
        choices=tuple(sorted(choices.items(), key=lambda c: (-c[1], c[0]))),
        flips=_flips([t.chosen for t in tunings]),
        flips_lowest_median=_flips([t.lowest_median for t in tunings]),
        flips_lowest_sample=_flips([t.lowest_sample for t in tunings]),
        worst=_worst(found),
        worst_confirmed=_worst(kept),
        slower=len({i for i, r in (*found, *kept) if is_slower(r)}),
    )


def is_slower(ratio: Ratio) -> bool:
    """Whether a ratio to the default is above 1 by more than the margin, and no chance."""
    interval = ratio.interval
    return ratio.value > 1.0 + MARGIN and (interval is None or interval.low > 1.0)


def simulated(tunings: Sequence[Tuning], n: int, seed: int, *, runs: int = RUNS) -> list[Tuning]:
    """`n` tunings made of recorded ones of one workload: each takes one of them by chance, races
    its candidates anew, the samples of each round being those of a recorded one, drawn with
    repetition, and is then decided by the present rule.

    A round is drawn whole, so what disturbed all kernels in it still does, among those that all
    who are still in the rule took part in.  `runs` are the rounds that everyone gets.
    """
    dice = random.Random(f"tunings:{seed}")
    return [_raced(dice.choice(list(tunings)), dice, runs).decided() for _ in range(n)]


def _raced(tuning: Tuning, dice: random.Random, runs: int) -> Tuning:
    """Another rule of the same candidates; its samples are recorded ones."""
    paired = bool(tuning.relative)
    recorded = tuning.relative if paired else tuning.samples_s
    numbers: dict[str, list[float]] = {s: [] for s in tuning.candidates}
    drawn: dict[str, list[int]] = {s: [] for s in numbers}
    lost = (1 << 30,)
    rule = StoppingRule(
        numbers,
        runs,
        keep=[tuning.default] if tuning.default in numbers else [],
        default=tuning.default or "",
        order=sorted(numbers, key=lambda s: (tuning.ranks.get(s, lost), s)),
        margin=tuning.margin,
    )
    now_s = 0.0
    while True:
        _, active = rule.next_round(now_s)
        if not active:
            break
        common = dice.randrange(min(len(recorded[s]) for s in active))
        for subject in active:
            numbers[subject].append(recorded[subject][common])
            drawn[subject].append(common)
            now_s += (1 + paired) * tuning.samples_s[subject][common]
    samples, relative = (
        {s: tuple(taken[s][i] for i in drawn[s]) for s in drawn if s in taken}
        for taken in (tuning.samples_s, tuning.relative)
    )
    return dataclasses.replace(tuning, samples_s=samples, relative=relative)


def _flips(choices: Sequence[str]) -> int:
    return len(choices) - max(Counter(choices).values())


def _worst(found: Sequence[tuple[int, Ratio]]) -> Ratio | None:
    key: Callable[[Ratio], float] = lambda ratio: ratio.value  # noqa: E731
    return max((ratio for _, ratio in found), key=key, default=None)


# A file of recorded tunings ----------------------------------------------------------------------

SCHEMA = "fa-tune-decisions-1"


@dataclass(frozen=True)
class RecordedTunings:
    """Tunings, and whose they are: a sentence with GPU, method and date."""

    tunings: tuple[Tuning, ...]
    whose: str


def save(path: Path, recorded: RecordedTunings) -> None:
    """Write a file, whole or not at all; raises StorageError."""
    document = {"schema": SCHEMA, **codec.dump(recorded)}
    with storage_errors(f"cannot write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, (json.dumps(document, indent=1) + "\n").encode())


def load(path: Path) -> RecordedTunings:
    """Read a file; raises StorageError, and ProfileFormatError for one that is no such file."""
    document = read_json(path)
    if not isinstance(document, dict) or document.pop("schema", None) != SCHEMA:
        raise ProfileFormatError(f"{path}: not recorded tunings ({SCHEMA})")
    try:
        found = codec.load(RecordedTunings, document)
    except ValueError as error:
        raise ProfileFormatError(f"{path}: {error}") from None
    for tuning in found.tunings:
        lengths = {subject: len(taken) for subject, taken in tuning.samples_s.items()}
        if not all(lengths.values()) or tuning.chosen not in tuning.candidates:
            raise ProfileFormatError(f"{path}: {tuning.workload}: one has no samples")
        if any(len(taken) != lengths.get(s) for s, taken in tuning.relative.items()):
            raise ProfileFormatError(f"{path}: relative samples are not as many as samples")
    return found
