"""Why one kernel is slower than another, from the counters of both.

The stall reasons add up: a warp either issues or waits for one of them.  So elapsed cycles
split exactly by reason, cycles · ratio / Σ ratios, whatever the number of warps and of
instructions, and the difference between two kernels splits the same way.  What the cycles were
lost to is then compared with the counters that should have moved if it is true: conflicts and
wavefronts for shared memory, local accesses for spills, bytes for DRAM.  Where they did not
move, that is said.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fa_tune.core import units
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.model import Measurement, Quantity
from fa_tune.core.workload import Workload
from fa_tune.operations.memory import memory_rate
from fa_tune.profile.ncu import metrics

WORTH_TELLING = 0.10  # share of the cycle difference
MOVED = 0.05  # relative change of a counter that counts as one
SAME = 0.005  # a time ratio nearer to 1 than this is no difference
ROUGH = 0.02  # a cycle ratio below 1 + this splits into parts that are noise to some degree
SPILLS_MATTER = 0.005  # local accesses per instruction
SPILL_SHARE = 0.3  # of the additional instructions that spills must be, to be called the cause
SAME_CLOCK = 0.01
OCCUPANCY_MOVED = 0.1

# Family -> the stall reasons whose cycles it takes.
REASONS: Mapping[str, tuple[str, ...]] = {
    "shared memory": ("short_scoreboard", "mio_throttle"),
    "global and local memory": ("long_scoreboard", "lg_throttle", "tex_throttle", "drain"),
    "synchronisation": ("barrier", "membar", "sleeping"),
    "tensor and arithmetic pipes": ("math_pipe_throttle", "gmma"),
    "issuing": (
        *("selected", "not_selected", "dispatch_stall", "misc"),
        *("wait", "branch_resolving"),  # both are per instruction
    ),
    "instruction fetch": ("no_instruction", "imc_miss"),
}


# Family -> the counters that should move with its stalls.
_CLUES: Mapping[str, tuple[str, ...]] = {
    "shared memory": (metrics.SHARED_CONFLICTS, metrics.SHARED_WAVEFRONTS),
    "global and local memory": (
        metrics.LOCAL_LOADS,
        metrics.LOCAL_STORES,
        metrics.DRAM_READ,
        metrics.DRAM_WRITE,
    ),
    "tensor and arithmetic pipes": (metrics.TENSOR_PIPE,),
    "issuing": (metrics.INSTRUCTIONS, metrics.LOCAL_LOADS, metrics.LOCAL_STORES),
}


@dataclass(frozen=True)
class Evidence:
    """Values of one counter for both kernels; `change` is slow / fast, None where fast is zero."""

    metric: str
    slow: Quantity
    fast: Quantity

    @property
    def change(self) -> float | None:
        """slow / fast."""
        return self.slow.value / self.fast.value if self.fast.value else None

    @property
    def rose(self) -> bool:
        """Whether the slow kernel has clearly more."""
        return self.slow.value > (1 + MOVED) * self.fast.value

    @property
    def text(self) -> str:
        """`shared-memory bank conflicts 7,546 million against 0.4 million`."""
        return f"{metrics.label(self.metric)} {_amount(self.slow)} against {_amount(self.fast)}"


@dataclass(frozen=True)
class Finding:
    """Part of one family: `cycles` more in the slow kernel (negative: fewer), its `share` of
    the whole difference, a `cause` in words, and the counters that speak for it or against."""

    family: str
    cycles: float
    share: float
    cause: str
    agrees: bool
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True)
class Explanation:
    """Two kernels on one workload.  Ratios are slow / fast.  `findings` are the families worth
    telling, the largest part first; `sentences` say it all."""

    slow: str
    fast: str
    workload: str
    time_ratio: float
    cycle_ratio: float
    clock_ratio: float | None
    findings: tuple[Finding, ...]
    sentences: tuple[str, ...]


def explain_pair(
    a: Measurement, b: Measurement, names: Mapping[str, str] | None = None
) -> Explanation:
    """The reasons why one of two kernels is slower, by their counters; `names` call the subjects.

    Raises NoUsableVariant for measurements of different workloads or methods and for counters
    that do not split the cycles (collect them with `--metrics explain`).
    """
    if (a.workload, a.method) != (b.workload, b.method):
        raise NoUsableVariant("the two were not measured on one workload by one method")
    slow, fast = (a, b) if _time(a) >= _time(b) else (b, a)
    cycles = {}
    for measured in (slow, fast):
        split = _split(measured)
        if split is None:
            raise NoUsableVariant(
                f"{measured.subject} has no stall counters on {measured.workload}; "
                "measure it with --metrics explain"
            )
        cycles[measured.subject] = split
    more = {
        family: sum(
            cycles[slow.subject].get(r, 0.0) - cycles[fast.subject].get(r, 0.0) for r in reasons
        )
        for family, reasons in REASONS.items()
    }
    whole = _value(slow, metrics.CYCLES) - _value(fast, metrics.CYCLES)
    shares = {family: n / abs(whole) if whole else 0.0 for family, n in more.items()}
    largest = sorted((f for f in more if abs(shares[f]) >= WORTH_TELLING), key=lambda f: -more[f])
    findings = tuple(_finding(f, more[f], shares[f], slow, fast) for f in largest)
    clock = _evidence(slow, fast, metrics.SM_CLOCK)
    result = Explanation(
        slow=slow.subject,
        fast=fast.subject,
        workload=slow.workload,
        time_ratio=_time(slow) / _time(fast),
        cycle_ratio=_value(slow, metrics.CYCLES) / _value(fast, metrics.CYCLES),
        clock_ratio=clock.change if clock else None,
        findings=findings,
        sentences=(),
    )
    called = {
        measured.subject: (names or {}).get(measured.subject, measured.subject)
        for measured in (slow, fast)
    }
    return replace(result, sentences=tuple(_sentences(result, called, slow, fast)))


def rank_correlations(measurements: Sequence[Measurement]) -> dict[str, float]:
    """Spearman's ρ of every counter with time over these measurements, the strongest first;
    positive: more goes with slower.  Counters that some lack or that do not vary are left out.

    Recomputed for what was measured: which counters matter differs from kernel to kernel.
    """
    if len(measurements) < 3:
        return {}
    times = [_time(measured) for measured in measurements]
    shared = set.intersection(*(set(measured.counters) for measured in measurements))
    found = {}
    for name in shared - {metrics.DURATION}:
        values = [measured.counters[name].value for measured in measurements]
        if len(set(values)) > 1:
            found[name] = statistics.correlation(_ranks(values), _ranks(times))
    return dict(sorted(found.items(), key=lambda item: (-abs(item[1]), item[0])))


def cycles_by_family(measured: Measurement) -> dict[str, float]:
    """Elapsed cycles by what warps spent them on, in the families of `REASONS`; empty where a
    counter for it is missing."""
    split = _split(measured) or {}
    return {f: sum(split.get(r, 0.0) for r in rs) for f, rs in REASONS.items() if split}


def _split(measured: Measurement) -> dict[str, float] | None:
    """Elapsed cycles by stall reason; None where a counter for it is missing."""
    ratios = {
        reason: measured.counters[name].value
        for reason in metrics.STALL_REASONS
        if (name := metrics.stall_metric(reason)) in measured.counters
    }
    whole = sum(ratios.values())
    if (
        metrics.CYCLES not in measured.counters
        or "selected" not in ratios
        or len(ratios) < 6
        or whole <= 0
    ):
        return None
    cycles = measured.counters[metrics.CYCLES].value
    return {reason: cycles * ratio / whole for reason, ratio in ratios.items()}


def _finding(
    family: str, cycles: float, share: float, slow: Measurement, fast: Measurement
) -> Finding:
    """The family's part, with the cause that the other counters single out."""
    stalls = [metrics.stall_metric(reason) for reason in REASONS[family]]
    loudest = max(stalls, key=lambda name: abs(_value(slow, name) - _value(fast, name)))
    clues = (_evidence(slow, fast, name) for name in _CLUES.get(family, ()))
    found = {e.metric: e for e in clues if e is not None}
    cause, agrees = family, True
    if cycles >= 0:
        cause, agrees = _cause(family, found, slow, fast)
    if family in ("global and local memory", "issuing"):
        found = {name: e for name, e in found.items() if e.rose}
    stall = _evidence(slow, fast, loudest)
    # Of issuing, how many instructions there are says more than which reason was noted.
    first = (stall,) if stall is not None and family != "issuing" else ()
    return Finding(family, cycles, share, cause, agrees, (*first, *found.values()))


