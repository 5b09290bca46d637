"""The metrics fa-tune asks ncu for: what they are called, what people call them, their unit,
and what to ask instead where a chip or release lacks one.

The identifiers were all present on H100 and H200 with ncu 2025.3.1.  Two traps are kept out on
purpose: `gpc__cycles_elapsed.max` comes from another pass than `sm__cycles_elapsed.max`, so
the two are never mixed; `sm__inst_executed_pipe_tensor_op_*` is an instruction rate and says
nothing of how busy the tensor pipe is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from fa_tune.core.errors import ProfileFormatError, UnknownUnit
from fa_tune.core.model import Quantity
from fa_tune.core.units import BYTE, BYTE_PER_SECOND, HERTZ, PERCENT, SECOND, Unit


@dataclass(frozen=True)
class MetricInfo:
    """A metric's name for people and the base unit its value must have (None: a count, whose
    unit is not to be relied on, but that no time, rate, size or percentage may stand for)."""

    identifier: str
    label: str
    unit: str | None = None


DURATION = "gpu__time_duration.sum"
DURATIONS = (DURATION, *(f"gpu__time_duration.{rollup}" for rollup in ("avg", "max", "min")))
CYCLES = "sm__cycles_elapsed.max"
SM_CLOCK = "sm__cycles_elapsed.avg.per_second"
DRAM_CLOCK = "dram__cycles_elapsed.avg.per_second"
L2_HIT_RATE = "lts__t_sector_hit_rate.pct"
REGISTERS = "launch__registers_per_thread"
TENSOR_PIPE = "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active"
XU_PIPE = "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active"
ISSUE_ACTIVE = "smsp__issue_active.avg.pct_of_peak_sustained_active"
INSTRUCTIONS = "smsp__inst_executed.sum"
ACHIEVED_OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
THEORETICAL_OCCUPANCY = "sm__maximum_warps_per_active_cycle_pct"
DRAM_READ = "dram__bytes_read.sum"
DRAM_WRITE = "dram__bytes_write.sum"
SHARED_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
SHARED_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
LOCAL_LOADS = "smsp__sass_inst_executed_op_local_ld.sum"
LOCAL_STORES = "smsp__sass_inst_executed_op_local_st.sum"
REPLAY_PASSES = "profiler__replayer_passes"
BYTES_BACKED_UP = "profiler__replayer_bytes_mem_backed_up.avg"

# Why a warp did not issue; `selected` is the one that did.
STALL_REASONS: Mapping[str, str] = {
    "barrier": "waiting at a CTA barrier",
    "branch_resolving": "branch target not known yet",
    "dispatch_stall": "dispatcher busy",
    "drain": "stores draining at exit",
    "gmma": "waiting for a wgmma",
    "imc_miss": "constant cache miss",
    "lg_throttle": "global-memory queue full",
    "long_scoreboard": "waiting for global or local memory",
    "math_pipe_throttle": "arithmetic pipe busy",
    "membar": "waiting at a memory fence",
    "mio_throttle": "shared-memory queue full",
    "misc": "other",
    "no_instruction": "instruction not fetched yet",
    "not_selected": "another warp was chosen",
    "selected": "issued",
    "short_scoreboard": "waiting for shared memory or the special-function unit",
    "sleeping": "nanosleep",
    "tex_throttle": "texture queue full",
    "wait": "fixed latency",
}


def stall_metric(reason: str) -> str:
    """The metric of one stall reason: cycles stalled per issued instruction."""
    return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"


STALLS = tuple(stall_metric(reason) for reason in STALL_REASONS)

RANK: tuple[str, ...] = (DURATION, CYCLES, SM_CLOCK, DRAM_CLOCK, L2_HIT_RATE, REGISTERS)
EXPLAIN: tuple[str, ...] = (
    *RANK,
    TENSOR_PIPE,
    XU_PIPE,
    ISSUE_ACTIVE,
    INSTRUCTIONS,
    ACHIEVED_OCCUPANCY,
    DRAM_READ,
    DRAM_WRITE,
    SHARED_CONFLICTS,
    SHARED_WAVEFRONTS,
    LOCAL_LOADS,
    LOCAL_STORES,
    *STALLS,
)
# Asked for beside `--set full`: whether the copies and products a config claims are the ones
# that ran, and where the bank conflicts come from.
FULL: tuple[str, ...] = (
    *EXPLAIN,
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ldgsts.sum",
    "smsp__inst_executed_op_ldgsts.sum",
    "smsp__inst_executed_op_ldsm.sum",
    "smsp__inst_executed_op_tma_ld.sum",
    "smsp__sass_inst_executed_op_shared_gmma.sum",
)


# `--metrics NAME`: what is asked for, with ncu's section set of that name for `full`.
REQUESTS: Mapping[str, tuple[str, ...]] = {"rank": RANK, "explain": EXPLAIN, "full": FULL}


_INFO = (
    MetricInfo(DURATION, "duration", SECOND),
    MetricInfo(CYCLES, "SM cycles", "cycle"),
    MetricInfo("gpc__cycles_elapsed.max", "GPC cycles", "cycle"),
    MetricInfo(SM_CLOCK, "SM clock", HERTZ),
    MetricInfo(DRAM_CLOCK, "memory clock", HERTZ),
    MetricInfo(L2_HIT_RATE, "L2 hit rate", PERCENT),
    MetricInfo(REGISTERS, "registers per thread", "register/thread"),
    MetricInfo(TENSOR_PIPE, "tensor pipe busy", PERCENT),
    MetricInfo(
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "tensor pipe busy",
        PERCENT,
    ),
    MetricInfo(
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
        "tensor instruction rate",
        PERCENT,
    ),
    MetricInfo(XU_PIPE, "special-function pipe", PERCENT),
    MetricInfo(ISSUE_ACTIVE, "issue slots busy", PERCENT),
    MetricInfo(INSTRUCTIONS, "instructions executed"),
    MetricInfo(ACHIEVED_OCCUPANCY, "achieved occupancy", PERCENT),
    MetricInfo(THEORETICAL_OCCUPANCY, "theoretical occupancy", PERCENT),
    MetricInfo(DRAM_READ, "DRAM read", BYTE),
    MetricInfo(DRAM_WRITE, "DRAM written", BYTE),
    MetricInfo("dram__bytes_op_read.sum", "DRAM read", BYTE),
    MetricInfo("dram__bytes_op_write.sum", "DRAM written", BYTE),
    MetricInfo(SHARED_CONFLICTS, "shared-memory bank conflicts"),
    MetricInfo(SHARED_WAVEFRONTS, "shared-memory wavefronts"),
    MetricInfo("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum", "bank conflicts, loads"),
    MetricInfo(
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum", "bank conflicts, stores"
    ),
    MetricInfo(
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ldgsts.sum",
        "bank conflicts, async copies",
    ),
    MetricInfo(LOCAL_LOADS, "local loads (spills)"),
    MetricInfo(LOCAL_STORES, "local stores (spills)"),
    MetricInfo("smsp__inst_executed_op_ldgsts.sum", "async copies (cp.async)"),
    MetricInfo("smsp__inst_executed_op_ldsm.sum", "ldmatrix"),
    MetricInfo("smsp__inst_executed_op_tma_ld.sum", "TMA loads"),
    MetricInfo("smsp__sass_inst_executed_op_shared_gmma.sum", "wgmma"),
    MetricInfo(REPLAY_PASSES, "replay passes"),
    MetricInfo(BYTES_BACKED_UP, "memory saved per pass", BYTE),
    *(
        MetricInfo(stall_metric(reason), f"stall: {reason.replace('_', ' ')}")
        for reason in STALL_REASONS
    ),
)
METRICS: Mapping[str, MetricInfo] = {info.identifier: info for info in _INFO}


def label(identifier: str) -> str:
    """The metric's name for people; an unknown identifier is its own label."""
    info = METRICS.get(identifier)
    return info.label if info else identifier


