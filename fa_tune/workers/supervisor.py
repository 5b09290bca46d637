"""Work that may crash, hang or poison a GPU context, done in child processes.

`run_items` hands many items to one worker process (starting a GPU context is dear) and
yields each item's result as it arrives.  When the worker dies or falls silent, the item it
had last begun is blamed, never run again, and a fresh worker gets the items that have no
result yet.  `run_child` is the same for one worker without restarts, for a caller that has
more to read afterwards, such as a profiler's log.

Who is blamed: the item last begun, unless it has its final result.  A worker that dies
between items blames nobody and is replaced; one that dies before it has begun anything is
replaced once, and the second such death raises WorkerUnusable, as does a handler that
cannot be imported: a broken set-up says nothing about the items.

How long it may take: every record restarts the clock.  While an item is begun, silence may
last that item's time limit; otherwise `start_timeout_s`; once the handler has returned or
raised, `exit_timeout_s` (a wrapper may still be writing its report).

Partials: what `report.partial` sent is kept here, reaches `on_event` at once, and is given
to the next worker as `items[name]["_partials"]`; only the blamed item's are dropped.

Children live in a process group of their own, which is killed as a whole at the end of
every worker, on Ctrl-C, on an exception, and when the generator is closed.  They also die
with this process if it is killed outright, and with the thread that started them: prctl(2)
ties a child to its parent's thread, so let one thread see a generator through.  Linux only.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fa_tune.core.errors import ToolMissing
from fa_tune.core.model import Outcome
from fa_tune.workers.child import CALLED_OFF, CalledOff, Child, ChildEnd, ItemResult, Plan
from fa_tune.workers.protocol import Event, Kind

__all__ = [
    "CALLED_OFF",
    "CalledOff",
    "ChildEnd",
    "Event",
    "ItemResult",
    "Kind",
    "WorkerUnusable",
    "run_child",
    "run_items",
]

OnEvent = Callable[[Event], None]

_FORGOTTEN = "the handler returned without a result for this item"


class WorkerUnusable(ToolMissing):
    """The worker does not get as far as its first item: nothing is known about the rest.

    `remaining` are the items without a result, `stderr_tail` the worker's last words.
    """

    def __init__(self, message: str, remaining: Sequence[str], stderr_tail: str) -> None:
        super().__init__(message)
        self.remaining = tuple(remaining)
        self.stderr_tail = stderr_tail


def run_items(
    handler: str,
    shared: Mapping[str, Any],
    items: Mapping[str, Mapping[str, Any]],
    *,
    item_timeout_s: float,
    start_timeout_s: float = 120,
    exit_timeout_s: float = 60,
    wrapper: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    run_dir: Path | None = None,
    on_event: OnEvent | None = None,
    on_child_end: Callable[[ChildEnd], None] | None = None,
    max_restarts: int | None = None,
    pardon_kills: bool = False,
) -> Generator[ItemResult, None, None]:
    """Run `handler` ("module:function", see `fa_tune.workers.main`) over the items in children.

    Yields one result per item, each exactly once, in the order they arrive.  `shared` and
    the items' dicts are JSON.  `on_event` sees every record of every child, `on_child_end`
    every child's end before its culprit is yielded.  Each child works in its own folder
    `child-000`, `child-001`, … of `run_dir`, or of a temporary one removed at the end;
    `{run_dir}` in `wrapper` and in the values of `env` becomes that folder.  `wrapper` is
    put before the child's command, as in ["ncu", "--log-file", "{run_dir}/ncu.csv"].

    `pardon_kills`: a worker that somebody killed with SIGKILL, which nothing on a GPU can
    send, costs its item one more try, with its partials; the second time it is blamed.

    Raises ToolMissing if the wrapper is not installed, and WorkerUnusable (after the
    results there are) if workers cannot get started or `max_restarts` is used up; by
    default restarts are bounded by the number of items, as each one costs an item.
    """
    plan = Plan(
        handler, shared, item_timeout_s, start_timeout_s, exit_timeout_s, tuple(wrapper), env or {}
    )
    remaining = {name: dict(spec) for name, spec in items.items()}
    partials = {name: list(spec.get("_partials", [])) for name, spec in items.items()}
    children = fruitless = 0
    pardoned: set[str] = set()
    with _folder(run_dir) as root:
        while remaining:
            given = {
                name: {**spec, "_partials": partials[name]} for name, spec in remaining.items()
            }
            with Child(plan, given, root / f"child-{children:03d}") as child:
                for event in child.events():
                    if on_event is not None:
                        on_event(event)
                    if event.kind is Kind.PARTIAL:
                        partials[event.item].append(event.value)
                    if event.item in child.results and remaining.pop(event.item, None) is not None:
                        yield child.results[event.item]
            end = child.end()
            children += 1
            if on_child_end is not None:
                on_child_end(end)
            if end.culprit is not None:
                if pardon_kills and end.was_killed and end.culprit not in pardoned:
                    pardoned.add(end.culprit)
                    continue
                del remaining[end.culprit]
                yield end.results[end.culprit]
            if end.finished:
                for name in remaining:
                    yield ItemResult(name, Outcome.CRASHED, None, _FORGOTTEN)
                return
            if not remaining:
                return
            fruitless = 0 if end.results else fruitless + 1
            reason = ""
            if fruitless == 2 or any(event.kind is Kind.UNUSABLE for event in end.events):
                reason = f"the worker cannot start: {end.reason}"
            elif max_restarts is not None and children > max_restarts:
                reason = f"gave up after {children} workers: {end.reason}"
            if reason:
                raise WorkerUnusable(reason, tuple(remaining), end.stderr_tail)


def run_child(
    handler: str,
    shared: Mapping[str, Any],
    items: Mapping[str, Mapping[str, Any]],
    *,
    run_dir: Path,
    item_timeout_s: float,
    start_timeout_s: float = 120,
    exit_timeout_s: float = 60,
    wrapper: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    on_event: OnEvent | None = None,
) -> ChildEnd:
    """Run one child to its end, whatever that is, and say how it went; no restarts.

    `run_dir` is created if need be and keeps the logs.  The arguments are `run_items`';
    raises ToolMissing if the wrapper is not installed, and nothing on account of the child.
    """
    plan = Plan(
        handler, shared, item_timeout_s, start_timeout_s, exit_timeout_s, tuple(wrapper), env or {}
    )
    given = {name: {"_partials": [], **spec} for name, spec in items.items()}
    with Child(plan, given, run_dir) as child:
        for event in child.events():
            if on_event is not None:
                on_event(event)
    return child.end()


@contextlib.contextmanager
def _folder(run_dir: Path | None) -> Iterator[Path]:
    if run_dir is not None:
        yield run_dir
        return
    with tempfile.TemporaryDirectory(prefix="fa-tune-", ignore_cleanup_errors=True) as temporary:
        yield Path(temporary)
