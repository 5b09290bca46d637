"""Fit the bounds of the decode family's defaults to recordings, and write them to `bounds.toml`.

    python tools/fit_decode.py [--check] [FOLDER…]

FOLDERs are searched for what `tools/record_decode.sh` recorded; `profiles` and two of `benchmarks`
if not given.  A config loses what it takes longer than the fastest config that was recorded of a
problem, and what counts is the sum of what defaults lose.  From the file's values on, each bound in
turn goes where that sum is least, but not where the defaults of a GPU lose by it; where recordings
cannot tell, it stays.  A default that was recorded is left for no config that was not.

Each GPU is held out as well: what bounds lose on it that were fitted to the others, from the file's
values on and from ones that are up to four times too high or low.  `--check` compares the file with
what would be written, holds out none, and ends in status 1 where they differ.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path

import click

from fa_tune import families
from fa_tune.core.arch import ArchLimits
from fa_tune.core.devices import limits_of
from fa_tune.core.model import Measurement, is_reference
from fa_tune.core.stats import comparable
from fa_tune.core.workload import Workload
from fa_tune.families.decode.bounds import PATH, Bounds, bounds_of, fitted
from fa_tune.families.decode.config import DecodeConfig
from fa_tune.families.decode.defaults import by_rules
from fa_tune.store.recordings import Recording, load

ROOT = Path(__file__).parents[1]
FOLDERS = (
    ROOT / "profiles",
    *(ROOT / "benchmarks" / name for name in ("decode_between", "decode_other_heads")),
)
FIXED = "_splits_"  # in the names of recordings of hardly more than one tile
STEPS = [2.0 ** (k / 4) for k in range(-16, 17)]  # times a bound, to try
HERE = STEPS.index(1.0)
# Of a bound's move, in times of a problem: it gains so much at least, since less may be the chance
# of one problem, and what all problems of a GPU lose by it is no more.
LEAST, MOST = 0.05, 0.01
STARTS, FAR = 3, 4.0  # where a GPU is held out: how many, up to how many times the file's values
HEAD = """\
# Written by tools/fit_decode.py; docs/contributing.md says how.  Behind each bound: from where to
# where all recorded problems have the same defaults.
"""
NAMES = [field.name for field in fields(Bounds) if field.type == "float"]


@dataclass(frozen=True)
class Problem:
    """What each config loses, by subject, at a workload that was recorded on a GPU."""

    gpu: str
    arch: ArchLimits
    workload: Workload
    losses: Mapping[str, float]


@dataclass(frozen=True)
class Choice:
    """What is the default of a problem, what that loses, and the bounds that were asked; `kept` is
    what it was before any bound moved."""

    problem: Problem
    kept: str
    subject: str
    asked: frozenset[str]

    def loss(self, subject: str) -> float:
        """Of a config that was not recorded: nothing if it was kept, else as much as forbids it."""
        return self.problem.losses.get(subject, 0.0 if subject == self.kept else 1.0)


class Watched:
    """Bounds that note which of them are asked."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.asked: set[str] = set()

    def __getattr__(self, name: str) -> object:
        self.asked.add(name)
        return getattr(self.bounds, name)


def recorded(folders: Iterable[Path]) -> list[Problem]:
    """The problems that were recorded below some folders."""
    files = [path for folder in folders for path in sorted(folder.rglob("decode_*_events*.csv"))]
    return [p for path in files if FIXED not in path.name for p in _problems(load(path))]


def _problems(recording: Recording) -> Iterator[Problem]:
    device = recording.meta.device
    measured: dict[str, dict[str, Measurement]] = {}
    for attempt in recording.attempts:
        if attempt.measurement is not None:
            measured.setdefault(attempt.workload, {})[attempt.subject] = attempt.measurement
    for key, own in measured.items():
        yield Problem(device.name, limits_of(device), Workload.from_key(key), _losses(own))


def _losses(measured: Mapping[str, Measurement]) -> dict[str, float]:
    compared = comparable(
        {s: m.samples_s for s, m in measured.items()}, {s: m.relative for s, m in measured.items()}
    )
    times = {s: statistics.median(taken) for s, taken in compared.items() if not is_reference(s)}
    return {subject: time / min(times.values()) - 1.0 for subject, time in times.items()}


def default(problem: Problem, bounds: Bounds) -> str:
    """The subject of what rules find, whatever `many_tiles.csv` has."""
    return _subject(by_rules(problem.workload, problem.arch, bounds))


