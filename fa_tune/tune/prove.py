"""A program with our kernels and without, in fresh processes that take turns."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGHUP, SIGTERM

from fa_tune.core.errors import FaTuneError, InvalidConfig, NoUsableVariant, ToolMissing
from fa_tune.core.options import Progress
from fa_tune.core.stats import median
from fa_tune.store.capture.parts import VARIABLE, Settings, joined
from fa_tune.store.capture.schema import SCHEMA, Capture
from fa_tune.store.proof import (
    FEWEST_PAIRS,
    Coverage,
    Ended,
    Pair,
    Proof,
    Verdict,
    coverage_of,
    time_ratio,
    verdict,
)
from fa_tune.tune import program
from fa_tune.tune.capture import with_startup

CALLS = "fa_tune.op.sdpa:enable_sdpa"
FIRST_RUN_S = 300.0  # at least, of a run that may compile everything
WITH, WITHOUT = "with fa-tune", "as it is"


@dataclass(frozen=True)
class ProveOptions:
    """`command` is run as it is.  `metric` has one group, a number that the program prints; None:
    its wall time.  At most so many `pairs`, and `seconds`, of timed runs; None: no such limit."""

    command: tuple[str, ...]
    metric: re.Pattern[str] | None = None
    higher_is_better: bool = False
    registry: Path | None = None
    pairs: int | None = None
    seconds: float | None = None


def read_metric(text: str) -> re.Pattern[str]:
    """A pattern with one group; raises InvalidConfig."""
    try:
        found = re.compile(text, re.MULTILINE)
    except re.error as error:
        raise InvalidConfig(f"{text[:80]!r} is no regular expression: {error}") from None
    if found.groups != 1:
        raise InvalidConfig(f"{text[:80]!r} has {found.groups} groups; put the number into one")
    return found


def prove(options: ProveOptions, progress: Progress) -> Proof:
    """What the program gains.  A first run with our kernels is not timed: it compiles them, and is
    captured.  Pairs of runs follow, in the order ABBA, until the gain is known or the budget is
    spent.  What fails or is interrupted then leaves the coverage and the pairs before it.

    Raises ToolMissing and NoUsableVariant for a first run that cannot be started, does not use
    CUDA through torch, fails, or has no end within the budget.
    """
    began = datetime.now(UTC).isoformat(timespec="seconds")
    ended: Ended = "interrupted"
    problem, coverage = None, None
    with tempfile.TemporaryDirectory(prefix="fa-tune-prove-") as folder, _ended_alike():
        runs = _Runs(options, Path(folder))
        try:
            progress.stage("first run", 1)
            coverage = runs.first()
            progress.advance()
            ended = _compare(runs, progress)
        except KeyboardInterrupt:
            pass
        except _OutOfTime as error:
            if coverage is None:
                raise
            ended, problem = "budget", None if runs.pairs else str(error)
        except FaTuneError as error:
            if coverage is None:
                raise
            ended, problem = "failed", str(error)
    return Proof(
        schema="fa-tune-prove-1",
        command=options.command,
        started=began,
        metric=options.metric.pattern if options.metric else "",
        higher_is_better=options.higher_is_better,
        pairs=tuple(runs.pairs),
        time_ratio=time_ratio(runs.pairs, higher_is_better=options.higher_is_better),
        verdict=runs.verdict,
        ended=ended,
        problem=problem,
        coverage=coverage,
    )


@contextmanager
def _ended_alike() -> Iterator[None]:
    """Whoever ends this process, or closes its terminal, interrupts it: no run is left behind."""
    before = {n: signal.signal(n, signal.default_int_handler) for n in (SIGTERM, SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _compare(runs: _Runs, progress: Progress) -> Ended:
    """Add pairs until it is decided, or another one has no place in the budget."""
    limit, seconds = runs.options.pairs, runs.options.seconds
    if seconds is not None and seconds < 2 * runs.first_s:
        progress.note(
            f"The first run took {runs.first_s:.3g} s, compiling included; --budget {seconds:g}s "
            f"may be too short for a pair. Give {2 * FEWEST_PAIRS * runs.first_s:.0f}s or more."
        )
    progress.stage("pairs of runs", limit or 0)
    began = time.monotonic()
    longest_s = 0.0
    while runs.verdict is Verdict.OPEN:
        start = time.monotonic()
        left_s = None if seconds is None else began + seconds - start
        if (left_s is not None and left_s < longest_s) or len(runs.pairs) == limit:
            return "budget"
        runs.add_pair(left_s)
        longest_s = max(longest_s, time.monotonic() - start)
        progress.advance(f"{runs.pairs[-1].ours:.4g} {WITH}, {runs.pairs[-1].torchs:.4g} {WITHOUT}")
    return "decided"


class _OutOfTime(NoUsableVariant):
    """A run that has no end within the budget."""


@dataclass
class _Runs:
    """The runs of a program; `folder` is for what its processes write, `first_s` the wall time of
    the first in seconds."""

    options: ProveOptions
    folder: Path
    first_s: float = 0.0
    pairs: list[Pair] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """What the pairs say so far."""
        return verdict(self.pairs, higher_is_better=self.options.higher_is_better)

    def __post_init__(self) -> None:
        self._said, self._parts = self.folder / "said", self.folder / "parts"
        for folder in (self._said, self._parts):
            folder.mkdir()

    def first(self) -> Coverage:
        """What served the attention of a run with our kernels, which are ready from then on."""
        seconds = self.options.seconds
        limit_s = None if seconds is None else max(seconds, FIRST_RUN_S)
        Settings(self._parts, self._parts / "inputs").save()
        environment = self._environment(ours=True) | {VARIABLE: str(self._parts)}
        began, started = time.perf_counter(), datetime.now(UTC).isoformat(timespec="seconds")
        self._value(True, limit_s, environment)
        self.first_s = time.perf_counter() - began
        said = [path.read_text(encoding="utf-8") for path in self._said.iterdir()]
        if failed := [text for text in said if text]:
            raise ToolMissing(f"the program cannot use fa-tune: {failed[0]}")
        if not said:
            raise NoUsableVariant(
                "no process of the program used CUDA through torch in a Python that has fa-tune; "
                "install fa-tune beside the program's torch"
            )
        program = Capture(SCHEMA, self.options.command, started, self.first_s, 0, (), ())
        return coverage_of(joined(program, self._parts))

    def add_pair(self, limit_s: float | None) -> None:
        """Run both, who was second first."""
        ours_first = len(self.pairs) % 2 == 0
        began = time.monotonic()
        one = self._value(ours_first, limit_s)
        left_s = None if limit_s is None else limit_s - (time.monotonic() - began)
        other = self._value(not ours_first, left_s)
        ours, torchs = (one, other) if ours_first else (other, one)
        self.pairs.append(Pair(ours, torchs, ours_first))

    def _value(
        self, ours: bool, limit_s: float | None, environment: Mapping[str, str] | None = None
    ) -> float:
        """What a run measured; raises NoUsableVariant for one that fails or prints no number."""
        ended = program.run(self.options.command, environment or self._environment(ours), limit_s)
        who = f"the program {WITH if ours else WITHOUT}"
        if ended.status is None:
            raise _OutOfTime(f"{who} {ended.how}; allow more by --budget")
        if ended.status:
            raise NoUsableVariant(f"{who} {ended.how}")
        metric = self.options.metric
        if metric is None:
            return ended.wall_s
        found = [*filter(None, map(_number, metric.findall(ended.output)))]
        if not found:
            raise NoUsableVariant(f"{who} printed no number above 0 that --metric finds")
        return median(found)

    def _environment(self, ours: bool) -> dict[str, str]:
        own = {"FA_TUNE_PROVE": str(self._said), "FA_TUNE_PROVE_CALLS": CALLS if ours else ""}
        found = with_startup({**os.environ, **own})
        if self.options.registry is not None:
            found["FA_TUNE_REGISTRY"] = str(self.options.registry.absolute())
        return found


def _number(text: str) -> float | None:
    """Without the commas of thousands; None for what is no number above 0."""
    try:
        found = float(text.replace(",", ""))
    except ValueError:
        return None
    return found if 0.0 < found < float("inf") else None
