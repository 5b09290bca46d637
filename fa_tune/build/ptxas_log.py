"""What NVRTC's program log says: resource facts per kernel, diagnostics, the first error.

Pure text in, values out.  With `--ptxas-options=-v` the log holds, per kernel,

    ptxas info    : Compiling entry function '_Z1kPf' for 'sm_90'
    ptxas info    : Function properties for _Z1kPf
    ptxas         .     16 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads
    ptxas info    : Used 32 registers, used 1 barriers, 128 bytes smem

(the third line without `ptxas .` in older releases); device functions that were not inlined
have a properties pair of their own and no `Used` line.
"""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass

from fa_tune.core.errors import ToolMissing


@dataclass(frozen=True)
class KernelFacts:
    """What one kernel uses, as ptxas states it.  Sizes are bytes; registers, stack and
    spills are per thread, shared memory and barriers per CTA."""

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    static_smem_bytes: int
    barriers: int

    def __post_init__(self) -> None:
        if min(astuple(self)) < 0:
            raise ValueError("a fact is a count, and not below 0")


_ENTRY = re.compile(r"Compiling entry function '(?P<symbol>[^']+)'")
_PROPERTIES = re.compile(r"Function properties for '?(?P<symbol>[^\s']+)'?")
_FRAME = re.compile(
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads"
)
_REGISTERS = re.compile(r"Used (\d+) registers")
_BARRIERS = re.compile(r"[uU]sed (\d+) barriers")
_SMEM = re.compile(r"(\d+)(?:\+\d+)? bytes smem")


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel in a cubin: its mangled name and what ptxas says of it."""

    symbol: str
    facts: KernelFacts


def kernel_facts(log: str, symbol: str) -> KernelFacts:
    """The facts of the kernel with this mangled name.

    Raises ToolMissing when the log does not state its registers or its spills: a fact that
    is not there is never taken for zero.  ptxas leaves out only what is zero by its own
    convention: shared memory and barriers.
    """
    frames: dict[str, tuple[int, int, int]] = {}
    used: dict[str, str] = {}
    entry = function = ""
    for line in log.splitlines():
        if m := _ENTRY.search(line):
            entry = m["symbol"]
        elif m := _PROPERTIES.search(line):
            function = m["symbol"]
        elif m := _FRAME.search(line):
            frames[function] = (int(m["stack"]), int(m["stores"]), int(m["loads"]))
        elif _REGISTERS.search(line):
            used[entry] = line
    if symbol not in frames or symbol not in used:
        raise ToolMissing(
            f"the compiler's log does not state the registers and spills of {symbol}; "
            "this NVRTC writes a form that is not known here"
        )
    stack, stores, loads = frames[symbol]
    line = used[symbol]
    return KernelFacts(
        registers=_number(_REGISTERS, line),
        spill_store_bytes=stores,
        spill_load_bytes=loads,
        stack_bytes=stack,
        static_smem_bytes=_number(_SMEM, line),
        barriers=_number(_BARRIERS, line),
    )


def _number(pattern: re.Pattern[str], line: str) -> int:
    m = pattern.search(line)
    return int(m[1]) if m else 0


# Front end, optimizer, ptxas and nvrtc itself each word a warning differently; a diagnostic
# line starts in the first column (quoted source is indented) and has one of these words.
_DIAGNOSTIC = re.compile(r"\bwarning\b|\badvisory\b|\bdeprecated\b|\(C\d{4,5}\)", re.IGNORECASE)
_NO_DIAGNOSTIC = re.compile(r"\s|Remark:|.*\bnote\b( #[\w-]+)?:")


def diagnostics(log: str) -> tuple[str, ...]:
    """Warnings, deprecations and ptxas's C75xx notices, one line each, in order, no repeats."""
    found = (
        _one_line(line)
        for line in log.splitlines()
        if _DIAGNOSTIC.search(line) and not _NO_DIAGNOSTIC.match(line)
    )
    return tuple(dict.fromkeys(found))


_STATIC_ASSERT = re.compile(r'static assertion failed(?: with)? "(?P<text>.*)"')
_ERROR = re.compile(r"\b(?:error|fatal)\b", re.IGNORECASE)


def first_error(log: str) -> str:
    """The line that explains a failed compilation best: a static assertion's sentence, else
    the first error, else the first line; empty for an empty log."""
    if m := _STATIC_ASSERT.search(log):
        return m["text"]
    lines = [_one_line(line) for line in log.splitlines() if line.strip()]
    return next((line for line in lines if _ERROR.search(line)), lines[0] if lines else "")


_CHATTER = re.compile(r"^ptxas info\s*: ")


def _one_line(line: str) -> str:
    return " ".join(_CHATTER.sub("ptxas: ", line).split())
