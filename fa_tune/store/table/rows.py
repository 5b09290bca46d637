"""One typed row per kernel and workload: what every table, file and summary is made from.

A row holds base units (seconds, hertz); `columns.py` says under which heading and unit each
field is shown.  A value that was not measured is None, which every format shows as nothing:
never as zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from fa_tune import families
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.inputs import NORMAL
from fa_tune.core.model import NEVER_CHOSEN, Outcome, Variant
from fa_tune.core.workload import OPTIONAL, READING_ORDER, USUAL, Workload, column_of, labels
from fa_tune.core.workload_parts import PARTS, WorkloadParts
from fa_tune.operations import flops
from fa_tune.operations.memory import memory_rate

BASELINE_LABEL = "FA2"


@dataclass(frozen=True)
class Row(WorkloadParts):
    """One kernel on one workload, as far as that is known.

    `kernel` is a config's short form, a reference's label (`FA2`), or, for a kernel that
    nobody recognised, its name.  `duration_s` is the mean over `n` runs; `median_s` the
    median.  The two `…_percent_of_baseline` are 100·baseline/value, so above 100 is better
    than the baseline.  `tflops` counts what the tiled kernel does and `attn_tflops` the
    softmax too, both over the mean; `matmul_tflops` is 4·s²·d over the median,
    of a backward pass 10·s²·d.
    `reason` says why the outcome is not ok, or what an ok row lacks.
    `relative` are the samples over the baseline's right beside each, and `preference` is the
    place, from 0, in what a tie on this workload preferred: what the choice was made by.
    `inputs` say what Q, K and V held (`core.inputs`).
    `held_out_s` and `held_out_relative` are of rounds that nothing was chosen by.
    `source` tells recordings apart when several are read together; no file format keeps it.
    """

    kernel: str
    duration_s: float | None = None
    duration_percent_of_baseline: float | None = None
    cycles: float | None = None
    cycles_percent_of_baseline: float | None = None
    registers: int | None = None
    l2_hit_percent: float | None = None
    tflops: float | None = None
    attn_tflops: float | None = None
    family: str = ""
    method: str = ""
    n: int | None = None
    median_s: float | None = None
    min_s: float | None = None
    max_s: float | None = None
    samples_s: tuple[float, ...] | None = None
    matmul_tflops: float | None = None
    sm_clock_hz: float | None = None
    outcome: Outcome = Outcome.OK
    reason: str = ""
    relative: tuple[float, ...] | None = None
    preference: int | None = None
    inputs: str = str(NORMAL)
    held_out_s: tuple[float, ...] | None = None
    held_out_relative: tuple[float, ...] | None = None
    source: str = ""

    @property
    def is_reference(self) -> bool:
        """Whether this is a kernel that ours are compared with."""
        return self.family in NEVER_CHOSEN

    @property
    def is_variant(self) -> bool:
        """Whether this is one of ours, so that it can win."""
        return self.family not in ("", *NEVER_CHOSEN)

    @property
    def flop_per_byte(self) -> float | None:
        """Operations of the matrix products per byte that is needed; None without a workload."""
        if self.workload is None:
            return None
        return flops.matmul_flop(self.workload) / flops.moved_bytes(self.workload)

    @property
    def bytes_per_s(self) -> float | None:
        """Of what is needed of the tensors, if it crosses between memory and the chip once.  None
        without a time, and where there are so many operations for each byte that this says
        nothing."""
        if self.workload is None or not self.rank_s:
            return None
        rate = memory_rate(self.workload, self.rank_s)
        return None if rate is None else rate.bytes_per_s

    @property
    def rank_s(self) -> float | None:
        """The median, else the mean; None without a valid time."""
        if self.outcome is not Outcome.OK:
            return None
        return self.median_s if self.median_s is not None else self.duration_s

    @property
    def group(self) -> Group:
        """What has to be equal for two rows to be comparable."""
        known = {column: getattr(self, column) for column in PARTS}
        usual = {n: USUAL[n] for n in OPTIONAL if known[column_of(n)] is None}
        kept = {**known, **usual}
        return Group(**kept, method=self.method, inputs=self.inputs, source=self.source)


@dataclass(frozen=True, kw_only=True)
class Group(WorkloadParts):
    """Workload (as far as known), inputs, method and recording: rows are ranked inside one
    group."""

    method: str
    inputs: str
    source: str

    def __str__(self) -> str:
        """`seq_len 1024, d_head 128, FP16, full, batch 16, 16 heads; ncu`."""
        parts = []
        if self.seq_len is not None:
            other = self.seq_len_kv not in (None, self.seq_len)
            parts.append(f"seq_len {self.seq_len}" + (f"x{self.seq_len_kv}" if other else ""))
        if self.d_head is not None:
            parts.append(f"d_head {self.d_head}")
        if self.dtype is not None:
            parts.append(self.dtype.name)
        if self.causal is not None:
            aligned = " bottom-right" if self.bottom_right else ""
            parts.append("causal" + aligned if self.causal else "full")
        if self.batch is not None:
            parts.append(f"batch {self.batch}")
        if self.heads is not None:
            other = self.kv_heads not in (None, self.heads)
            parts.append(f"{self.heads} heads" + (f" ({self.kv_heads} kv)" if other else ""))
        parts += labels(self)
        text = ", ".join(parts) or "unknown workload"
        inputs = "" if self.inputs in ("", str(NORMAL)) else f"{self.inputs} inputs"
        return "; ".join(part for part in (text, inputs, self.method, self.source) if part)

    def _order(self) -> tuple[Any, ...]:
        values = ((name, getattr(self, column_of(name))) for name in READING_ORDER)
        known = ((v is None and n not in OPTIONAL, v is not None, v or 0) for n, v in values)
        return (self.source, *known, self.inputs, self.method)


def grouped(rows: Iterable[Row]) -> dict[Group, list[Row]]:
    """Rows by group, the groups in reading order, each group's rows as they came."""
    found: dict[Group, list[Row]] = {}
    for row in rows:
        found.setdefault(row.group, []).append(row)
    return {group: found[group] for group in sorted(found, key=Group._order)}


