"""The parts of a page, in their order: the question that each answers, its figure and its table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from fa_tune.core.roofline import ROOFS
from fa_tune.core.units import format_fixed
from fa_tune.profile.explain import REASONS
from fa_tune.report.fitted import FamilyPart
from fa_tune.report.page import charts, counted, figures, steps
from fa_tune.report.page.figures import Records
from fa_tune.report.page.headline import Headline, headline
from fa_tune.report.page.picture import Spec
from fa_tune.report.page.source import Source

Column = tuple[str, int | None]  # a heading and decimals; None: text
OPEN_ROWS = 40  # a longer table is opened by the reader


@dataclass(frozen=True)
class Section:
    """A part of the page: the question as its title, how to read the answer, a table with columns
    by the records' fields, a figure that `draw` makes of the records; `name` and records once
    there is data."""

    title: str
    reading: str
    columns: dict[str, Column]
    draw: Callable[[Records], Spec | None]
    name: str = ""
    records: Records = field(default_factory=list)

    def filled(self, name: str, records: Records) -> Section:
        """The same with data; columns without any value are left out."""
        columns = {
            key: column
            for key, column in self.columns.items()
            if any(record.get(key) not in (None, "") for record in records)
        }
        return replace(self, name=name, records=records, columns=columns)

    @cached_property
    def spec(self) -> Spec | None:
        """The figure."""
        return self.draw(self.records)

    @property
    def is_long(self) -> bool:
        """Whether the table is shown only when it is asked for."""
        return len(self.records) > OPEN_ROWS

    @property
    def cells(self) -> list[list[tuple[str, str, float | str]]]:
        """Row by row, headings, what is shown and what is sorted by."""
        return [
            [
                (heading, *_cell(name, record.get(name), decimals))
                for name, (heading, decimals) in self.columns.items()
            ]
            for record in self.records
        ]


@dataclass(frozen=True)
class Contents:
    """All that a page says: the answer, the parts with data, and what the configs' numbers stand
    for."""

    answer: Headline
    sections: list[Section]
    configs: list[FamilyPart]


def contents_of(sources: Sequence[Source], against: Sequence[Source] = ()) -> Contents:
    """What the page has of these measurements, compared with others; a part without data is left
    out."""
    ranked = [source for source in sources if not source.is_profile] or sources
    places = figures.places(ranked)
    legend, numbers = figures.numbered(places, [m for s in sources for m in s.profiled])
    answers = figures.answers(places, numbers)
    profiled = counted.by_workload(sources)
    records = {
        "answers": answers,
        "steps": steps.records(places),
        "rates": figures.rates(places, numbers),
        "ties": figures.ties(places, numbers),
        "single": figures.single_configs(places, numbers),
        "inputs": figures.on_inputs(places, numbers),
        "busy": counted.busy(profiled, numbers),
        "waits": counted.waits(profiled, numbers),
        "explained": counted.explanations(profiled, numbers),
        "counters": counted.counters(profiled, numbers),
        "differences": figures.differences(places, figures.places(against), numbers),
        "results": figures.results(places, numbers),
    }
    parts = dict(_PARTS)
    gpus = {source.gpu for source in sources}
    gpu = gpus.pop() if len(gpus) == 1 else ""
    if gpu in ROOFS:
        reading = f"{parts['results'].reading.removesuffix('.')}, under the roof of {gpu}."
        roofline = partial(charts.roofline, gpu=gpu)
        parts["results"] = replace(parts["results"], reading=reading, draw=roofline)
    a, b = (" and ".join(source.title for source in several) for several in (sources, against))
    reading = f"{parts['differences'].reading} A is {a}; B is {b}."
    parts["differences"] = replace(parts["differences"], reading=reading)
    return Contents(
        headline(answers, ranked, sum(len(source.rows) for source in ranked)),
        [part.filled(name, records[name]) for name, part in parts.items() if records[name]],
        legend.by_family(),
    )


# What tables show.
_COLUMNS: dict[str, Column] = {
    "short": ("workload", None),
    "workload": ("workload", None),
    "config": ("config", None),
    "kernel": ("kernel", None),
    "median_ms": ("median (ms)", 4),
    "forward_ms": ("forward (ms)", 4),
    "backward_ms": ("backward (ms)", 4),
    "both_ms": ("both (ms)", 4),
    "tflops": ("TFLOP/s", 1),
    "gb_per_s": ("GB/s", 0),
    "peak_percent": ("% of the GPU's peak", 0),
    "library": ("fastest library", None),
    "times": ("speed over it", 2),
    "low": ("from", 3),
    "high": ("to", 3),
    "others": ("speed over each", None),
    "slowdown": ("time over our fastest", 3),
    "family": ("family", None),
    "registers": ("registers", 0),
    "l2_hit_percent": ("L2 hit %", 1),
    "n": ("samples", 0),
    "outcome": ("outcome", None),
    "reason": ("reason", None),
    "ratio": ("time over the fastest's", 4),
    "workloads": ("workloads", None),
    "mean_percent": ("mean loss (%)", 2),
    "worst_percent": ("worst loss (%)", 2),
    "worst_on": ("worst on", None),
    "inputs": ("inputs", None),
    "over_fastest": ("time over its quickest inputs", 3),
    "samples": ("measured", None),
    "to_default": ("time over the default's", 3),
    "error_to_fa2": ("error over FlashAttention 2's", 2),
    "winner": ("winner", None),
    "runner_up": ("runner-up", None),
    "cause": ("cycles", None),
    "more_percent": ("more than the winner (%)", 1),
    "sentences": ("in words", None),
    **{name: (f"{name} (%)", 1) for name in (*counted.UNITS, counted.MEMORY, *REASONS)},
    "counter": ("counter", None),
    "shown": ("value", None),
    "share": ("of the largest", 2),
    "other_ms": ("B (ms)", 4),
}


def _columns(names: str | Sequence[str], **headings: str) -> dict[str, Column]:
    """The columns of these names, some of them with headings of a part's own."""
    listed = names.split() if isinstance(names, str) else names
    found = {name: _COLUMNS[name] for name in listed}
    return found | {name: (heading, found[name][1]) for name, heading in headings.items()}


