"""The numbers of a page: data frames, one per figure, made from sources by the rules by which
the program chooses.  Times are in milliseconds here, since people read them."""

from __future__ import annotations

import re
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fa_tune.core.model import BARE_READ_LABEL, Measurement, Variant, is_reference
from fa_tune.core.roofline import ROOFS
from fa_tune.core.stats import Ratio, comparable, is_tied, paired_ratio
from fa_tune.core.workload import Workload
from fa_tune.report.fitted import Legend
from fa_tune.report.page.source import Source
from fa_tune.store.table.rows import Row, best, grouped, paces

Records = list[dict[str, Any]]
MS = 1e3
MAX_TIED = 12  # of a workload, the fastest first
MAX_COVERING = 10  # configs per family of workloads
_OF_ROWS = ("registers", "l2_hit_percent", "n", "flop_per_byte", "reason")


@dataclass(frozen=True)
class Place:
    """One workload of one source, and its rows.  `label` is all that is known of it, `short` what
    the others on the page do not share."""

    label: str
    short: str
    source: Source
    rows: Sequence[Row]

    @property
    def key(self) -> str:
        """The workload's key; empty where it is unknown."""
        workload = self.rows[0].workload
        return workload.key if workload else ""

    @property
    def kind(self) -> str:
        """What the workloads of a line by length share: `d_head 128, FP16, causal`."""
        apart = ("seq_len ", "batch ")
        return ", ".join(part for part in parts_of(self.label) if not part.startswith(apart))

    @cached_property
    def pace(self) -> dict[str, float]:
        """What each subject with a time is ranked by."""
        pace = paces(self.rows)
        return {subject_of(row): pace[id(row)] for row in self.rows if id(row) in pace}

    @cached_property
    def compared(self) -> dict[str, tuple[float, ...]]:
        """What the times of subjects are compared by."""
        timed = {subject_of(r): r for r in self.rows if r.rank_s is not None and r.family}
        samples = {s: row.samples_s or (row.rank_s or 0.0,) for s, row in timed.items()}
        return comparable(samples, {s: row.relative or () for s, row in timed.items()})

    @cached_property
    def leader(self) -> str:
        """The fastest of ours, empty without one."""
        fastest = best(self.rows)
        return "" if fastest is None else subject_of(fastest)

    @cached_property
    def slowdowns(self) -> dict[str, float]:
        """The time of each subject over the leader's, by what rows are ranked by: below 1 for a
        library that is faster."""
        return {s: own / self.pace[self.leader] for s, own in self.pace.items() if self.leader}

    @cached_property
    def to_leader(self) -> dict[str, Ratio]:
        """The time of each of ours over the leader's, the fastest first."""
        ours = {subject_of(row) for row in self.rows if row.is_variant} & self.pace.keys()
        return {
            s: paired_ratio(self.compared[s], self.compared[self.leader])
            for s in sorted(ours, key=lambda s: (s != self.leader, self.pace[s], s))
            if {s, self.leader} <= self.compared.keys()
        }

    @cached_property
    def chosen(self) -> str:
        """The chosen variant's key, or the fastest one's where no choice is known; empty if there
        is none."""
        recorded = self.source.chosen.get(self.key, "")
        return recorded if recorded in map(subject_of, self.rows) else self.leader

    @property
    def chosen_row(self) -> Row | None:
        """The row of what is chosen, if it has a time."""
        found = (r for r in self.rows if subject_of(r) == self.chosen and r.rank_s is not None)
        return next(found, None)

    @property
    def over_libraries(self) -> dict[str, Ratio]:
        """The speed of what is chosen over each library's, by label, with its interval where the
        samples of both are paired; empty where either has no time."""
        libraries = {
            subject_of(row): row.kernel
            for row in self.rows
            if row.is_reference and row.kernel != BARE_READ_LABEL
        }
        return {
            label: Ratio(
                self.pace[s] / self.pace[self.chosen],
                paired_ratio(self.compared[s], self.compared[self.chosen]).interval,
            )
            for s, label in libraries.items()
            if {s, self.chosen} <= self.pace.keys()
        }

    @property
    def tied(self) -> list[str]:
        """Those of ours that cannot be told from the fastest, with it, the fastest first."""
        near = self.to_leader.items()
        return [s for s, ratio in near if s == self.leader or is_tied(ratio)]


