"""From ncu's log to one line that says what went wrong and how to mend it.

ncu's exit status alone says too little: a run without counters can end in 0 and a helper
process that never touched CUDA prints what looks like an error.  So the log is matched, by the
parts of its sentences that have stayed the same over the releases; the table below is in order
of precedence, most specific cause first.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from fa_tune.core.errors import FaTuneError, InvalidConfig, NoUsableVariant, ToolMissing

EVENTS = "--profiler events"
_MAX_NAMES = 8


@dataclass(frozen=True)
class Diagnosis:
    """The meaning of a log.  `name` is stable; `message` is one line, cause and fix; a note
    (`fatal` False) leaves the results usable.  `error` is what a fatal one is raised as."""

    name: str
    message: str
    fatal: bool
    error: type[FaTuneError]


@dataclass(frozen=True)
class _Rule:
    """One row: `message` is text, or a function of the match and the log that gives text, or
    None where the row does not apply after all."""

    name: str
    pattern: str
    message: str | Callable[[re.Match[str], str], str | None]
    error: type[FaTuneError] = ToolMissing
    fatal: bool = True


def _no_kernels(_: re.Match[str], log: str) -> str:
    listed = log.partition("Available Kernels:")[2]
    names = re.findall(r"^\s*\d+\.\s+(\S.*?)\s*$", listed, re.MULTILINE)
    if not names:
        return (
            "no kernel was profiled: none was launched between profiler start and stop, "
            "or the filter matched none"
        )
    return f"no kernel matched the filter; the program launched {_listed(names)}"


def _unknown_metric(match: re.Match[str], log: str) -> str:
    # ncu turns a name without suffix into an expression: regex:^name\.(sum|min|…)$
    names = [re.split(r"\\|\(|\$", m["metric"])[0].rstrip(".") for m in match.re.finditer(log)]
    return (
        f"this GPU or ncu release has no metric {_listed(list(dict.fromkeys(names)))}; "
        "leave it out (`ncu --query-metrics` lists those there are)"
    )


def _some_metrics(match: re.Match[str], _: str) -> str:
    names = [n.strip(" .") for n in match["names"].split(",")]
    return (
        f"ncu could not read {match['count']} metrics of this GPU, whose values are missing: "
        f"{_listed([n for n in names if n])}"
    )


def _died_early(_: re.Match[str], log: str) -> str | None:
    # Helper processes end so too, next to a program that was profiled well.
    if re.search(r"^==PROF== Connected to process", log, re.MULTILINE):
        return None
    return (
        "the profiled program ended before its first CUDA call (an import error, a wrong path); "
        "see what it printed on stderr"
    )


def _unknown_option(match: re.Match[str], _: str) -> str:
    return f"this ncu release does not know the option {match['option']}; install a newer ncu"


def _shown(pattern: str) -> str:
    """A sentence of ncu's own, that is, on or right after one of its `==` lines."""
    return rf"^==(?:ERROR|WARNING|PROF)==.*{pattern}"


