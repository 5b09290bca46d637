"""What the hooks tell of every call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fa_tune.core.workload import FORWARD
from fa_tune.op import fallback_warning
from fa_tune.op.capturing.sites import Site, dense_of, problem_of
from fa_tune.op.capturing.tally import Budget, Clock, Counts, Looks, Tally, Timed
from fa_tune.store.capture.schema import Problem, Served, Usage, merged

Arguments = Sequence[Any]
MOST_FORMS = 20_000
_KEPT_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class _Frame(threading.local):
    """The call that a thread is in; calls within it say who serves it."""

    is_open = False
    inner = ""


class Recorder:
    """All calls of a process.  `keep_inputs`: of so many forms Q, K and V are saved in `folder`."""

    def __init__(self, keep_inputs: int = 0, folder: Path | None = None) -> None:
        self._keep, self._folder = keep_inputs, folder
        self.start()

    def start(self) -> None:
        """Anew, as in a child that was forked: locks may be held for ever in it."""
        self.notes: dict[str, None] = {}
        self.dropped = 0
        self._budget = Budget()
        self._clock, self._looks = Clock(self._budget), Looks(self._budget)
        self._frame = _Frame()
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._tallies: dict[Any, Tally] = {}

    def call(
        self,
        site: Site,
        function: Callable[..., Any],
        args: Arguments,
        kwargs: Mapping[str, Any],
    ) -> Any:
        """What the function gives; the call is counted.  Its exceptions are passed on, ours are
        not."""
        frame = self._frame
        if frame.is_open:
            before, frame.inner = frame.inner, ""
            try:
                out = function(*args, **kwargs)
                before = frame.inner or site.by
            finally:
                frame.inner = before
            return out
        frame.is_open, frame.inner = True, ""
        try:
            tally, timed = self._before(site, args, kwargs)
            out = function(*args, **kwargs)
        finally:
            frame.is_open = False
        if tally is not None:
            self._after(tally, timed, frame.inner or site.by)
        return out

    def _before(
        self, site: Site, args: Arguments, kwargs: Mapping[str, Any]
    ) -> tuple[Tally | None, Timed | None]:
        try:
            form = site.form(args, kwargs)
            tally = self._tallies.get(form)
            if tally is None:
                tally = self._new(form, site, args, kwargs)
            if tally is None or not tally.is_due or not self._budget.is_left or is_capturing():
                return tally, None
            given = site.given(args, kwargs)
            self._looks.take(tally, given)
            if tally.n == 0 and self._keep > 0:
                self._save(tally, site, given)
            return tally, self._clock.begin(given["q"].device)
        except Exception as error:
            self.note(f"{site.name} could not be read: {type(error).__name__}: {error}")
            return None, None

    def _new(
        self, form: Any, site: Site, args: Arguments, kwargs: Mapping[str, Any]
    ) -> Tally | None:
        if len(self._tallies) >= MOST_FORMS:
            self.dropped += 1
            return None
        tally = Tally(problem_of(site, site.given(args, kwargs)))
        with self._lock:
            return self._tallies.setdefault(form, tally)

    def _after(self, tally: Tally, timed: Timed | None, by: str) -> None:
        why = fallback_warning.last_reason()
        with self._lock:
            tally.n += 1
            counts = tally.counts(by, "" if by == "fa_tune" else why)
            if is_capturing():
                counts.captured += 1
                if Graphs.current is None:
                    self.note("a CUDA graph was not captured by torch.cuda.graph: no replays seen")
                else:
                    Graphs.current[counts] = Graphs.current.get(counts, 0) + 1
                return
            counts.calls += 1
        if timed is not None:
            try:
                self._clock.end(timed, counts)
            except RuntimeError as error:
                self._note_failure(error)

    def _note_failure(self, error: RuntimeError) -> None:
        """The program is told of what a GPU does not do any more by its own calls."""
        self.note(f"times are missing: {str(error).partition(chr(10))[0]}")

    def _save(self, tally: Tally, site: Site, given: Mapping[str, Any]) -> None:
        """Keep Q, K and V of a call, which waits for the GPU."""
        kind = tally.problem.op, tally.problem.kind
        if kind != (FORWARD, "dense") or given["q"].dtype not in _KEPT_DTYPES:
            return
        from safetensors.torch import save_file

        assert self._folder is not None
        self._keep -= 1
        path = self._folder / f"{time.time_ns()}.safetensors"
        self._folder.mkdir(parents=True, exist_ok=True)
        with torch.no_grad():
            three = dense_of(given, site.heads_first)
            save_file({n: t.detach().cpu().contiguous().clone() for n, t in three.items()}, path)
        tally.inputs.append(str(path))

    def note(self, text: str) -> None:
        """Something that could not be seen, once."""
        self.notes.setdefault(text)

    def usages(self, served: Callable[[Problem, str, str], Served]) -> tuple[Usage, ...]:
        """What is known so far, the costliest first."""
        with self._reading:
            try:
                self._clock.read()
                self._looks.read()
            except RuntimeError as error:
                self._note_failure(error)
            tallies = list(self._tallies.values())
            return merged(usage for tally in tallies for usage in tally.usages(served))


class Graphs:
    """The graph that is being captured: its calls, and how often each is in it."""

    current: dict[Counts, int] | None = None


def is_capturing() -> bool:
    """Whether calls go into a CUDA graph now."""
    return torch.cuda.is_initialized() and bool(torch.cuda.is_current_stream_capturing())


def is_real(args: Arguments) -> bool:
    """Whether a call has numbers, unlike those of a graph that is traced."""
    if not args or not isinstance(args[0], Tensor) or args[0].is_meta:
        return False
    return type(args[0]).__torch_dispatch__ is Tensor.__torch_dispatch__