def _cause(
    family: str, found: Mapping[str, Evidence], slow: Measurement, fast: Measurement
) -> tuple[str, bool]:
    """The cause of a family's lost cycles, and whether its other counters rose with them."""
    match family:
        case "shared memory":
            conflicts, wavefronts = (
                found.get(name) for name in (metrics.SHARED_CONFLICTS, metrics.SHARED_WAVEFRONTS)
            )
            extra = conflicts.slow.value - conflicts.fast.value if conflicts else 0.0
            if wavefronts and extra > MOVED * wavefronts.slow.value:
                return "bank conflicts in shared memory", True
            if wavefronts and wavefronts.rose:
                return "more shared-memory traffic", True
            return "shared memory is waited for longer", not found
        case "global and local memory":
            if _spills(slow, fast):
                return "register spills to local memory", True
            if any(
                e.rose
                for name, e in found.items()
                if name in (metrics.DRAM_READ, metrics.DRAM_WRITE)
            ):
                return "more DRAM traffic", True
            return "global loads are waited for", True
        case "issuing":
            instructions = found.get(metrics.INSTRUCTIONS)
            if instructions and _spills(slow, fast):
                accesses = _local(slow) - _local(fast)
                if accesses > SPILL_SHARE * (instructions.slow.value - instructions.fast.value):
                    return "register spills, as more instructions", True
            if instructions and instructions.rose:
                return "more instructions", True
            return "instructions issue more slowly", instructions is None
        case "synchronisation":
            return "warps wait for each other at barriers", True
        case _:
            return family, True


