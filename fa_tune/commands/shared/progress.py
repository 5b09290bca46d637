"""What a user sees while the work goes on: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fa_tune.commands.shared.aside import aside, fitting
from fa_tune.core.options import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID


EVERY_S = 10.0  # a line where there is no bar
SEVERAL = "several GPUs"  # the stage in which each of them has stages of its own


class PlainProgress(Progress):
    """Notes and warnings as lines on stderr, and unless `quiet` every now and then how far a stage
    is; keeps what was said, and times the stages."""

    def __init__(self, quiet: bool = True) -> None:
        self.said: list[str] = []
        self._seconds: dict[str, float] = {}
        self._timed, self._since = "start", time.monotonic()
        self._quiet = quiet
        self._name, self._done, self._total = "", 0, 0
        self._shown_at = time.monotonic()

    def begin(self, timed: str) -> None:
        """A stage begins, to be timed; the one before is over."""
        now = time.monotonic()
        self._seconds[self._timed] = self._seconds.get(self._timed, 0.0) + now - self._since
        self._timed, self._since = timed, now

    def stages_s(self) -> dict[str, float]:
        """Seconds by stage until now, in the order in which they first began, `start` being what
        comes before the first one."""
        self.begin(self._timed)
        return {stage: round(seconds, 3) for stage, seconds in self._seconds.items()}

    def stage(self, name: str, total: int) -> None:
        """Timed; shown once it takes long."""
        self.begin(name)
        self._name, self._done, self._total = name, 0, total

    def advance(self, text: str = "") -> None:
        """Shown at most once in EVERY_S."""
        self._done += 1
        now = time.monotonic()
        if not self._quiet and now - self._shown_at >= EVERY_S:
            self._shown_at = now
            known = f" of {self._total}" if self._total else ""
            self.print(f"{self._name}: {self._done}{known}")

    def note(self, text: str) -> None:
        self._say(text, "")

    def warn(self, text: str) -> None:
        """A line that starts with `warning:`."""
        self._say(text, "warning: ")

    def lane(self, name: str) -> Progress:
        """Lines are the same for all."""
        self.begin(SEVERAL)
        return _Lane(self)

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


class _Lane(Progress):
    """One of several that work at the same time: its lines are the command's, it has no stages."""

    def __init__(self, whole: PlainProgress) -> None:
        self._whole = whole

    def note(self, text: str) -> None:
        self._whole.note(text)

    def warn(self, text: str) -> None:
        self._whole.warn(text)


class BarProgress(PlainProgress):
    """A bar with steps done, time left and the leader so far; lines appear above it."""

    def __init__(self) -> None:
        # Late: most runs draw no bar.
        from rich import progress
        from rich.console import Console
        from rich.table import Column

        super().__init__()
        self._console = Console(stderr=True)
        self._bars = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(bar_width=24),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(),
            progress.TextColumn("left", style="progress.remaining"),
            progress.TextColumn(
                "{task.fields[aside]}",
                markup=False,
                table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
            ),
            console=self._console,
            transient=True,
            expand=True,
            redirect_stdout=False,  # results go to stdout as they are, whatever the terminal
        )
        self._own = _Bar(self, self._bars)

    def __enter__(self) -> BarProgress:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def stage(self, name: str, total: int) -> None:
        """A new bar takes the old ones' place; the leader stays."""
        super().stage(name, total)
        for task in self._bars.task_ids:
            self._bars.remove_task(task)
        self._own.stage(name, total)

    def lane(self, name: str) -> Progress:
        """A bar of its own for one of several that work at the same time."""
        self.begin(SEVERAL)
        return _Bar(self, self._bars, f"{name}: ")

    def advance(self, text: str = "") -> None:
        """One step on; without a leader, `text` stands beside the bar."""
        self._own.advance(text)

    def leader(self, text: str) -> None:
        """The leader so far, beside the bar."""
        self._own.leader(text)

    def print(self, line: str) -> None:
        """Put one line above the bar."""
        self._console.print(
            fitting(line), markup=False, highlight=False, emoji=False, soft_wrap=True
        )


class _Bar(_Lane):
    """One bar, of all or of the lane that its `prefix` names; lines appear above all of them."""

    def __init__(self, whole: BarProgress, bars: Bars, prefix: str = "") -> None:
        super().__init__(whole)
        self._bars, self._prefix = bars, prefix
        self._task: TaskID | None = None
        self._leader = ""

    def stage(self, name: str, total: int) -> None:
        if self._task in self._bars.task_ids:
            self._bars.remove_task(self._task)
        if self._prefix:  # what led on a lane was of another workload
            self._leader = ""
        text = f"{self._prefix}{name}"
        self._task = self._bars.add_task(text, total=total or None, aside=self._leader)

    def advance(self, text: str = "") -> None:
        self._update(1, self._leader or " ".join(text.split()))

    def leader(self, text: str) -> None:
        self._leader = "best so far: " + " ".join(text.split())
        self._update(0, self._leader)

    def _update(self, steps: int, aside: str) -> None:
        if self._task in self._bars.task_ids:
            self._bars.update(self._task, advance=steps, aside=aside)


@contextmanager
def watching(quiet: bool) -> Iterator[PlainProgress]:
    """Progress for a piece of work: a bar if stderr is a terminal that can draw one, else a line
    every now and then."""
    if quiet or not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        yield PlainProgress(quiet)
    else:
        with BarProgress() as bar:
            yield bar
