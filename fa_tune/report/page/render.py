"""A page as text: the frame of HTML, its tables, and the figures with the library that draws
them.  The file makes no request: a policy inside it forbids any."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from fa_tune import __version__
from fa_tune.core.errors import StorageError
from fa_tune.core.roofline import ROOFS
from fa_tune.report.page import charts, figures
from fa_tune.report.page.charts import Spec
from fa_tune.report.page.figures import Records
from fa_tune.report.page.source import Source

SCHEMA = "fa-tune-page-1"
TITLE = "fa-tune results"
_EXPORT = "window.vegaEmbed = vegaEmbed;"


@dataclass(frozen=True)
class Section:
    """A part of the page: what it shows, in one sentence, a figure and a table.  `columns` are
    the records' fields with their headings and decimals; None: text."""

    name: str
    title: str
    told: str
    spec: Spec | None
    records: Records
    columns: dict[str, tuple[str, int | None]]

    @property
    def cells(self) -> list[list[tuple[str, float | str]]]:
        """Row by row, what is shown and what is sorted by."""
        return [
            [_cell(record.get(name), decimals) for name, (_, decimals) in self.columns.items()]
            for record in self.records
        ]


def write_page(path: Path, sources: Sequence[Source], against: Sequence[Source] = ()) -> None:
    """Write the page of `sources` to a file, compared with `against`; raises StorageError."""
    text = page(sources, against)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from None


def page(sources: Sequence[Source], against: Sequence[Source] = ()) -> str:
    """The page as HTML."""
    import jinja2  # late, like what draws: slow to load
    import vl_convert

    sections = sections_of(sources, against)
    document = {
        "schema": SCHEMA,
        "sources": [source.name for source in sources],
        "sections": {section.name: section.records for section in sections},
        "figures": {section.name: section.spec for section in sections if section.spec},
    }
    files = resources.files(__package__)
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string((files / "page.html").read_text(encoding="utf-8"))
    return str(
        template.render(
            title=TITLE,
            version=__version__,
            sections=sections,
            sources=sources,
            against=against,
            style=(files / "page.css").read_text(encoding="utf-8"),
            script=(files / "page.js").read_text(encoding="utf-8"),
            library=vl_convert.javascript_bundle(_EXPORT).replace("</script", "<\\/script"),
            document=_embedded(document),
        )
    )