def _local(measured: Measurement) -> float:
    return _value(measured, metrics.LOCAL_LOADS) + _value(measured, metrics.LOCAL_STORES)


def _spills(slow: Measurement, fast: Measurement) -> bool:
    """Whether the slow kernel has clearly more local accesses per instruction."""
    slow_n, fast_n = _value(slow, metrics.INSTRUCTIONS), _value(fast, metrics.INSTRUCTIONS)
    if not slow_n or not fast_n:
        return False
    return _local(slow) / slow_n - _local(fast) / fast_n > SPILLS_MATTER


def _sentences(
    found: Explanation, called: Mapping[str, str], slow: Measurement, fast: Measurement
) -> list[str]:
    slow_name, fast_name = called[slow.subject], called[fast.subject]
    times = " against ".join(units.format_seconds(_time(measured)) for measured in (slow, fast))
    if found.time_ratio - 1.0 < SAME:
        first = f"{slow_name} and {fast_name} take the same time within {100 * SAME:g} %"
    else:
        first = f"{slow_name} takes {found.time_ratio:.2f} times as long as {fast_name}"
    first += f" ({times}), {found.cycle_ratio:.3g} times the cycles"
    rates = [memory_rate(Workload.from_key(m.workload), _time(m)) for m in (slow, fast)]
    moved = [units.format_bytes_per_second(rate.bytes_per_s) for rate in rates if rate is not None]
    if moved:
        first += f", moving {' against '.join(moved)}"
    if found.clock_ratio is not None and abs(found.clock_ratio - 1.0) > SAME_CLOCK:
        first += f" at {found.clock_ratio:.3g} times the clock"
    sentences = [f"{first}."]
    if abs(found.cycle_ratio - 1.0) < SAME:
        sentences.append("Cycles are level, so the counters explain no difference.")
        return sentences
    if found.cycle_ratio < 1.0:
        sentences.append("It needs fewer cycles and takes longer: the clock decides, not the work.")
        return sentences
    if found.cycle_ratio - 1.0 < ROUGH:
        sentences.append("That is little, so what it consists of is known roughly.")
    whole = (_value(slow, metrics.CYCLES) - _value(fast, metrics.CYCLES)) / 1e6
    worse = [f for f in found.findings if f.cycles > 0]
    for finding in worse:
        text = f"{finding.cause[0].upper()}{finding.cause[1:]}: {finding.cycles / 1e6:,.3g} "
        text += f"million of the {whole:,.3g} million more cycles"
        if finding.evidence:
            text += f" ({'; '.join(e.text for e in finding.evidence)})"
        if not finding.agrees:
            text += ", though its other counters did not rise: they contradict the stalls"
        sentences.append(f"{text}.")
    if better := [f for f in found.findings if f.cycles < 0]:
        parts = ", ".join(f"{f.family} {-f.cycles / 1e6:,.3g} million" for f in reversed(better))
        sentences.append(f"Elsewhere it needs fewer cycles: {parts}.")
    occupancy = _evidence(slow, fast, metrics.ACHIEVED_OCCUPANCY)
    if occupancy and occupancy.change and abs(occupancy.change - 1.0) > OCCUPANCY_MOVED:
        sentences.append(f"It runs with another number of warps ({occupancy.text}).")
    if _spills(slow, fast) and not any("spills" in f.cause for f in worse):
        extra = (_local(slow) - _local(fast)) / 1e6
        sentences.append(
            f"It also spills ({extra:,.3g} million more local accesses), which no stall shows."
        )
    if not worse:
        sentences.append("No kind of stall stands out: many small differences add up.")
    return sentences


def _amount(quantity: Quantity) -> str:
    """Counts in millions, percentages and stalls as they are."""
    if quantity.unit == units.PERCENT:
        return f"{quantity.value:.1f} %"
    if quantity.value >= 1e5 and quantity.unit not in (units.BYTE, units.HERTZ):
        return f"{quantity.value / 1e6:,.4g} million"
    if quantity.unit in (units.BYTE, units.HERTZ):
        return units.format_quantity(quantity)
    return f"{quantity.value:.3g}"


def _evidence(slow: Measurement, fast: Measurement, name: str) -> Evidence | None:
    if name not in slow.counters or name not in fast.counters:
        return None
    return Evidence(name, slow.counters[name], fast.counters[name])


def _time(measured: Measurement) -> float:
    return float(statistics.median(measured.samples_s))


def _value(measured: Measurement, name: str) -> float:
    return measured.counters[name].value if name in measured.counters else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1, ties sharing their mean."""
    ordered = sorted(values)
    first = {v: ordered.index(v) for v in set(values)}
    count = {v: ordered.count(v) for v in set(values)}
    return [first[v] + (count[v] + 1) / 2 for v in values]