def places(sources: Iterable[Source]) -> list[Place]:
    """Every workload, in reading order."""
    found = [
        (str(group), source, rows)
        for source in sources
        for group, rows in grouped(source.rows).items()
    ]
    parts = [parts_of(label) for label, _, _ in found]
    shared = set.intersection(*map(set, parts)) if parts else set()
    apart = {tuple(p for p in own if not p.startswith("batch ")) for own in parts}
    if len(apart) == len(set(map(tuple, parts))):  # the batch follows from the others
        shared |= {part for own in parts for part in own if part.startswith("batch ")}
    return [
        Place(label, _shortened(own, shared, rows[0].source) or label, source, rows)
        for own, (label, source, rows) in zip(parts, found, strict=True)
    ]


def parts_of(label: str) -> list[str]:
    """What a label lists."""
    return re.split("[,;] ", label)


def _shortened(parts: Sequence[str], shared: Collection[str], source: str) -> str:
    """`4096, d128, causal`: the parts that tell workloads apart; a file by its name."""
    apart = [Path(part).name if part == source else part for part in parts if part not in shared]
    return ", ".join(p.replace("seq_len ", "").replace("d_head ", "d") for p in apart)


def subject_of(row: Row) -> str:
    """`family:config`, or the name of a kernel that is nobody's."""
    return f"{row.family}:{row.kernel}" if row.family else row.kernel


def numbered(
    found: Sequence[Place], profiled: Iterable[Measurement]
) -> tuple[Legend, dict[str, str]]:
    """`#1`, `#2`, … by subject, those that are chosen somewhere first, and what they stand for;
    references keep their names."""
    chosen = [place.chosen for place in found if place.chosen]
    every = [subject_of(row) for place in found for row in place.rows if row.is_variant]
    ours = [m.subject for m in profiled if not is_reference(m.subject)]
    legend = Legend()
    return legend, {subject: legend.number(subject) for subject in [*chosen, *every, *ours]}


def answers(found: Sequence[Place], numbers: Mapping[str, str]) -> Records:
    """What is chosen on each workload: its time and rate, and its speed over that of the fastest
    library (`times`, from `low` to `high`); `others` are all libraries in words."""
    out: Records = []
    for place in found:
        row = place.chosen_row
        if row is None:
            continue
        over = place.over_libraries
        nearest = min(over, key=lambda name: over[name].value, default="")
        interval = over[nearest].interval if nearest else None
        out.append(
            _of_row(place, row, numbers)
            | {
                "library": nearest,
                "times": over[nearest].value if nearest else None,
                "low": interval.low if interval else None,
                "high": interval.high if interval else None,
                "others": ", ".join(f"{name} {ratio.value:.2f}" for name, ratio in over.items()),
            }
        )
    return out


def results(found: Sequence[Place], numbers: Mapping[str, str]) -> Records:
    """Every row: `slowdown` is its time over that of the fastest of ours."""
    out: Records = []
    for place in found:
        for row in place.rows:
            subject = subject_of(row)
            out.append(
                _of_row(place, row, numbers)
                | {
                    "chosen": subject == place.chosen,
                    "slowdown": place.slowdowns.get(subject),
                    "outcome": str(row.outcome),
                }
                | {name: getattr(row, name) for name in _OF_ROWS}
            )
    return out


def _of_row(place: Place, row: Row, numbers: Mapping[str, str]) -> dict[str, Any]:
    """What a row is of, its time and its rates."""
    return {
        "workload": place.label,
        "short": place.short,
        "key": place.key,
        "config": numbers.get(subject_of(row), row.kernel),
        "kernel": row.kernel,
        "family": "reference" if row.is_reference else row.family or "other",
        "median_ms": None if row.rank_s is None else row.rank_s * MS,
        "tflops": row.matmul_tflops,
        "gb_per_s": None if row.bytes_per_s is None else row.bytes_per_s / 1e9,
        "peak_percent": _peak_percent(row, place.source.gpu),
    }


def _peak_percent(row: Row, gpu: str) -> float | None:
    """The larger of its shares of the GPU's peaks, products and memory, in percent."""
    if gpu not in ROOFS or row.matmul_tflops is None:
        return None
    roof = ROOFS[gpu]
    memory = (row.bytes_per_s or 0.0) / roof.bytes_per_s
    return 100 * max(row.matmul_tflops / roof.tflops, memory)


def ties(found: Sequence[Place], numbers: Mapping[str, str]) -> Records:
    """Samples of tied configs over the leader's of the same round, and the ratio's interval."""
    out: Records = []
    for place in found:
        if len(place.tied) < 2:
            continue
        for subject in place.tied[:MAX_TIED]:
            ratio = place.to_leader[subject]
            low, high = ratio.interval or (ratio.value, ratio.value)
            rounds = zip(place.compared[subject], place.compared[place.leader], strict=False)
            out.append(
                {
                    "workload": place.label,
                    "config": numbers[subject],
                    "kernel": Variant.from_key(subject).config,
                    "role": "chosen" if subject == place.chosen else "as fast",
                    "ratio": ratio.value,
                    "low": low,
                    "high": high,
                    "samples": [a / b for a, b in rounds],
                }
            )
    return out


