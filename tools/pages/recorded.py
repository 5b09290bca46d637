"""What the recordings of one GPU hold, for the pages that quote them.

Beside the ladder a whole set was searched: `fast`, or in older folders `tune`.  A *subject* of
the ladder is `r1` to `r7` (the steps), `best` (the config of the searched set that was profiled
with the ladder), `fa2` or `cudnn`.  Values are in the unit that a page shows.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fa_tune.core.model import Measurement
from fa_tune.core.stats import comparable, median
from fa_tune.core.workload import DType, Workload, benchmark_workload
from fa_tune.families.sm80.config import FlashForwardKernelConfig
from fa_tune.families.sm80.names import parse_short_form
from fa_tune.families.sm80.sets import PROGRESSION
from fa_tune.operations import flops
from fa_tune.store.recordings import Recording, load
from fa_tune.store.table.columns import L2_HIT, REGISTERS, SM_CLOCK
from fa_tune.store.table.from_attempts import CYCLES

FOLDER = Path(__file__).resolve().parents[2] / "profiles" / "nvidia_h200"
MULTIPROCESSORS = 132  # of an H200; the recordings do not say
METHODS = ("ncu", "events")
SEQ_LENS = (512, 1024, 2048, 4096, 8192, 16384)
DTYPES = (DType.FP16, DType.BF16)
LADDER = benchmark_workload(4096, 128, DType.FP16)
REFERENCES = {"fa2": "ref:fa2", "cudnn": "ref:cudnn"}
STEPS = {f"r{i}": f"sm80:{config}" for i, config in enumerate(PROGRESSION, start=1)}
SEARCHED = ("fast", "tune")  # the sets that may have been searched, the preferred first

_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"


@dataclass(frozen=True)
class Counter:
    """How a counter of the `explain` set is shown: `scale` times its value, `digits` decimals."""

    label: str
    metric: str
    scale: float = 1.0
    digits: int = 1


COUNTERS = {
    "cycles": Counter("elapsed cycles, millions", CYCLES[0], 1e-6, 2),
    "clock": Counter("SM clock, GHz", SM_CLOCK, 1e-9, 2),
    "registers": Counter("registers per thread", REGISTERS, 1, 0),
    "warps": Counter(
        "warps active, % of the most", "sm__warps_active.avg.pct_of_peak_sustained_active"
    ),
    "instructions": Counter("warp instructions, millions", "smsp__inst_executed.sum", 1e-6, 0),
    "issue": Counter("issue slots used, %", "smsp__issue_active.avg.pct_of_peak_sustained_active"),
    "tensor": Counter(
        "tensor pipe active, %",
        "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
    ),
    "conflicts": Counter(
        "bank conflicts, shared memory, millions",
        "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
        1e-6,
    ),
    "wavefronts": Counter(
        "wavefronts, shared memory, millions",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
        1e-6,
        0,
    ),
    "dram": Counter("DRAM read, MB", "dram__bytes_read.sum", 1e-6, 0),
    "l2": Counter("L2 hit rate, %", L2_HIT),
    "long": Counter("stalled: long scoreboard (global)", _STALL.format("long_scoreboard"), 1, 2),
    "short": Counter("stalled: short scoreboard (shared)", _STALL.format("short_scoreboard"), 1, 2),
    "mio": Counter("stalled: MIO throttle", _STALL.format("mio_throttle"), 1, 2),
    "barrier": Counter("stalled: barrier", _STALL.format("barrier"), 1, 2),
    "math": Counter("stalled: math pipe throttle", _STALL.format("math_pipe_throttle"), 1, 2),
    "wait": Counter("stalled: wait (fixed latency)", _STALL.format("wait"), 1, 2),
    "spills": Counter("local loads, millions", "smsp__sass_inst_executed_op_local_ld.sum", 1e-6, 1),
}


def config_of(subject: str) -> FlashForwardKernelConfig:
    """The config of one of our subjects."""
    return parse_short_form(subject.removeprefix("sm80:"))


def ours(found: Mapping[str, Measurement]) -> dict[str, Measurement]:
    """The measurements that are not of a reference."""
    return {s: m for s, m in found.items() if s.startswith("sm80:")}


def ms(measurement: Measurement) -> float:
    """Median time in milliseconds."""
    return median(measurement.samples_s) * 1e3


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value from 0; equal values share the middle of their ranks."""
    ordered = sorted(values)
    return [ordered.index(v) + (ordered.count(v) - 1) / 2 for v in values]