def expected_unit(identifier: str) -> str | None:
    """The base unit a metric's value must have, where fa-tune relies on it."""
    info = METRICS.get(identifier)
    if info is not None:
        return info.unit
    return SECOND if identifier.startswith("gpu__time_duration.") else None


_DIMENSIONS = (SECOND, HERTZ, BYTE, BYTE_PER_SECOND, PERCENT)
_NEVER_NEGATIVE = (SECOND, HERTZ, BYTE, BYTE_PER_SECOND)
_LONGEST_S = 24 * 3600
_MOST_PERCENT = 200
# A hit rate's parts come from different passes; with atomics 258 was seen.
_MOST_HIT_PERCENT = 1000


def checked(identifier: str, quantity: Quantity, unit: str, text: object) -> Quantity:
    """A metric's value in base units, read from a number and a unit as they stand in `text` and
    `unit`.  Raises UnknownUnit for a unit that the metric cannot have, ProfileFormatError for what
    it cannot be."""
    if not fits(identifier, quantity.unit):
        expected = expected_unit(identifier) or "a count"
        raise UnknownUnit(f"{unit!r} is not a unit that converts to {expected!r}")
    if wrong := impossible(identifier, quantity):
        raise ProfileFormatError(f"{text!r} {wrong}")
    return quantity