_RULES = (
    _Rule(
        "counters-forbidden",
        r"ERR_NVGPUCTRPERM",
        "GPU performance counters are restricted to administrators: load the driver with "
        "NVreg_RestrictProfilingToAdminUsers=0, run as root, or give the container SYS_ADMIN; "
        f"without that use {EVENTS}",
    ),
    _Rule(
        "counter-library",
        r"LibraryNotLoaded",
        "ncu could not load the counter library: the container hides the driver's profiling "
        "interface, or ncu is older than the GPU or the driver; use a newer ncu or the native "
        f"container runtime, else {EVENTS}",
    ),
    _Rule(
        "counters-in-use",
        r"driver resource was unavailable",
        "another tool holds the GPU's counters, often DCGM: `dcgmi profile --pause`, profile, "
        "then `dcgmi profile --resume`",
    ),
    _Rule(
        "driver-too-old",
        r"not compatible with Nsight Compute",
        "the driver is older than this ncu: update the driver, or use the ncu of the CUDA "
        "release that the driver belongs to",
    ),
    _Rule(
        "lock-file",
        r"nsight-compute-lock|InterprocessLockFailed|" + _shown("lock file"),
        "ncu's lock file belongs to another user or a dead run: set TMPDIR to a folder of your "
        "own (then never run two at once on one GPU)",
    ),
    _Rule(
        "clocks-not-lockable",
        r"Cannot lock GPU clock|(?:Failed to|Unable to|Could not) (?:lock|control|set) "
        r"(?:the )?GPU clock",
        "ncu may not lock the GPU's clocks (MIG, or no permission): use --clock-control none",
    ),
    _Rule(
        "memory-not-saved",
        r"Failed to save memory|ContextSaveFailed|" + _shown("out of memory"),
        "the kernel's memory cannot be saved between replay passes: make the workload smaller "
        "(--batch, --heads, --seq-lens), or use --profiler events",
        error=NoUsableVariant,
    ),
    _Rule(
        "unknown-metric",
        _shown(r"Failed to find metric (?:regex:)?\^?(?P<metric>\S+)"),
        _unknown_metric,
        error=InvalidConfig,
    ),
    _Rule(
        "unknown-option",
        _shown(r"(?:unrecogni[sz]ed|unknown) option '?(?P<option>--?[\w-]+)"),
        _unknown_option,
    ),
    _Rule(
        "injection-conflict",
        _shown("Failed to connect to process"),
        "ncu could not attach: another injection library is in the way; start with "
        "CUDA_INJECTION64_PATH=none",
    ),
    _Rule(
        "ended-early",
        r"terminated before first instrumented API call",
        _died_early,
        error=NoUsableVariant,
    ),
    _Rule(
        "profiling-failed",
        _shown(r"(?:Failed to prepare kernel for profiling|Unknown Error on device)"),
        "ncu could not set up the counters on this device: use the ncu of the program's CUDA "
        f"release, or {EVENTS}",
    ),
    _Rule("no-kernels", r"No kernels were profiled", _no_kernels, error=NoUsableVariant),
    _Rule(
        "metrics-unavailable",
        r"Unable to access the following (?P<count>\d+) metrics?:\s*(?P<names>[^\n]*)",
        _some_metrics,
        fatal=False,
    ),
    _Rule(
        "clocks-were-locked",
        r"outstanding GPU clock reset",
        "an earlier ncu was killed and left the GPU's clocks locked; this run reset them",
        fatal=False,
    ),
)


def diagnose_log(log: str, *, exit_code: int | None) -> Diagnosis | None:
    """The diagnosis of `log` and ncu's exit status; None if nothing is wrong.

    `exit_code` None means that ncu did not end in time and was killed.  A cause found in the
    log outranks the timeout and the exit status; a note is given only if nothing is fatal.
    """
    note: Diagnosis | None = None
    for rule in _RULES:
        match = re.search(rule.pattern, log, re.MULTILINE | re.IGNORECASE)
        if match is None:
            continue
        message = rule.message if isinstance(rule.message, str) else rule.message(match, log)
        if message is None:
            continue
        found = Diagnosis(rule.name, message, rule.fatal, rule.error)
        if rule.fatal:
            return found
        note = note or found
    if exit_code is None:
        return Diagnosis(
            "timed-out",
            "ncu did not end in time and was killed: the kernel does not return, or waits for "
            "another that the profiler does not let run beside it",
            True,
            NoUsableVariant,
        )
    if exit_code != 0:
        return Diagnosis("failed", _last_error(log, exit_code), True, NoUsableVariant)
    return note


def _last_error(log: str, exit_code: int) -> str:
    errors = re.findall(r"^==ERROR==\s*(\S.*?)\s*$", log, re.MULTILINE)
    program = [e for e in errors if "application returned an error code" in e]
    if program and len(program) == len(errors):
        return f"the profiled program failed under ncu: {program[-1]}"
    specific = [e for e in errors if e not in program]
    if specific:
        return f"ncu failed: {specific[0]}"
    return f"ncu ended with status {exit_code} and said nothing"


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMES])
    return f"{shown} and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else shown