def rates(found: Sequence[Place], numbers: Mapping[str, str]) -> Records:
    """TFLOP/s of the chosen config and of the libraries beside it.  A library's rate is ours over
    the ratio by which rows are ranked.  `times`, at ours, is our speed over the fastest
    library's."""
    out: Records = []
    for place in found:
        row = place.chosen_row
        over = {name: ratio.value for name, ratio in place.over_libraries.items()}
        if row is None or row.workload is None or row.matmul_tflops is None or not over:
            continue
        of_kernels = {"fa-tune": row.matmul_tflops} | {
            name: row.matmul_tflops / times for name, times in over.items()
        }
        out += [
            {
                "kind": place.kind,
                "workload": place.label,
                "length": length_of(row.workload),
                "kernel": kernel,
                "config": numbers.get(place.chosen, "") if kernel == "fa-tune" else "",
                "tflops": tflops,
                "times": min(over.values()) if kernel == "fa-tune" else None,
            }
            for kernel, tflops in of_kernels.items()
        ]
    return out


def length_of(workload: Workload) -> str:
    """`4096`, or `1 × 4096` where there are fewer queries than keys."""
    q, kv = workload.seq_len_q, workload.seq_len_kv
    return str(kv) if q == kv else f"{q} × {kv}"


def single_configs(found: Sequence[Place], numbers: Mapping[str, str]) -> Records:
    """What each config would lose that served all workloads of its kind: those of one source,
    method, head dimension and element type.  Only configs that were measured on all of them."""
    kinds: dict[str, list[Place]] = {}
    for place in found:
        row = place.rows[0]
        if place.leader and row.d_head and row.dtype:
            kind = f"d_head {row.d_head}, {row.dtype.name}, {row.method}"
            kinds.setdefault("; ".join(filter(None, (kind, row.source))), []).append(place)
    out: Records = []
    for kind, members in kinds.items():
        everywhere = set.intersection(*(set(place.slowdowns) for place in members))
        entries = []
        for subject in everywhere & numbers.keys():
            times = [place.slowdowns[subject] for place in members]
            entries.append(
                {
                    "workloads": f"{kind} ({len(members)})",
                    "config": numbers[subject],
                    "kernel": Variant.from_key(subject).config,
                    "mean_percent": 100 * (statistics.fmean(times) - 1),
                    "worst_percent": 100 * (max(times) - 1),
                    "worst_on": members[times.index(max(times))].short,
                }
            )
        out += sorted(entries, key=lambda e: (e["mean_percent"], e["config"]))[:MAX_COVERING]
    return out


def on_inputs(found: Sequence[Place], numbers: Mapping[str, str]) -> Records:
    """How long configs took on other inputs, and their errors, where that is recorded."""
    out: Records = []
    for place in found:
        for subject, told in place.source.on_inputs.get(place.key, {}).items():
            paired = [f.to_own_inputs for f in told if f.to_own_inputs is not None]
            in_rounds = len(paired) == len(told)
            times = paired if in_rounds else [figure.median_s for figure in told]
            out += [
                {
                    "workload": place.label,
                    "short": place.short,
                    "config": numbers.get(subject, subject),
                    "inputs": figure.inputs,
                    "median_ms": figure.median_s * MS,
                    "over_fastest": time / min(times),
                    "samples": "in the same rounds" if in_rounds else "one kind after another",
                    "to_default": figure.to_default.value if figure.to_default else None,
                    "error_to_fa2": figure.error,
                }
                for figure, time in zip(told, times, strict=True)
            ]
    return out


def differences(
    found: Sequence[Place], against: Sequence[Place], numbers: Mapping[str, str]
) -> Records:
    """Kernels that two runs have on one workload by one method; `ratio` is this run's time over
    the other's, so that below 1 this run is faster."""
    others: dict[tuple[str, str, str], float] = {}
    for place in against:
        for row in place.rows:
            if row.rank_s is not None:
                others.setdefault(_same(row), row.rank_s)
    return [
        {
            "workload": place.label,
            "short": place.short,
            "config": numbers.get(subject_of(row), row.kernel),
            "kernel": row.kernel,
            "median_ms": row.rank_s * MS,
            "other_ms": others[_same(row)] * MS,
            "ratio": row.rank_s / others[_same(row)],
        }
        for place in found
        for row in place.rows
        if row.rank_s is not None and _same(row) in others
    ]


def _same(row: Row) -> tuple[str, str, str]:
    workload = row.workload
    return (workload.key if workload else str(row.group), row.method, subject_of(row))
