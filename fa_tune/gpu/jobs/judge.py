"""The processes that work for a judge: one that calls the target, and a trusted one that knows what
must come out and calls the references."""

from __future__ import annotations

import hashlib
import json
import resource
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch

from fa_tune import libraries
from fa_tune.core import codec
from fa_tune.core.errors import InvalidConfig, first_line
from fa_tune.core.jobs import JudgeJob
from fa_tune.core.judged import (
    NAN,
    Call,
    Called,
    Calls,
    Case,
    Check,
    Checked,
    Fault,
    digest_of,
)
from fa_tune.core.model import CaseError, is_users, reference_name, user_place
from fa_tune.core.workload import Workload
from fa_tune.gpu.integrity import Integrity
from fa_tune.gpu.judged_call import Bound, EventClock, HostClock, bits, drawn
from fa_tune.libraries import user
from fa_tune.operations.base import CheckCase
from fa_tune.operations.torch_side import TorchSide, judge, outputs_of, torch_side_of
from fa_tune.workers.main import Report

CPU = -1


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """See `core.jobs.JudgeJob`."""
    job = JudgeJob.read(shared, items)
    if job.device == CPU:
        resource.setrlimit(resource.RLIMIT_DATA, (job.memory_bytes, job.memory_bytes))
    else:
        from fa_tune.gpu.guard import use_device  # late: it loads CuPy, which a CPU does not need

        use_device(job.device)
    server = Server(job.device, trusted=job.trusted)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(job.address)
    # Names that the target may change are looked up before it is loaded.
    load, dump, plain, send = json.loads, json.dumps, codec.dump, connection.sendall
    with connection.makefile("rb") as requests:
        while line := requests.readline():
            send(dump(plain(server.answer(load(line)))).encode() + b"\n")


class Server:
    """Answers requests."""

    def __init__(self, device: int, *, trusted: bool) -> None:
        self._device = "cpu" if device == CPU else f"cuda:{device}"
        self._clock = HostClock() if device == CPU else EventClock()
        self._synchronize = (lambda: None) if device == CPU else torch.cuda.synchronize
        self._trusted = trusted
        self._integrity: list[Integrity] = []  # once a target is loaded
        self._bound: dict[tuple[Case, str], Bound] = {}

    def answer(self, request: Mapping[str, Any]) -> Called | Checked:
        """The answer to `Calls` or `Check`."""
        if "subject" not in request:
            return check(codec.load(Check, request), self._device)
        calls = codec.load(Calls, request)
        try:
            return self._called(calls, self._bind(calls))
        except InvalidConfig as error:
            return Called(no_call=str(error) or "no reason given")
        except Exception as error:
            return Called(raised=f"{type(error).__name__}: {first_line(error)}")

    def _bind(self, request: Calls) -> Bound:
        key = request.case, request.subject
        if key in self._bound:
            return self._bound[key]
        for case, subject in list(self._bound):
            if case != request.case:
                del self._bound[case, subject]
        if not self._trusted and not self._integrity:
            _withhold_reference(torch_side_of(Workload.from_key(request.case.workload)))
            self._integrity.append(Integrity())
            self._integrity[0].watch(self, self._clock)
        place = reference_name(request.subject)
        users = is_users(request.subject)
        runner = user.locate(user_place(place)) if users else libraries.get(place)
        self._bound[key] = bound = Bound(runner, request, self._device, self._clock)
        for integrity in self._integrity:
            integrity.watch(bound)
        return bound

    def _called(self, request: Calls, bound: Bound) -> Called:
        found = []
        for number, contents in enumerate(request.contents):
            one, outputs = bound.call(contents, repeats=request.repeats, traced=request.traced)
            self._synchronize()
            if request.folder:
                written = [
                    _write(tensor, Path(request.folder) / f"{number}.{name}")
                    for name, tensor in sorted(outputs.items())
                ]
                one = replace(one, digest=digest_of(written))
            found.append(self._looked_at(one))
        return Called(tuple(found), versions=dict(bound.runner.versions))

    def _looked_at(self, call: Call) -> Call:
        """The call, with what it changed in this process."""
        changed = [name for integrity in self._integrity for name in integrity.changed()]
        if not changed:
            return call
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        fault = Fault("patched", f"it changed {', '.join(changed[:3])}{more}")
        return replace(call, faults=(*call.faults, fault))


def check(request: Check, device: str) -> Checked:
    """Compare the files of a call with what must come out."""
    workload = Workload.from_key(request.case.workload)
    outputs = {}
    for name, room in outputs_of(workload, device=device).items():
        path = Path(request.folder) / f"{request.number}.{name}"
        if not path.is_file() or path.stat().st_size != room.nbytes:
            return Checked(damaged=f"output {name} was not handed over")
        flat = bits(room).view(-1)
        read = torch.from_file(str(path), shared=False, size=flat.numel(), dtype=flat.dtype)
        flat.copy_(read)
        outputs[name] = room
    inputs = drawn(request.case, request.contents, device)
    case = CheckCase(workload, request.case.inputs)
    if request.contents.edit == NAN:
        return Checked(_of_nan(case, inputs["q"], outputs["o"]))
    precise = torch.float32 if request.quick else None
    expected = torch_side_of(workload).expected(workload, inputs, precise=precise)
    return Checked(judge(case, expected, outputs))


def _of_nan(case: CheckCase, q: torch.Tensor, o: torch.Tensor) -> CaseError:
    """Whether those rows of O are NaN that are NaN in Q, and no others."""
    rows = q.isnan().any(-1)
    right = bool((o.isnan().all(-1) == rows).all() and (o.isnan().any(-1) == rows).all())
    return CaseError(case.workload.key, 0.0, 0.0, 0.0, right, inputs=case.inputs)


def _write(tensor: torch.Tensor, path: Path) -> bytes:
    """Hand it over; the SHA-256 of what was written."""
    data = bits(tensor.cpu().contiguous()).view(-1)
    torch.from_file(str(path), shared=True, size=data.numel(), dtype=data.dtype).copy_(data)
    return hashlib.sha256(data.numpy()).digest()


def _withhold_reference(side: TorchSide) -> None:
    """In the target's process nobody computes what must come out."""

    def expected(*_: Any, **__: Any) -> NoReturn:
        raise RuntimeError("the reference is not there for those who are judged")

    ours = side.expected.__module__
    for module in (side, sys.modules[ours]):
        module.expected = expected  # type: ignore[method-assign,union-attr]