def sections_of(sources: Sequence[Source], against: Sequence[Source] = ()) -> list[Section]:
    """What the page has of these measurements; a part without data is left out."""
    found = figures.places(sources)
    others = figures.places(against)
    numbers = figures.numbers_of_configs(found)
    results = figures.results(found, numbers)
    rates = figures.rates(found, numbers)
    rungs = figures.ladder(sources)
    gpus = {source.gpu for source in sources}
    gpu = gpus.pop() if len(gpus) == 1 else ""
    tied = figures.ties(found, numbers)
    single = figures.single_configs(found, numbers)
    inputs = figures.on_inputs(found, numbers)
    told = figures.explanations(sources)
    compared = figures.differences(found, others, numbers)
    every = [
        Section(
            "winners",
            "Chosen configs",
            "Each square is a config on a workload, darker the further it is behind the fastest; "
            "★ is chosen.",
            charts.winners(results),
            [r for r in results if r["chosen"]],
            {
                "workload": ("workload", None),
                "config": ("number", None),
                "kernel": ("config", None),
                "median_ms": ("median (ms)", 4),
                "tflops": ("TFLOP/s", 1),
                "gb_per_s": ("GB/s", 0),
                "memory_percent": ("% of the memory's peak", 0),
                "loss_percent": ("% behind the fastest", 2),
            },
        ),
        Section(
            "rates",
            "Beside the libraries",
            "The rate of the chosen config and of the libraries that were measured beside it; the "
            "number is its speed over the fastest of them.",
            charts.rates(rates),
            rates,
            {
                "workload": ("workload", None),
                "kernel": ("kernel", None),
                "config": ("number", None),
                "tflops": ("TFLOP/s", 1),
                "times": ("speed over the fastest library", 2),
            },
        ),
        Section(
            "results",
            "Every result",
            "The rate of each config over how many operations its workload has for each byte "
            "that must move" + (f", under the roof of {gpu}." if gpu in ROOFS else "."),
            charts.roofline(results, gpu),
            results,
            {
                "workload": ("workload", None),
                "config": ("number", None),
                "kernel": ("config", None),
                "family": ("family", None),
                "median_ms": ("median (ms)", 4),
                "tflops": ("TFLOP/s", 1),
                "gb_per_s": ("GB/s", 0),
                "memory_percent": ("% of the memory's peak", 0),
                "loss_percent": ("% behind the fastest", 2),
                "registers": ("registers", 0),
                "l2_hit_percent": ("L2 hit %", 1),
                "n": ("samples", 0),
                "outcome": ("outcome", None),
                "reason": ("reason", None),
            },
        ),
        Section(
            "ties",
            "Ties",
            "Configs that the measurements cannot tell from the fastest: each sample over the "
            "fastest's of the same round, the median of these ratios and its 95 % interval.",
            charts.ties(tied),
            tied,
            {
                "workload": ("workload", None),
                "config": ("number", None),
                "kernel": ("config", None),
                "ratio": ("time over the fastest's", 4),
                "low": ("from", 4),
                "high": ("to", 4),
            },
        ),
        Section(
            "single",
            "One config for all",
            "What a single config would lose that served all workloads of a kind.",
            charts.single_configs(single),
            single,
            {
                "workloads": ("workloads", None),
                "config": ("number", None),
                "kernel": ("config", None),
                "mean_percent": ("mean loss (%)", 2),
                "worst_percent": ("worst loss (%)", 2),
                "worst_on": ("worst on", None),
            },
        ),
        Section(
            "inputs",
            "Other inputs",
            "How much the time of a config depends on what Q, K and V hold.",
            charts.on_inputs(inputs),
            inputs,
            {
                "workload": ("workload", None),
                "config": ("number", None),
                "inputs": ("inputs", None),
                "median_ms": ("median (ms)", 4),
                "over_fastest": ("over its quickest inputs", 4),
                "to_default": ("over the default", 4),
            },
        ),
        Section(
            "explained",
            "Winner against runner-up",
            "What the runner-up loses its cycles to, by the counters of both.",
            charts.explanations(told),
            told,
            {
                "workload": ("workload", None),
                "winner": ("winner", None),
                "runner_up": ("runner-up", None),
                "cause": ("lost to", None),
                "share_percent": ("% of the difference", 1),
                "told": ("in words", None),
            },
        ),
        Section(
            "ladder",
            "The ladder",
            "Time and counters of configs of which each has one idea more than the one before, "
            "and of libraries; darker is more.",
            charts.ladder(rungs),
            rungs,
            {
                "workload": ("workload", None),
                "rung": ("rung", None),
                "kernel": ("config", None),
                "counter": ("counter", None),
                "shown": ("value", None),
                "share": ("of the largest", 2),
            },
        ),
        Section(
            "differences",
            "Difference of two runs",
            "The time of each kernel over that in the other run: below 1 this run is faster.",
            charts.differences(compared),
            compared,
            {
                "workload": ("workload", None),
                "config": ("number", None),
                "kernel": ("config", None),
                "median_ms": ("this run (ms)", 4),
                "other_ms": ("the other (ms)", 4),
                "ratio": ("ratio", 4),
            },
        ),
    ]
    return [section for section in every if section.records]


def _cell(value: Any, decimals: int | None) -> tuple[str, float | str]:
    if value is None or value == "":
        return "", ""
    if decimals is None:
        return str(value), str(value)
    return f"{value:,.{decimals}f}", float(value)


def _embedded(document: dict[str, Any]) -> str:
    """JSON that no parser of HTML ends early."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