def paces(rows: Iterable[Row]) -> dict[int, float]:
    """What rows of one group are ranked by, by their identity: the median of their ratios to the
    baseline beside each sample, as a search chooses, or where one has none, the median time.  What
    has no valid time is absent."""
    timed = [row for row in rows if row.rank_s is not None]
    if all(row.relative for row in timed):
        return {id(row): median(row.relative or ()) for row in timed}
    return {id(row): row.rank_s for row in timed if row.rank_s is not None}


def ordered(rows: Iterable[Row]) -> list[Row]:
    """Group by group: references first (the baseline at the top), then ours and others, the
    fastest first, equal ones by their names as for `best`; what has no valid time comes last, in
    the order it came."""
    out: list[Row] = []
    for members in grouped(rows).values():
        pace = paces(members)

        def key(row: Row, pace: Mapping[int, float] = pace) -> tuple[object, ...]:
            rank = 2 if id(row) not in pace else 0 if row.is_reference else 1
            is_other = rank == 0 and row.kernel != BASELINE_LABEL
            return (rank, is_other, pace.get(id(row), 0.0), row.kernel if rank == 1 else "")

        out += sorted(members, key=key)
    return out


def best(rows: Iterable[Row]) -> Row | None:
    """The fastest of ours, references aside; None if none has a time."""
    rows = list(rows)
    pace = paces(rows)
    timed = [row for row in rows if row.is_variant and id(row) in pace]
    return min(timed, key=lambda row: (pace[id(row)], row.kernel), default=None)


def completed(rows: Iterable[Row]) -> list[Row]:
    """Rows in order, with rates and percentages of the baseline filled in.

    The baseline of a group is its FA2 row, else its first row.  Percentages that a row
    brings along are replaced only where FA2 itself is in the group: an excerpt of a table
    keeps the figures of the whole.  Rates that a row brings along are kept.
    """
    out: list[Row] = []
    for members in grouped(rows).values():
        members = ordered(with_rates(row) for row in members)
        timed = [row for row in members if row.rank_s is not None]
        fa2 = next((r for r in timed if r.is_reference and r.kernel == BASELINE_LABEL), None)
        baseline = fa2 or (timed[0] if timed else None)
        out += [_with_percentages(row, baseline, overwrite=fa2 is not None) for row in members]
    return out


def _with_percentages(row: Row, baseline: Row | None, *, overwrite: bool) -> Row:
    if baseline is None or row.rank_s is None:
        return row
    duration = _percent(baseline.duration_s, row.duration_s)
    cycles = _percent(baseline.cycles, row.cycles)
    if not overwrite:
        duration = _first(row.duration_percent_of_baseline, duration)
        cycles = _first(row.cycles_percent_of_baseline, cycles)
    return replace(row, duration_percent_of_baseline=duration, cycles_percent_of_baseline=cycles)


def _percent(baseline: float | None, value: float | None) -> float | None:
    return 100 * baseline / value if baseline and value else None


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def with_rates(row: Row) -> Row:
    """Fill in the three rates where the workload and a time are known.

    The tiled count knows no partial tiles, so those rows go without it.
    """
    workload, mean_s, median_s = row.workload, row.duration_s, row.rank_s
    if workload is None or not mean_s or not median_s:
        return row
    total = tiled_tflops(workload, _tile(row), mean_s) if row.tflops is None else None
    return replace(
        row,
        tflops=_first(row.tflops, total),
        attn_tflops=_first(row.attn_tflops, flops.tflops(flops.attn_flop(workload), mean_s)),
        matmul_tflops=_first(
            row.matmul_tflops, flops.tflops(flops.matmul_flop(workload), median_s)
        ),
    )


def tiled_tflops(workload: Workload, tile: tuple[int, int] | None, seconds: float) -> float | None:
    """The rate of a kernel with (B_r, B_c) tiles; None where they are unknown or partial."""
    if tile is None:
        return None
    try:
        return flops.tflops(flops.total_flop(workload, *tile), seconds)
    except InvalidConfig:
        return None


def _tile(row: Row) -> tuple[int, int] | None:
    """(B_r, B_c) of one of our configs; references bring their rate along."""
    if not row.is_variant:
        return None
    try:
        config = families.config_of(Variant(row.family, row.kernel))
        return families.blocks(config)
    except InvalidConfig:
        return None
