"""A capture from its beginning to its end, in this process."""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from fa_tune.core.errors import FaTuneError, InvalidConfig
from fa_tune.core.files import replace_file, save_file
from fa_tune.core.workload import BACKWARD
from fa_tune.op import state
from fa_tune.op.capturing.hooks import installed
from fa_tune.op.capturing.recorder import Recorder
from fa_tune.op.chooser import Choice
from fa_tune.store.capture.parts import Settings
from fa_tune.store.capture.schema import SCHEMA, Capture, Problem, Process, Served, to_json
from fa_tune.store.capture.workloads import workload_of

FLUSH_S = 1.0
FLUSH_SHARE = 0.01  # of the time that goes by, for writing
_NO_PASS = "no kernel of ours is for this backward pass, or it is small"
_NOT_ASKED = "nobody asked for ours: enable_sdpa, register_transformers or fa_tune.op's functions"


@contextmanager
def capture(path: Path | str, *, keep_inputs: int = 0) -> Iterator[None]:
    """Write the attention problems that this process runs within the context to a file
    (docs/capture.md).  `keep_inputs`: of so many problems Q, K and V are saved in the folder
    `path`.inputs.  Within another capture both see all calls.

    Raises ToolMissing for a torch before 2.10, StorageError where the file cannot be written.
    """
    path = Path(path)
    recorder, began = Recorder(keep_inputs, path.with_name(f"{path.name}.inputs")), Began()
    try:
        with installed(recorder):
            yield
    finally:
        _wait()
        save_file(path, to_json(_found(recorder, began, ended=True)).encode())


def _wait() -> None:
    """Until what is timed is done, but for a GPU that a kernel has failed on."""
    if torch.cuda.is_initialized():
        with suppress(RuntimeError):
            torch.cuda.synchronize()


class Began:
    """When a capture began."""

    def __init__(self) -> None:
        self.at = datetime.now(UTC).isoformat(timespec="seconds")
        self.clock = time.perf_counter()


class Child:
    """The capture of a process that `fa-tune capture` started, or a child of it: written about once
    a second, and at the end."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._failed = ""
        self._recorder = Recorder(settings.keep_inputs, settings.inputs)
        self._hooks = ExitStack()
        self._hooks.enter_context(installed(self._recorder))
        self._start()
        atexit.register(self._end)
        os.register_at_fork(after_in_child=self._start_anew)
        # Children of multiprocessing do not come to atexit.
        multiprocessing.util.register_after_fork(self, Child._end_with_process)
        self._end_with_process()

    def _end_with_process(self) -> None:
        multiprocessing.util.Finalize(self, self._end, exitpriority=0)

    def _start_anew(self) -> None:
        self._recorder.start()
        self._start()

    def _start(self) -> None:
        self._began, self._writing, self._ended = Began(), threading.Lock(), False
        self._path = self._settings.new_part()
        threading.Thread(target=self._flush_now_and_then, daemon=True).start()

    def _flush_now_and_then(self) -> None:
        took = 0.0
        while True:
            time.sleep(max(FLUSH_S, took / FLUSH_SHARE))
            began = time.perf_counter()
            self._write()
            took = time.perf_counter() - began

    def _end(self) -> None:
        _wait()
        self._ended = True
        self._write()

    def _write(self) -> None:
        with self._writing:
            try:
                found = _found(self._recorder, self._began, ended=self._ended)
                replace_file(self._path, to_json(found).encode(), synced=False)
            except Exception as error:  # the program goes on
                if self._failed != str(error):
                    print(f"fa-tune capture: cannot write: {error}", file=sys.stderr)
                self._failed = str(error)


def _found(recorder: Recorder, began: Began, *, ended: bool) -> Capture:
    return Capture(
        schema=SCHEMA,
        command=tuple(sys.argv),
        started=began.at,
        wall_s=time.perf_counter() - began.clock,
        exit_status=None,
        processes=(Process(os.getpid(), str(torch.__version__), ended, recorder.dropped),),
        usages=recorder.usages(_served),
        notes=tuple(recorder.notes),
    )


@cache
def _served(problem: Problem, by: str, why: str) -> Served:
    """With the kernel and its entry, or the reason why it was not ours."""
    try:
        workload = workload_of(problem)
    except InvalidConfig as error:
        return Served(by, why=why or ("" if by == "fa_tune" else str(error)))
    if by != "fa_tune":
        usual = "the tensors are on the cpu" if problem.device == "cpu" else _NOT_ASKED
        if problem.api == "fa_tune" and problem.op == BACKWARD:
            usual = _NO_PASS
        return Served(by, why=why or usual)
    try:
        plans = state.operators().plans
        if workload.cached:
            workload = replace(workload, cache_lengths="equal", page_size=0)
        choice = plans.choice(workload, torch.cuda.current_device())
    except FaTuneError as error:
        return Served(by, why=str(error))
    return Served(by, choice.variant.key, _entry(choice), choice.why)


def _entry(choice: Choice) -> Literal["exact", "near", "default"]:
    if choice.exact:
        return "exact"
    return "near" if choice.from_registry else "default"