def spearman(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Rank correlation; None if one side does not vary."""
    if len(set(a)) < 2 or len(set(b)) < 2:
        return None
    return statistics.correlation(ranks(a), ranks(b))


class Recorded:
    """The recordings in one folder, read when first asked for."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.folder = folder

    @cached_property
    def searched(self) -> str:
        """The set that both methods hold and whose `best` was profiled with the ladder; raises
        FileNotFoundError if there is none."""
        for name in SEARCHED:
            paths = {m: self.folder / f"{name}_{m}.csv" for m in METHODS}
            if all(p.exists() for p in paths.values()) and self._holds_best(paths["ncu"]):
                return name
        known = " nor ".join(SEARCHED)
        raise FileNotFoundError(f"{self.folder} has recordings of neither {known} by both methods")

    def _holds_best(self, path: Path) -> bool:
        """Whether a recording has the config that was profiled with the ladder."""
        best = self.subject("best")
        return any(a.subject == best and a.workload == LADDER.key for a in load(path).attempts)

    @cached_property
    def grid_set(self) -> str:
        """The set that the grid of workloads was searched for by events: the first recorded."""
        for name in SEARCHED:
            if (self.folder / f"{name}_events.csv").exists():
                return name
        return self.searched

    @property
    def has_ladder(self) -> bool:
        """Whether the ladder was recorded on this GPU, too, or the grid alone."""
        return (self.folder / "ladder_explain.json").exists()

    @cached_property
    def recordings(self) -> dict[str, Recording]:
        """`fast_ncu`, `prog_events`, … by file name."""
        names = [f"{s}_{m}" for s in (self.searched, "prog") for m in METHODS]
        return {name: load(self.folder / f"{name}.csv") for name in names}

    @cached_property
    def explained(self) -> dict[str, Measurement]:
        """The counters of the ladder, by subject."""
        from pydantic import TypeAdapter

        text = (self.folder / "ladder_explain.json").read_text(encoding="utf-8")
        kept = ("subject", "workload", "samples_s", "counters")
        found = [
            {**{key: one[key] for key in kept}, "method": "ncu"}
            for one in json.loads(text)["measurements"]
        ]
        parsed = TypeAdapter(list[Measurement]).validate_python(found)
        return {m.subject: m for m in parsed if m.workload == LADDER.key}

    def measured(self, name: str, workload: Workload) -> dict[str, Measurement]:
        """The measurements of a recording at one workload, by subject."""
        return {
            a.subject: a.measurement
            for a in self.recordings[name].attempts
            if a.workload == workload.key and a.measurement is not None
        }

    def carried_over(self, name: str, workload: Workload) -> set[str]:
        """Subjects whose samples a recording shares with an older one: another run's."""
        recorded_at = self.recordings[name].meta.provenance.recorded_at
        method = self.recordings[name].meta.provenance.method
        found = self.measured(name, workload)
        older = [
            self.measured(other, workload)
            for other, recording in self.recordings.items()
            if recording.meta.provenance.method == method
            and recording.meta.provenance.recorded_at < recorded_at
        ]
        return {
            s for s, m in found.items() for o in older if s in o and o[s].samples_s == m.samples_s
        }

    def subject(self, name: str) -> str:
        """The full name of `r1`, `best`, `fa2`, …"""
        if name == "best":
            (best,) = set(ours(self.explained)) - set(STEPS.values())
            return best
        return {**STEPS, **REFERENCES}[name]

    def timed(self, name: str, method: str) -> Measurement:
        """What a ladder's subject was ranked by; steps and references from the ladder's run."""
        of_ladder = name in STEPS or name in REFERENCES
        recording = f"{'prog' if of_ladder else self.searched}_{method}"
        return self.measured(recording, LADDER)[self.subject(name)]

    def found(self, method: str, workload: Workload) -> dict[str, Measurement]:
        """The searched set's measurements and the references' beside it, by subject."""
        return self.measured(f"{self.searched}_{method}", workload)

    def time_ms(self, name: str, method: str) -> float:
        """Median of a ladder's subject in milliseconds."""
        return ms(self.timed(name, method))

    def times(self, name: str, base: str, method: str) -> float:
        """Time of a ladder's subject over another's: by events the median of the ratios within
        the rounds of both, under ncu, where each launch stands alone, of the medians."""
        both = [self.timed(n, method) for n in (name, base)]
        if method == "ncu":
            return ms(both[0]) / ms(both[1])
        compared = comparable(
            {str(i): m.samples_s for i, m in enumerate(both)},
            {str(i): m.relative for i, m in enumerate(both)},
        )
        return median([a / b for a, b in zip(compared["0"], compared["1"], strict=False)])

    def tflops(self, name: str, method: str) -> float:
        """4·s²·d operations, over the median, in TFLOP/s."""
        return flops.matmul_flop(LADDER) / self.time_ms(name, method) / 1e9

    def counter(self, name: str, which: str) -> float:
        """A counter of a ladder's subject, in the unit it is shown in."""
        counter = COUNTERS[which]
        return self.explained[self.subject(name)].counters[counter.metric].value * counter.scale

    def shared_busy(self, name: str) -> float:
        """Wavefronts of shared memory in % of the most, one per cycle and multiprocessor."""
        wavefronts = self.counter(name, "wavefronts")
        return 100 * wavefronts / (MULTIPROCESSORS * self.counter(name, "cycles"))

    def ldmatrix(self, name: str) -> float:
        """Fragments read from shared memory per block of keys and 16 rows of Q, by the config."""
        config = config_of(self.subject(name))
        k_or_v = config.d_head * config.B_c // 256
        q = 0 if config.Q_mma_load_K_tiles == 0 else config.d_head // 16
        return q + 2 * k_or_v / (config.B_r // config.n_warps // 16)

    def repeat(self, what: str) -> float:
        """The largest difference in % between the ladder's two runs under ncu (ranking, counters):
        of `time` or of `cycles`, over the steps and the references."""

        def value(m: Measurement) -> float:
            return ms(m) if what == "time" else m.counters[CYCLES[0]].value

        names = (*STEPS, *REFERENCES)
        pairs = [(self.timed(n, "ncu"), self.explained[self.subject(n)]) for n in names]
        return max(abs(value(b) / value(a) - 1) * 100 for a, b in pairs)

    def samples(self, method: str) -> list[int]:
        """The number of samples of every measurement of the searched set."""
        found = self.recordings[f"{self.searched}_{method}"].attempts
        return [len(a.measurement.samples_s) for a in found if a.measurement is not None]

    def effects(self, blocks: str, change: Change) -> list[float]:
        """Change of time in % by one field, for each pair of configs that differ in it alone."""
        found = {config_of(s): m for s, m in ours(self.found("ncu", LADDER)).items()}
        pairs = [(c, change(c)) for c in found if blocks_of(c) == blocks]
        return [
            100 * (ms(found[after]) / ms(found[before]) - 1)
            for before, after in pairs
            if after is not None and after in found
        ]


Change = Callable[[FlashForwardKernelConfig], FlashForwardKernelConfig | None]


def blocks_of(config: FlashForwardKernelConfig) -> str:
    """`64x32`, with the warps where they are not four: `256x64 of 8`."""
    warps = "" if config.n_warps == 4 else f" of {config.n_warps}"
    return f"{config.B_r}x{config.B_c}{warps}"