_PARTS = {
    "answers": Section(
        "How much faster than the fastest library?",
        "Each point is the speed of the chosen config over the fastest library's, the line its "
        "95 % interval; to the right of 1 ours is faster.",
        _columns(
            "short config median_ms tflops gb_per_s peak_percent times low high library others"
        ),
        charts.speedups,
    ),
    "steps": Section(
        "How fast is a training step?",
        "Medians of the chosen forward pass, with the log-sum-exp, and backward pass; their speed "
        "together over that of a library's two.",
        _columns("workload forward_ms backward_ms both_ms times library others"),
        lambda _: None,
    ),
    "rates": Section(
        "How fast by length?",
        "Rates of the chosen configs and of the libraries; above our bar stands its speed over the "
        "fastest library's.",
        _columns("workload kernel config tflops times", times="speed over the fastest library"),
        charts.rates,
    ),
    "ties": Section(
        "Which other configs are as fast?",
        "Configs whose time over the fastest's differs from 1 by less than half a per cent, or by "
        "less than its 95 % interval: median (point), interval (line) and rounds (ticks).",
        _columns("workload config ratio low high"),
        charts.ties,
    ),
    "single": Section(
        "Would one config do for all?",
        "How much more time a config takes that serves all workloads of a kind, over the fastest "
        "config of each.",
        _columns("workloads config mean_percent worst_percent worst_on"),
        charts.single_configs,
    ),
    "inputs": Section(
        "Do times depend on what Q, K and V hold?",
        "The time of a config on each kind of inputs over its quickest. Where the kinds were "
        "measured one after another, changes of the clock are in these ratios. The last column is "
        "the root mean square error over FlashAttention 2's.",
        _columns("workload config inputs median_ms over_fastest samples to_default error_to_fa2"),
        charts.on_inputs,
    ),
    "busy": Section(
        "What bounds the kernels?",
        "How busy a kernel keeps each part of the GPU, in per cent of its peak: what is near 100 "
        "bounds it; where nothing is, it waits.",
        _columns(["workload", "config", "kernel", *counted.UNITS, counted.MEMORY]),
        charts.busy,
    ),
    "waits": Section(
        "What do warps wait for?",
        "The share of the warps' cycles by what they were spent on.",
        _columns(["workload", "config", "kernel", *REASONS]),
        charts.waits,
    ),
    "explained": Section(
        "Why does the runner-up lose?",
        "The cycles that the runner-up spends more than the winner, by what they were spent on, in "
        "per cent of the winner's; to the left of 0 it spends fewer.",
        _columns("workload winner runner_up cause more_percent sentences"),
        charts.explanations,
    ),
    "counters": Section(
        "What do the counters say?",
        "Time and counters of each kernel; darker is more of what is counted.",
        _columns("workload config kernel counter shown share"),
        charts.counters,
    ),
    "differences": Section(
        "What changed between two runs?",
        "Each kernel's time in A over its time in B: to the left of 1, A is faster.",
        _columns(
            "workload config kernel median_ms other_ms ratio", median_ms="A (ms)", ratio="A/B"
        ),
        charts.differences,
    ),
    "results": Section(
        "Every result",
        "The rate of each config over how many operations its workload has for each byte "
        "that must move.",
        _columns(
            "workload config family median_ms tflops gb_per_s peak_percent slowdown registers "
            "l2_hit_percent n outcome reason"
        ),
        charts.roofline,
    ),
}


def _cell(name: str, value: Any, decimals: int | None) -> tuple[str, float | str]:
    if value is None or value == "":
        return "", ""
    if decimals is None:
        return str(value), str(value)
    if name.endswith("_ms"):
        return format_fixed(value, decimals), float(value)
    return f"{value:,.{decimals}f}", float(value)
