"""The child that compiles: one CompileJob in, one CompileReply out, until the pipe closes.

It knows no family and imports nothing but NVRTC's bindings, so it starts in a fraction of a
second; everything it needs is text in the job.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection

from fa_tune.build import nvrtc
from fa_tune.build.ptxas_log import CompiledKernel, diagnostics, kernel_facts
from fa_tune.core.errors import ToolMissing
from fa_tune.core.model import Outcome

READY = "ready"
# A worker whose parent died during a compilation ends itself this long after the deadline.
ORPHAN_GRACE_S = 10


@dataclass(frozen=True)
class CompileJob:
    """One translation unit to compile: plain text, complete.

    `name_expressions` are the template instantiations to look up in the result; `timeout_s` is
    the deadline that the parent enforces.
    """

    source: str
    headers: Mapping[str, str]
    options: tuple[str, ...]
    name_expressions: tuple[str, ...]
    timeout_s: float


@dataclass(frozen=True)
class Compilation:
    """What the compiler made of a job.  OK has `kernels`, one for each name expression;
    COMPILE_FAILED has reason and log; CRASHED and TIMED_OUT (mostly given by the parent) have a
    reason.  `compile_s` is the time it took."""

    outcome: Outcome
    reason: str = ""
    log: str = ""
    kernels: tuple[CompiledKernel, ...] = ()
    diagnostics: tuple[str, ...] = ()
    compile_s: float = 0.0


CompileReply = tuple[Compilation, bytes]  # and its cubin, empty if it is not OK


def compile_job(job: CompileJob) -> CompileReply:
    """Compile in this process."""
    try:
        compiled = nvrtc.compile_source(
            job.source, "kernel.cu", job.headers, job.options, job.name_expressions
        )
        symbols = [compiled.lowered[name] for name in job.name_expressions]
        kernels = tuple(CompiledKernel(s, kernel_facts(compiled.log, s)) for s in symbols)
    except nvrtc.CompileError as error:
        return Compilation(Outcome.COMPILE_FAILED, str(error), error.log), b""
    except ToolMissing as error:  # out of memory, an internal error, a log in an unknown form
        return Compilation(Outcome.CRASHED, str(error)), b""
    log = compiled.log
    made = Compilation(Outcome.OK, "", log, kernels, diagnostics(log), compiled.compile_s)
    return made, compiled.image


def main(argv: list[str]) -> int:
    """Serve jobs on the connection whose file descriptor is `argv[0]`."""
    connection = Connection(int(argv[0]))
    try:
        nvrtc.version()
    except ToolMissing as error:
        print(error, file=sys.stderr)
        return error.exit_status
    # The default action ends the process even while it is inside the compiler.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.chdir("/")  # quoted includes also search the working directory; it must hold none
    try:
        connection.send(READY)
        while True:
            job: CompileJob = connection.recv()
            signal.alarm(int(job.timeout_s) + ORPHAN_GRACE_S)
            connection.send(compile_job(job))
            signal.alarm(0)
    except (EOFError, ConnectionError):  # the parent is done, or gone
        return 0