@cache
def _subject(config: DecodeConfig) -> str:
    return families.variant(config).key


def choices(problems: Iterable[Problem], bounds: Bounds, kept: Bounds) -> list[Choice]:
    """The defaults of problems by some bounds; `kept` are those before any moved."""
    found = []
    for problem in problems:
        watched = Watched(bounds)
        subject = default(problem, watched)  # type: ignore[arg-type]
        found.append(Choice(problem, default(problem, kept), subject, frozenset(watched.asked)))
    return found


def with_value(bounds: Bounds, name: str, value: float) -> Bounds:
    """Bounds of which one is another, of three digits."""
    return replace(bounds, **{name: float(f"{value:.3g}")})  # type: ignore[arg-type]


def by_step(choice: Choice, bounds: Bounds, name: str) -> list[str]:
    """The default of a problem at each of STEPS times a bound; where it is the same at two of them
    it is taken to be so between."""
    found = {HERE: choice.subject}

    def at(step: int) -> str:
        if step not in found:
            moved = with_value(bounds, name, getattr(bounds, name) * STEPS[step])
            found[step] = default(choice.problem, moved)
        return found[step]

    def fill(low: int, high: int) -> None:
        if at(low) == at(high):
            found.update(dict.fromkeys(range(low, high), at(low)))
        elif high - low > 1:
            fill(low, (low + high) // 2)
            fill((low + high) // 2, high)

    fill(0, HERE)
    fill(HERE, len(STEPS) - 1)
    return [found[step] for step in range(len(STEPS))]


@dataclass(frozen=True)
class Tried:
    """What all problems of each GPU lose more at each of STEPS times a bound, and how many have
    another default there."""

    losses: Mapping[str, Sequence[float]]
    others: Sequence[int]

    @property
    def same(self) -> range:
        """The steps around this one between which no default is another."""
        return _around(HERE, [n == 0 for n in self.others])

    def best(self) -> int | None:
        """The middle of the steps that gain most, the nearest, of those by which no GPU loses; None
        if that is too little."""
        steps = list(zip(*self.losses.values(), strict=True))
        losses = [math.inf if max(own) > MOST else sum(own) for own in steps]
        least = min(losses)
        if least > -LEAST:
            return None
        best = [math.isclose(loss, least, abs_tol=1e-9) for loss in losses]
        nearest = min((s for s, is_best in enumerate(best) if is_best), key=lambda s: abs(s - HERE))
        middle = _around(nearest, best)
        return (middle.start + middle.stop - 1) // 2


def _around(step: int, wanted: Sequence[bool]) -> range:
    low = high = step
    while low > 0 and wanted[low - 1]:
        low -= 1
    while high + 1 < len(wanted) and wanted[high + 1]:
        high += 1
    return range(low, high + 1)


def tried(own: Sequence[Choice], bounds: Bounds, name: str) -> Tried:
    """What other values of a bound lose."""
    losses = {choice.problem.gpu: [0.0] * len(STEPS) for choice in own}
    others = [0] * len(STEPS)
    for choice in own:
        if name in choice.asked:
            for step, subject in enumerate(by_step(choice, bounds, name)):
                lost = choice.loss(subject) - choice.loss(choice.subject)
                losses[choice.problem.gpu][step] += lost
                others[step] += subject != choice.subject
    return Tried(losses, others)


def fit(
    problems: Sequence[Problem], start: Bounds, kept: Bounds | None = None
) -> tuple[Bounds, dict[str, Tried]]:
    """Bounds of which no other single value gains, and what others were found to lose; from
    `start`, where configs that were not recorded may stay if `kept`, or `start`, has them."""
    bounds, kept = start, kept or start
    own = choices(problems, bounds, kept)
    found: dict[str, Tried] = {}
    moved = True
    while moved:
        moved = False
        for name in NAMES:
            found[name] = tried(own, bounds, name)
            step = found[name].best()
            if step is not None:
                bounds = with_value(bounds, name, getattr(bounds, name) * STEPS[step])
                own = choices(problems, bounds, kept)
                moved = True
    return bounds, found


def fit_from_afar(problems: Sequence[Problem], near: Bounds) -> Bounds:
    """The best of fits that start up to FAR times from some bounds, at random."""
    chance = random.Random(0)
    found = []
    for _ in range(STARTS):
        start = near
        for name in NAMES:
            factor = FAR ** chance.uniform(-1.0, 1.0)
            start = with_value(start, name, getattr(near, name) * factor)
        found.append(fit(problems, start, near)[0])
    return min(found, key=lambda bounds: Losses.of(problems, bounds).mean)


@dataclass(frozen=True)
class Losses:
    """What defaults lose in the mean and at most, and of how many problems they were not
    recorded."""

    problems: int
    mean: float
    worst: float
    not_recorded: int

    @classmethod
    def of(cls, problems: Sequence[Problem], bounds: Bounds) -> Losses:
        """By some bounds."""
        found = [problem.losses.get(default(problem, bounds)) for problem in problems]
        told = [loss for loss in found if loss is not None]
        return cls(len(found), statistics.fmean(told), max(told), len(found) - len(told))

    def __str__(self) -> str:
        return (
            f"{100 * self.mean:5.2f} % in the mean, {100 * self.worst:4.1f} at most, "
            f"{self.not_recorded} of {self.problems} not recorded"
        )


def by_gpu(problems: Iterable[Problem]) -> dict[str, list[Problem]]:
    """Problems by their GPU."""
    found: dict[str, list[Problem]] = {}
    for problem in problems:
        found.setdefault(problem.gpu, []).append(problem)
    return found


def table(capability: tuple[int, int], problems: Sequence[Problem]) -> tuple[Bounds, str]:
    """The bounds of a compute capability and its part of the file: what it was fitted to, and
    beside each bound between which values no recorded problem has another default."""
    bounds, found = fit(problems, replace(bounds_of(capability), measured=True))
    lines = ["[[fitted]]", f"compute_capability = [{capability[0]}, {capability[1]}]"]
    for gpu, own in by_gpu(problems).items():
        lines.append(f"# {gpu}: {str(Losses.of(own, bounds)).strip()}")
    lines += ["", "[fitted.bounds]"]
    for name in NAMES:
        value = getattr(bounds, name)
        lines.append(f"{name} = {_number(value)}  # {_told(value, found[name])}")
    return bounds, "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _step(value: float, step: int) -> str:
    return _number(float(f"{value * STEPS[step]:.3g}"))


def _told(value: float, tried: Tried) -> str:
    low, high = tried.same.start, tried.same.stop - 1
    ends = [
        *([f"from {_step(value, low)}"] if low > 0 else []),
        *([f"to {_step(value, high)}"] if high + 1 < len(STEPS) else []),
    ]
    return " ".join(ends) or "no problem tells"


def report(capability: tuple[int, int], problems: Sequence[Problem], bounds: Bounds) -> None:
    """Print what bounds lose, and what those lose that were fitted without a GPU."""
    gpus, before = by_gpu(problems), bounds_of(capability)
    for name in NAMES:
        old, new = getattr(before, name), getattr(bounds, name)
        if old != new:
            print(f"{name}: {old:g} becomes {new:g}")
    for gpu, own in gpus.items():
        print(f"{gpu}\n    before      {Losses.of(own, before)}")
        print(f"    fitted      {Losses.of(own, bounds)}", flush=True)
        others = [problem for problem in problems if problem.gpu != gpu]
        if others:
            print(f"    held out    {Losses.of(own, fit(others, before)[0])}", flush=True)
            print(f"      from afar {Losses.of(own, fit_from_afar(others, before))}", flush=True)


@click.command(help=__doc__)
@click.option("--check", is_flag=True, help="Write nothing.")
@click.argument("folders", nargs=-1, type=click.Path(exists=True, path_type=Path))
def main(check: bool, folders: tuple[Path, ...]) -> None:
    """The script."""
    found: dict[tuple[int, int], list[Problem]] = {}
    for problem in recorded(folders or FOLDERS):
        found.setdefault(problem.arch.compute_capability, []).append(problem)
    if missing := [c for c in fitted() if c not in found]:
        kinds = ", ".join(f"{major}.{minor}" for major, minor in missing)
        raise click.UsageError(f"no recordings of compute capability {kinds}: name their folders")
    order = [*fitted(), *sorted(set(found) - set(fitted()))]
    tables = {capability: table(capability, found[capability]) for capability in order}
    text = "\n".join([HEAD, *(part for _, part in tables.values())])
    if check:
        sys.exit(int(text != PATH.read_text(encoding="utf-8")))
    for capability, (bounds, _) in tables.items():
        report(capability, found[capability], bounds)
    PATH.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
