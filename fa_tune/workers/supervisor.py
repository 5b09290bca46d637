"""Work that may crash, hang or break a GPU context, done in child processes.

`run_items` hands many items to one worker process (starting a GPU context is slow) and yields
each item's result as it arrives.  When the worker dies or falls silent, the item it had last begun
has failed and is never run again, and a fresh worker gets the items that have no result yet.
`run_child` is the same for one worker without restarts, for a caller that has more to read
afterwards, such as a profiler's log.

Attribution: a worker's death is the failure of the item last begun, unless that has its final
result.  A worker that dies between items fails none and is replaced.  One that dies before it has
begun anything is replaced once; the second such death raises WorkerUnusable, as does a handler
that cannot be imported: a broken set-up says nothing about the items.

Deadlines: every record restarts the clock.  While an item is begun, silence may last that item's
time limit; otherwise `start_timeout_s`; once the handler has returned or raised, `exit_timeout_s`
(a wrapper may still be writing its report).

Partials: what `report.partial` sent is kept here, reaches `on_event` at once, and is given to the
next worker as `items[name]["_partials"]`; only the failed item's are dropped.

Children live in a process group of their own, which is killed as a whole at the end of every
worker, on Ctrl-C, on an exception, and when the generator is closed.  They also die with this
process if it is killed outright, and with the thread that started them: prctl(2) ties a child to
its parent's thread, so let one thread see a generator through.  Linux only.

Why no library: pebble and loky start and kill processes and limit their time, but have no
partials, no program such as ncu around a worker, and no deadline that records extend; the code
around them would not be smaller.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Unpack

from fa_tune.core.errors import ToolMissing
from fa_tune.core.outcome import Outcome
from fa_tune.workers.child import (
    CALLED_OFF,
    CalledOff,
    Child,
    ChildEnd,
    ChildOptions,
    ItemResult,
)
from fa_tune.workers.protocol import Event, EventKind

__all__ = [
    "CALLED_OFF",
    "CalledOff",
    "ChildEnd",
    "Event",
    "EventKind",
    "ItemResult",
    "WorkerUnusable",
    "run_child",
    "run_items",
]

_FORGOTTEN = "the handler returned without a result for this item"


class WorkerUnusable(ToolMissing):
    """The worker does not get as far as its first item: nothing is known about the rest."""


class RunOptions(ChildOptions, total=False):
    """`ChildOptions`, and for all children together:

    - `run_dir`: each child works in its own folder `child-000`, `child-001`, … of it; without
      it in a temporary one, removed at the end;
    - `retry_after_sigkill`: a worker that somebody killed with SIGKILL, which nothing on a GPU
      can send, costs its item one more try, with its partials; the second time the item failed.
    """

    run_dir: Path | None
    retry_after_sigkill: bool


def run_items(
    handler: str,
    shared: Mapping[str, Any],
    items: Mapping[str, Mapping[str, Any]],
    **options: Unpack[RunOptions],
) -> Generator[ItemResult, None, None]:
    """Run `handler` ("module:function", see `fa_tune.workers.main`) over the items in children.
    A job of `core.jobs` gives the three arguments by its `request()`.

    Yields one result per item, each exactly once, in the order they arrive.  `shared` and the
    items' dicts are JSON.

    Raises ToolMissing if the wrapper is not installed, and WorkerUnusable (after the results
    there are) if workers cannot get started.
    """
    retries = options.get("retry_after_sigkill", False)
    remaining = {name: dict(spec) for name, spec in items.items()}
    partials = {name: list(spec.get("_partials", [])) for name, spec in items.items()}
    retried: set[str] = set()
    starts = _Starts()
    with _folder(options.get("run_dir")) as root:
        while remaining:
            given = {
                name: {**spec, "_partials": partials[name]} for name, spec in remaining.items()
            }
            folder = root / f"child-{starts.children:03d}"
            with Child(handler, shared, given, folder, options) as child:
                for event in child.events():
                    if event.kind is EventKind.PARTIAL:
                        partials[event.item].append(event.value)
                    if event.item in child.results and remaining.pop(event.item, None) is not None:
                        yield child.results[event.item]
            end = child.end()
            starts.children += 1
            if end.failed_item is not None:
                if retries and end.was_killed and end.failed_item not in retried:
                    retried.add(end.failed_item)
                    continue
                del remaining[end.failed_item]
                yield end.results[end.failed_item]
            if end.finished:
                for name in remaining:
                    yield ItemResult(name, Outcome.CRASHED, None, _FORGOTTEN)
                return
            if remaining:
                starts.check(end)


class _Starts:
    """The number of workers started, and of those in vain."""

    def __init__(self) -> None:
        self.children = 0
        self._fruitless = 0

    def check(self, end: ChildEnd) -> None:
        """Whether another worker is worth it after one ended; raises WorkerUnusable."""
        self._fruitless = 0 if end.results else self._fruitless + 1
        if self._fruitless == 2 or any(event.kind is EventKind.UNUSABLE for event in end.events):
            raise WorkerUnusable(f"the worker cannot start: {end.reason}")


def run_child(
    handler: str,
    shared: Mapping[str, Any],
    items: Mapping[str, Mapping[str, Any]],
    *,
    run_dir: Path,
    **options: Unpack[ChildOptions],
) -> ChildEnd:
    """Run one child to its end, whatever that is, and say how it went; no restarts.

    `run_dir` is created if need be and keeps the logs.  Raises ToolMissing if the wrapper is not
    installed, and nothing on account of the child.
    """
    given = {name: {"_partials": [], **spec} for name, spec in items.items()}
    with Child(handler, shared, given, run_dir, options) as child:
        for _ in child.events():
            pass
    return child.end()


@contextlib.contextmanager
def _folder(run_dir: Path | None) -> Iterator[Path]:
    if run_dir is not None:
        yield run_dir
        return
    with tempfile.TemporaryDirectory(prefix="fa-tune-", ignore_cleanup_errors=True) as temporary:
        yield Path(temporary)