def fits(identifier: str, unit: str) -> bool:
    """Whether a metric's value may have a base unit."""
    info = METRICS.get(identifier)
    if info is not None and info.unit not in _DIMENSIONS:
        return unit not in _DIMENSIONS if info.unit is None else unit in (info.unit, "")
    return expected_unit(identifier) in (None, unit)


def impossible(identifier: str, quantity: Quantity) -> str | None:
    """Reason why a metric cannot have a value in base units, `is negative`; None if it can."""
    if quantity.value < 0 and (identifier in METRICS or quantity.unit in _NEVER_NEGATIVE):
        return "is negative"
    if identifier in DURATIONS and quantity.value > _LONGEST_S:
        return "is longer than a day"
    if identifier == REGISTERS and quantity.value % 1:
        return "is no whole number"
    most = _MOST_HIT_PERCENT if identifier == L2_HIT_RATE else _MOST_PERCENT
    if identifier in METRICS and quantity.unit == PERCENT and quantity.value > most:
        return "is no percentage of anything"
    return None


_ROLLUP = re.compile(r"[a-z0-9]+__[a-z0-9_]+\.(?:sum|min|max)")
_NO_COUNT = re.compile(r"derived__|average|throughput|(?:_rate|_ratio|_pct)\b")


def is_whole(identifier: str, unit: Unit) -> bool:
    """Whether the metric counts something in its smallest unit, so that a fraction in it can
    only be a misread separator: device attributes, launch facts, sums and extremes of event
    counters, times in whole nanoseconds."""
    if not unit.is_indivisible or _NO_COUNT.search(identifier):
        return False
    if identifier.startswith(("device__attribute_", "launch__")):
        return identifier != "launch__waves_per_multiprocessor"
    return _ROLLUP.fullmatch(identifier) is not None


# What comes closest where the wanted metric is not to be had, best first.
FALLBACKS: Mapping[str, tuple[str, ...]] = {
    TENSOR_PIPE: (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    ),
    DRAM_READ: ("dram__bytes_op_read.sum",),
    DRAM_WRITE: ("dram__bytes_op_write.sum",),
}
_ALWAYS_COLLECTED = ("launch__", "device__attribute_", "profiler__")


def resolve_metrics(
    wanted: Iterable[str], available: Collection[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names to ask for on a chip, and one note for each that was replaced or dropped.

    `available` holds names with or without their suffixes, as `ncu --query-metrics` lists
    them; None means not known, and every name is kept.  A name the chip lacks would end ncu
    with an error, so it must not be asked for.
    """
    if available is None:
        return tuple(dict.fromkeys(wanted)), ()
    known = set(available)
    names: dict[str, None] = {}
    notes: list[str] = []
    for metric in wanted:
        for candidate in (metric, *FALLBACKS.get(metric, ())):
            if _is_available(candidate, known):
                names[candidate] = None
                if candidate != metric:
                    notes.append(f"{label(metric)}: {candidate} in place of {metric}")
                break
        else:
            notes.append(f"{label(metric)}: {metric} is not available on this chip")
    return tuple(names), tuple(notes)


def _is_available(metric: str, known: set[str]) -> bool:
    return (
        metric in known or metric.partition(".")[0] in known or metric.startswith(_ALWAYS_COLLECTED)
    )


def parse_query_metrics(text: str) -> frozenset[str]:
    """The metric names in the output of `ncu --query-metrics`, whatever the mode."""
    words = (line.split(None, 1)[0] for line in text.splitlines() if line.strip())
    return frozenset(w for w in words if re.fullmatch(r"[a-z][a-z0-9]*__[A-Za-z0-9_.]+", w))
