"""The parts of a page, in their order: what each says, draws and lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fa_tune.core.roofline import ROOFS
from fa_tune.core.units import format_fixed
from fa_tune.report.page import charts, figures
from fa_tune.report.page.charts import Spec
from fa_tune.report.page.figures import Records
from fa_tune.report.page.source import Source

Column = tuple[str, int | None]  # a heading and decimals; None: text


@dataclass(frozen=True)
class Section:
    """A part of the page: what it shows, in one sentence, a figure and a table.  `columns` are
    by the records' fields."""

    name: str
    title: str
    told: str
    spec: Spec | None
    records: Records
    columns: dict[str, Column]

    @property
    def cells(self) -> list[list[tuple[str, float | str]]]:
        """Row by row, what is shown and what is sorted by."""
        return [
            [_cell(name, record.get(name), of) for name, (_, of) in self.columns.items()]
            for record in self.records
        ]


def sections_of(sources: Sequence[Source], against: Sequence[Source] = ()) -> list[Section]:
    """What the page has of these measurements; a part without data is left out."""
    places = figures.places(sources)
    numbers = figures.numbers_of_configs(places)
    gpus = {source.gpu for source in sources}
    gpu = gpus.pop() if len(gpus) == 1 else ""
    results = figures.results(places, numbers)
    records = {
        "winners": results,
        "rates": figures.rates(places, numbers),
        "results": results,
        "ties": figures.ties(places, numbers),
        "single": figures.single_configs(places, numbers),
        "inputs": figures.on_inputs(places, numbers),
        "explained": figures.explanations(sources),
        "ladder": figures.ladder(sources),
        "differences": figures.differences(places, figures.places(against), numbers),
    }
    parts = _PARTS | {"results": _under_roof(_PARTS["results"], gpu)}
    every = (part.section(name, records[name]) for name, part in parts.items())
    return [section for section in every if section.records]


@dataclass(frozen=True)
class _Part:
    """A section before there is data: what is drawn of all records, and which are listed."""

    title: str
    told: str
    columns: dict[str, Column]
    draw: Callable[[Records], Spec | None]
    lists: Callable[[dict[str, Any]], bool] = lambda _: True

    def section(self, name: str, records: Records) -> Section:
        """With data."""
        listed = [record for record in records if self.lists(record)]
        return Section(name, self.title, self.told, self.draw(records), listed, self.columns)


def _under_roof(part: _Part, gpu: str) -> _Part:
    """Rates under the roof of a GPU, where it is known."""
    if gpu not in ROOFS:
        return part
    told = f"{part.told.removesuffix('.')}, under the roof of {gpu}."
    return replace(part, told=told, draw=partial(charts.roofline, gpu=gpu))


# What parts show.
_COLUMNS: dict[str, Column] = {
    "workload": ("workload", None),
    "config": ("number", None),
    "kernel": ("config", None),
    "median_ms": ("median (ms)", 4),
    "tflops": ("TFLOP/s", 1),
    "gb_per_s": ("GB/s", 0),
    "memory_percent": ("% of the memory's peak", 0),
    "loss_percent": ("% behind the fastest", 2),
    "times": ("speed over the fastest library", 2),
    "family": ("family", None),
    "registers": ("registers", 0),
    "l2_hit_percent": ("L2 hit %", 1),
    "n": ("samples", 0),
    "outcome": ("outcome", None),
    "reason": ("reason", None),
    "ratio": ("time over the fastest's", 4),
    "low": ("from", 4),
    "high": ("to", 4),
    "workloads": ("workloads", None),
    "mean_percent": ("mean loss (%)", 2),
    "worst_percent": ("worst loss (%)", 2),
    "worst_on": ("worst on", None),
    "inputs": ("inputs", None),
    "over_fastest": ("over its quickest inputs", 4),
    "samples": ("measured", None),
    "to_default": ("over the default", 4),
    "winner": ("winner", None),
    "runner_up": ("runner-up", None),
    "cause": ("lost to", None),
    "share_percent": ("% of the difference", 1),
    "told": ("in words", None),
    "rung": ("step", None),
    "counter": ("counter", None),
    "shown": ("value", None),
    "share": ("of the largest", 2),
    "other_ms": ("the other (ms)", 4),
}


def _columns(names: str, **headings: str) -> dict[str, Column]:
    """The columns of these names, some of them with headings of a part's own."""
    found = {name: _COLUMNS[name] for name in names.split()}
    return found | {name: (heading, found[name][1]) for name, heading in headings.items()}


_PARTS = {
    "winners": _Part(
        "Chosen configs",
        "Each square is a config on a workload, darker the further it is behind the fastest; "
        "★ is chosen.",
        _columns("workload config kernel median_ms tflops gb_per_s memory_percent loss_percent"),
        charts.winners,
        lists=lambda record: bool(record["chosen"]),
    ),
    "rates": _Part(
        "Beside the libraries",
        "The rate of the chosen config and of the libraries that were measured beside it; the "
        "number is its speed over the fastest of them.",
        _columns("workload kernel config tflops times", kernel="kernel"),
        charts.rates,
    ),
    "results": _Part(
        "Every result",
        "The rate of each config over how many operations its workload has for each byte "
        "that must move.",
        _columns(
            "workload config kernel family median_ms tflops gb_per_s memory_percent "
            "loss_percent registers l2_hit_percent n outcome reason"
        ),
        charts.roofline,
    ),
    "ties": _Part(
        "Ties",
        "Configs that the measurements cannot tell from the fastest: each sample over the "
        "fastest's of the same round, the median of these ratios and its 95 % interval.",
        _columns("workload config kernel ratio low high"),
        charts.ties,
    ),
    "single": _Part(
        "One config for all",
        "What a single config would lose that served all workloads of a kind.",
        _columns("workloads config kernel mean_percent worst_percent worst_on"),
        charts.single_configs,
    ),
    "inputs": _Part(
        "Other inputs",
        "How much the time of a config depends on what Q, K and V hold. Where the kinds of inputs "
        "were measured one after another, the clock's drift is in the ratios between them.",
        _columns("workload config inputs median_ms over_fastest samples to_default"),
        charts.on_inputs,
    ),
    "explained": _Part(
        "Winner against runner-up",
        "What the runner-up loses its cycles to, by the counters of both.",
        _columns("workload winner runner_up cause share_percent told"),
        charts.explanations,
    ),
    "ladder": _Part(
        "The ladder",
        "Time and counters of configs of which each has one idea more than the one before, "
        "and of libraries; darker is more.",
        _columns("workload rung kernel counter shown share"),
        charts.ladder,
    ),
    "differences": _Part(
        "Difference of two runs",
        "The time of each kernel over that in the other run: below 1 this run is faster.",
        _columns(
            "workload config kernel median_ms other_ms ratio",
            median_ms="this run (ms)",
            ratio="ratio",
        ),
        charts.differences,
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
