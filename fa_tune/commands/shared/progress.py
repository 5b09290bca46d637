"""What a user sees while the work goes on: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from fa_tune.commands.shared.aside import aside, fitting
from fa_tune.core.options import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID


EVERY_S = 10.0  # a line where there is no bar
SEVERAL = "several GPUs"  # the stage in which each of them has stages of its own


class StageTimes:
    """How long each stage took, in seconds, `start` being what comes before the first one."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._stage, self._since = "start", time.monotonic()

    def begin(self, stage: str) -> None:
        """A stage begins; the one before is over."""
        now = time.monotonic()
        self._seconds[self._stage] = self._seconds.get(self._stage, 0.0) + now - self._since
        self._stage, self._since = stage, now

    def by_stage(self) -> dict[str, float]:
        """Seconds by stage until now, in the order in which they first began."""
        self.begin(self._stage)
        return {stage: round(seconds, 3) for stage, seconds in self._seconds.items()}


class PlainProgress:
    """Notes and warnings as lines on stderr, and unless `quiet` every now and then how far a stage
    is; keeps what was said, and times the stages."""

    def __init__(self, quiet: bool = True) -> None:
        self.said: list[str] = []
        self.times = StageTimes()
        self._quiet = quiet
        self._name, self._done, self._total = "", 0, 0
        self._shown_at = time.monotonic()

    def stage(self, name: str, total: int) -> None:
        """Timed; shown once it takes long."""
        self.times.begin(name)
        self._name, self._done, self._total = name, 0, total

    def advance(self, text: str = "") -> None:
        """Shown at most once in EVERY_S."""
        self._done += 1
        now = time.monotonic()
        if not self._quiet and now - self._shown_at >= EVERY_S:
            self._shown_at = now
            self.print(f"{self._name}: {self._done} of {self._total}")

    def leader(self, text: str) -> None:
        """Not shown."""

    def note(self, text: str) -> None:
        """A line."""
        self._say(text, "")

    def warn(self, text: str) -> None:
        """A line that starts with `warning:`."""
        self._say(text, "warning: ")

    def lane(self, name: str) -> Progress:
        """Lines are the same for all."""
        self.times.begin(SEVERAL)
        return _PlainLane(self)

    def tell(self, note: str = "", warnings: Sequence[str] = ()) -> None:
        """A note and warnings, but for what was part of an earlier line."""
        for text, prefix in ((note, ""), *((warning, "warning: ") for warning in warnings)):
            if text and not any(text in said for said in self.said):
                self._say(text, prefix)

    def _say(self, text: str, prefix: str) -> None:
        line = " ".join(text.split())
        self.said.append(line)
        self.print(prefix + line)

    def print(self, line: str) -> None:
        """Put one line on stderr."""
        aside(line)


class _PlainLane:
    """One of several that work at the same time: its lines are the command's, it has no stages."""

    def __init__(self, whole: PlainProgress) -> None:
        self.note, self.warn = whole.note, whole.warn

    def stage(self, name: str, total: int) -> None:
        pass

    def advance(self, text: str = "") -> None:
        pass

    def leader(self, text: str) -> None:
        pass

    def lane(self, name: str) -> Progress:
        return self


class BarProgress(PlainProgress):
    """A bar with steps done, time left and the leader so far; lines appear above it."""

    def __init__(self) -> None:
        # Late: most runs draw no bar.
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )
        from rich.table import Column

        super().__init__()
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("left", style="progress.remaining"),
            TextColumn(
                "{task.fields[aside]}",
                markup=False,
                table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
            ),
            console=self._console,
            transient=True,
            expand=True,
            redirect_stdout=False,  # results go to stdout as they are, whatever the terminal
        )
        self._leader = ""

    def __enter__(self) -> BarProgress:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def stage(self, name: str, total: int) -> None:
        """A new bar takes the old one's place; the leader stays."""
        super().stage(name, total)
        for task in self._bar.task_ids:
            self._bar.remove_task(task)
        self._bar.add_task(name, total=total, aside=self._leader)

    def lane(self, name: str) -> Progress:
        """A bar of its own for one of several that work at the same time."""
        self.times.begin(SEVERAL)
        return _Lane(self, name, self._bar)

    def advance(self, text: str = "") -> None:
        """One step on; without a leader, `text` stands beside the bar."""
        for task in self._bar.task_ids[-1:]:
            self._bar.update(task, advance=1, aside=self._leader or " ".join(text.split()))

    def leader(self, text: str) -> None:
        """The leader so far, beside the bar."""
        self._leader = "best so far: " + " ".join(text.split())
        for task in self._bar.task_ids[-1:]:
            self._bar.update(task, aside=self._leader)

    def print(self, line: str) -> None:
        """Put one line above the bar."""
        self._console.print(
            fitting(line), markup=False, highlight=False, emoji=False, soft_wrap=True
        )


class _Lane:
    """One of several bars; its lines appear above all of them."""

    def __init__(self, whole: BarProgress, name: str, bar: Bars) -> None:
        self._whole, self._name, self._bar = whole, name, bar
        self._task: TaskID | None = None
        self._leader = ""

    def stage(self, name: str, total: int) -> None:
        if self._task in self._bar.task_ids:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(f"{self._name}: {name}", total=total, aside="")
        self._leader = ""

    def advance(self, text: str = "") -> None:
        if self._task in self._bar.task_ids:
            aside = self._leader or " ".join(text.split())
            self._bar.update(self._task, advance=1, aside=aside)

    def leader(self, text: str) -> None:
        self._leader = "best so far: " + " ".join(text.split())
        if self._task in self._bar.task_ids:
            self._bar.update(self._task, aside=self._leader)

    def note(self, text: str) -> None:
        self._whole.note(text)

    def warn(self, text: str) -> None:
        self._whole.warn(text)

    def lane(self, name: str) -> Progress:
        return _Lane(self._whole, name, self._bar)


@contextmanager
def watching(quiet: bool) -> Iterator[PlainProgress]:
    """Progress for a piece of work: a bar if stderr is a terminal that can draw one, else a line
    every now and then."""
    if quiet or not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        yield PlainProgress(quiet)
    else:
        with BarProgress() as bar:
            yield bar
