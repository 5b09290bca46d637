"""The figures of a page as Vega-Lite specifications.  Each draws records of `figures.py` and
nothing else; colours and fonts are the page's, so that they suit light and dark.

altair is slow to load, so that this module is imported where something is drawn."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from fa_tune.core.roofline import ROOFS, Roof
from fa_tune.profile.explain import REASONS
from fa_tune.report.page.counted import MEMORY, UNITS
from fa_tune.report.page.figures import Records
from fa_tune.report.page.picture import Spec

ROW_PIXELS = 20
ROOFLINE_PIXELS = 400
RATES_PIXELS = 200
ROOM_ABOVE = 1.08  # the highest bar, for its number
PANEL_PIXELS = 380  # wide, of several beside one another
WORST_SHARE = 0.7  # of the best, that curves show
RATIO_PIXELS = 90  # of room to the right for `1.20× cuDNN`


def roofline(results: Records, gpu: str = "") -> Spec | None:
    """Rate over intensity for every result, under the roof of the GPU where it is known."""
    points = [r for r in results if r["tflops"] and r["flop_per_byte"]]
    if not points:
        return None
    scale, below = alt.Scale(type="log", nice=False), alt.Legend(orient="bottom")
    x = alt.X("flop_per_byte:Q", title="FLOP per byte that must move", scale=scale)
    y = alt.Y("tflops:Q", title="TFLOP/s of the matrix products", scale=scale)
    chart: Any = _chart(points).mark_point(filled=True, size=45, opacity=0.75)
    chart = chart.encode(
        x=x,
        y=y,
        color=alt.Color("family:N", title="kernels of", legend=below),
        shape=alt.Shape("chosen:N", title="chosen", legend=below),
        tooltip=_tooltip("config", "kernel", "workload", "tflops", "gb_per_s", "median_ms"),
    )
    if gpu in ROOFS:
        line = _chart(_roof(points, ROOFS[gpu])).mark_line(strokeDash=_DASHED)
        chart = line.encode(x=x, y=y) + chart
    told = f"Rate of every config over intensity. {len(points)} points."
    return _spec(chart, told, ROOFLINE_PIXELS)


def _roof(points: Records, roof: Roof) -> Records:
    ridge = roof.tflops * 1e12 / roof.bytes_per_s
    low = min(ridge, *(p["flop_per_byte"] for p in points)) / 1.5
    high = max(ridge, *(p["flop_per_byte"] for p in points)) * 1.5
    rates = {at: min(roof.tflops, at * roof.bytes_per_s / 1e12) for at in (low, ridge, high)}
    return [{"flop_per_byte": x, "tflops": y, "family": "roof"} for x, y in rates.items()]


def speedups(answers: Records) -> Spec | None:
    """The speed of what is chosen over the fastest library's on each workload, with its interval,
    in numbers beside."""
    points = [r for r in answers if r["times"] is not None]
    if not points:
        return None
    labels = _values(points, "short")
    edges = [r[name] for r in points for name in ("low", "times", "high") if r[name]]
    least, most = min(1.0, *edges), max(1.0, *edges)
    room = (most - least or 0.1) / 20
    scale = alt.Scale(domain=[least - room, most + room], nice=False, zero=False)
    hints = _tooltip("workload", "config", "kernel", "times", "low", "high", "library", "median_ms")
    base = _chart(points).encode(y=_names("short", labels), tooltip=hints)
    axis = alt.Axis(tickCount=6)
    x = alt.X("times:Q", title="speed over the fastest library's", scale=scale, axis=axis)
    intervals = base.mark_rule(size=3).encode(x=alt.X("low:Q", scale=scale, axis=axis), x2="high:Q")
    middles = base.mark_point(filled=True, size=80, opacity=1).encode(
        x=x, color=alt.value(_COLOURS[0])
    )
    numbers = (
        base.transform_calculate(shown="format(datum.times, '.2f') + '× ' + datum.library")
        .mark_text(align="left")
        .encode(text="shown:N", x=alt.value(alt.ExprRef("width + 6")))
    )
    chart = _level("times", strokeDash=_DASHED) + intervals + middles + numbers
    told = f"Speed over the fastest library on {len(labels)} workloads."
    height = ROW_PIXELS * max(3, len(labels))
    return _spec(chart.properties(padding={"right": RATIO_PIXELS}), told, height)


def rates(found: Records) -> Spec:
    """Rate by length, of what is chosen and of the libraries, for one kind at a time."""
    base, pick = _one_at_a_time(found, "kind", "rates")
    told = "Rate by sequence length, beside the libraries."
    return _spec(_rate_bars(base, found), told, RATES_PIXELS, pick)


def rate_panels(found: Records, title: str) -> Spec:
    """The same for all kinds beside one another, for a page that cannot be asked."""
    panels = []
    for kind in _values(found, "kind"):
        bars = _rate_bars(_chart([r for r in found if r["kind"] == kind]), found)
        panels.append(bars.properties(title=kind, width=PANEL_PIXELS, height=RATES_PIXELS))
    chart = alt.concat(*panels, columns=2, title=title).resolve_legend(color="shared")
    return _dictionary(chart)


def _rate_bars(base: alt.Chart, found: Records) -> Any:
    kernels, lengths = _values(found, "kernel"), _values(found, "length")
    x = alt.X("length:N", title="sequence length", sort=lengths, axis=alt.Axis(labelAngle=0))
    beside = alt.XOffset("kernel:N", scale=alt.Scale(domain=kernels))
    scale = alt.Scale(domain=[0, ROOM_ABOVE * max(r["tflops"] for r in found)])
    bars = base.mark_bar().encode(
        x=x,
        xOffset=beside,
        y=alt.Y("tflops:Q", title="TFLOP/s of the matrix products", scale=scale),
        color=_coloured("kernel", kernels),
        tooltip=_tooltip("workload", "kernel", "tflops", "times"),
    )
    ours = base.transform_filter("datum.times != null")
    numbers = ours.transform_calculate(shown="format(datum.times, '.2f') + '×'")
    numbers = numbers.mark_text(dy=-7, fontWeight="bold").encode(
        x=x, xOffset=beside, y="tflops:Q", text="shown:N", color=alt.value(_COLOURS[0])
    )
    return bars + numbers


def counters(found: Records) -> Spec:
    """Every counter of every profiled kernel, as a share of the largest of its line."""
    base, pick = _one_at_a_time(found, "workload", "counters")
    kernels, lines = _values(found, "config"), _values(found, "counter")
    squares = base.mark_rect().encode(
        x=alt.X("config:N", title=None, sort=kernels, axis=alt.Axis(labelAngle=0)),
        y=_names("counter", lines),
        color=alt.Color("share:Q", scale=alt.Scale(domain=[0, 1], scheme="blues"), legend=None),
        tooltip=_tooltip("kernel", "counter", "shown"),
    )
    told = f"{len(lines)} counters of {len(kernels)} kernels."
    return _spec(squares, told, ROW_PIXELS * len(lines), pick)


def curves(found: Records, others: str) -> Spec:
    """The share of the best over measurements, a panel for each space: solid at the median, dashed
    for all but the unluckiest; those of `others` are thin and grey."""
    named = _values(found, "strategy")
    own = itertools.cycle(_COLOURS)
    colours = [_GREY if name == others else next(own) for name in named]
    thin = alt.condition(f"datum.strategy === '{others}'", alt.value(0.6), alt.value(1.6))
    dashes = alt.StrokeDash(
        "quantile:N",
        title=None,
        sort=_values(found, "quantile"),
        legend=alt.Legend(orient="bottom", symbolType="stroke"),
    )
    scale = alt.Scale(domain=[WORST_SHARE, 1.003])
    panels = []
    for space in _values(found, "space"):
        mine = [r for r in found if r["space"] == space and r["share"] >= WORST_SHARE]
        lines = _chart(mine).mark_line(interpolate="step-after")
        lines = lines.encode(
            x=alt.X("measurements:Q", title="measurements"),
            y=alt.Y("share:Q", title="share of the best", scale=scale),
            detail="line:N",
            color=_coloured("strategy", named, colours, columns=4, symbolType="stroke"),
            strokeWidth=thin,
            strokeDash=dashes,
        )
        title = alt.Title(space, fontSize=9)  # the longest is as wide as its panel
        panels.append(lines.properties(title=title, width=PANEL_PIXELS, height=RATES_PIXELS))
    return _dictionary(alt.concat(*panels, columns=2))


def ties(tied: Records) -> Spec:
    """Samples, ratio and interval of tied configs, for one workload at a time."""
    base, pick = _one_at_a_time(tied, "workload", "ties")
    y = alt.Y("config:N", title=None, sort=None)  # as the records stand, the fastest first
    scale = alt.Scale(zero=False)
    samples = base.transform_flatten(["samples"]).mark_tick(opacity=0.35, thickness=1)
    samples = samples.encode(
        x=alt.X("samples:Q", title="time over the fastest's", scale=scale), y=y
    )
    interval = base.mark_rule(size=3).encode(x=alt.X("low:Q", scale=scale), x2="high:Q", y=y)
    middle = base.mark_point(filled=True, size=70).encode(
        x=alt.X("ratio:Q", scale=scale),
        y=y,
        color=_coloured("role", ["chosen", "as fast"], columns=2),
        tooltip=_tooltip("config", "kernel", "ratio", "low", "high"),
    )
    told = "Samples, median ratio and 95 % interval of the configs that are tied."
    height = (ROW_PIXELS + 4) * max(3, _most(tied, "workload"))
    return _spec(samples + interval + middle, told, height, pick)


def single_configs(losses: Records) -> Spec:
    """What one config for all workloads of a kind would lose: mean (bar) and worst (point)."""
    base, pick = _one_at_a_time(losses, "workloads", "losses")
    y = alt.Y("config:N", title=None, sort=None)  # as the records stand, the best first
    hints = _tooltip("config", "kernel", "mean_percent", "worst_percent", "worst_on")
    bars = base.mark_bar(opacity=0.8).encode(
        x=alt.X("mean_percent:Q", title="% more time: mean (bar), worst (point)"),
        y=y,
        tooltip=hints,
    )
    points = base.mark_point(filled=True, size=60).encode(
        x="worst_percent:Q", y=y, color=alt.value(_ACCENT), tooltip=hints
    )
    told = "What one config for all workloads of a kind would lose."
    return _spec(bars + points, told, ROW_PIXELS * max(3, _most(losses, "workloads")), pick)


def on_inputs(figures: Records) -> Spec:
    """Time on each kind of inputs over that on the quickest, per workload and config."""
    kinds = _values(figures, "inputs")
    rows = len({(r["workload"], r["config"]) for r in figures})
    base = _chart(figures).transform_calculate(row="datum.short + ' ' + datum.config")
    worst = max(1.2, *(r["over_fastest"] for r in figures))
    chart = _grid(base, ("inputs", kinds), "row", "over_fastest", domain=(1.0, worst), format=".2f")
    told = "How much the time of each config depends on its inputs."
    return _spec(chart, told, ROW_PIXELS * max(2, rows))


def busy(found: Records) -> Spec:
    """How busy each kernel keeps the parts of the GPU, with the numbers in the squares."""
    base, pick = _one_at_a_time(found, "workload", "busy")
    units = [unit for unit in (*UNITS, MEMORY) if any(unit in r for r in found)]
    folded = base.transform_fold(units, as_=["unit", "percent"])
    chart = _grid(folded, ("unit", units), "config", "percent")
    told = "How busy each kernel keeps tensor cores, exponentials, issue slots and memory."
    return _spec(chart, told, _height(found), pick)


def _grid(
    base: Any,
    columns: tuple[str, list[str]],
    row: str,
    value: str,
    *,
    domain: tuple[float, float] = (0, 100),
    format: str = ".0f",
) -> Any:
    """Squares of a value, darker for more, with its number: `columns` are a field and its
    values."""
    field, values = columns
    above = alt.Axis(labelAngle=0, orient="top", ticks=False)
    placed = base.encode(
        x=alt.X(f"{field}:N", title=None, sort=values, axis=above),
        y=_names(row),
        tooltip=_tooltip("workload", "config", "kernel"),
    )
    scale = alt.Scale(domain=list(domain), clamp=True, scheme="blues")
    squares = placed.mark_rect().encode(color=alt.Color(f"{value}:Q", scale=scale, legend=None))
    is_dark = f"datum.{value} > {sum(domain) / 2}"
    numbers = placed.mark_text().encode(
        text=alt.Text(f"{value}:Q", format=format),
        color=alt.condition(is_dark, alt.value("white"), alt.value("#1b1f24")),
    )
    return squares + numbers


def _height(found: Records) -> int:
    """The pixels of a row for each kernel of the workload that has most."""
    return (ROW_PIXELS + 4) * max(2, _most(found, "workload"))


def waits(found: Records) -> Spec:
    """What the cycles of each kernel's warps were spent on."""
    base, pick = _one_at_a_time(found, "workload", "waits")
    bars = (
        base.transform_fold(list(REASONS), as_=["cause", "percent"])
        .mark_bar()
        .encode(
            x=alt.X("percent:Q", title="% of the warps' cycles", scale=alt.Scale(domain=[0, 100])),
            y=_names("config"),
            color=_coloured("cause", list(REASONS), columns=2),
            tooltip=_tooltip("config", "kernel", "cause", "percent"),
        )
    )
    told = "What the warps of each kernel spend their cycles on."
    return _spec(bars, told, _height(found), pick)


def explanations(found: Records) -> Spec:
    """What the runner-up spends more cycles on, on each workload."""
    labels = _values(found, "workload")
    bars = (
        _chart(found)
        .mark_bar()
        .encode(
            x=alt.X("more_percent:Q", title="more cycles than the winner, % of the winner's"),
            y=_names("workload", labels),
            color=_coloured("cause", _values(found, "cause"), columns=2),
            tooltip=_tooltip("workload", "cause", "more_percent", "winner", "runner_up"),
        )
    )
    told = "What the runner-up spends more cycles on."
    return _spec(bars + _level("at", 0.0), told, (ROW_PIXELS + 8) * max(2, len(labels)))


def differences(compared: Records) -> Spec:
    """This run's time over the other's for every kernel that both have."""
    labels = _values(compared, "short")
    points = (
        _chart(compared)
        .mark_point(filled=True, size=45, opacity=0.7)
        .encode(
            x=alt.X("ratio:Q", title="time in A over time in B", scale=alt.Scale(zero=False)),
            y=_names("short", labels),
            tooltip=_tooltip("workload", "config", "kernel", "ratio", "median_ms", "other_ms"),
        )
    )
    told = f"The difference of two runs: {len(compared)} points."
    chart = _level("ratio", strokeDash=_DASHED) + points
    return _spec(chart, told, ROW_PIXELS * max(3, len(labels)))


_LABEL_PIXELS = 150  # of a workload's name, so that a telephone has room for the figure
_ACCENT = "#e45756"
# Readable on light and dark; what is chosen comes first.
_COLOURS = ("#1f77d0", "#5a9e4b", "#d9822b", "#9a6fc4", "#c2504f", "#2a9d9d", "#8c6d31", "#b0578d")
_GREY = "#9aa0a6"
_DASHED = [4, 3]
_FORMATS = {"tflops": ".1f", "gb_per_s": ".0f", "median_ms": ".5r", "other_ms": ".5r"}
_TEXTS = (
    *("config", "kernel", "workload", "worst_on", "inputs", "cause", "winner", "runner_up"),
    *("counter", "shown", "unit", "library"),
)


def _one_at_a_time(records: Records, field: str, name: str) -> tuple[alt.Chart, Any]:
    """A chart of the records of one value of a field, and what the reader chooses it by."""
    values = _values(records, field)
    chosen = f"{field}_of_{name}"
    bind = alt.binding_select(options=values, name=f"{field.capitalize()}: ")
    base = _chart(records).transform_filter(f"datum.{field} === {chosen}")
    return base, alt.param(name=chosen, value=values[0], bind=bind)


def _chart(records: Sequence[Mapping[str, Any]]) -> alt.Chart:
    return alt.Chart(alt.Data(values=[dict(record) for record in records]))


def _values(records: Records, field: str) -> list[Any]:
    """The values of a field, each once."""
    return list(dict.fromkeys(record[field] for record in records))


def _most(records: Records, field: str) -> int:
    """How many records share a value of a field, at most."""
    return max(Counter(record[field] for record in records).values())


def _names(field: str, sort: Sequence[str] | None = None) -> alt.Y:
    """Lines with names, without `sort` as the records stand."""
    return alt.Y(f"{field}:N", title=None, sort=sort, axis=alt.Axis(labelLimit=_LABEL_PIXELS))


def _level(field: str, at: float = 1.0, **mark: Any) -> Any:
    """A line across all others."""
    return _chart([{field: at}]).mark_rule(**mark).encode(x=f"{field}:Q")


def _coloured(
    field: str, values: Sequence[str], colours: Sequence[str] = _COLOURS, **legend: Any
) -> Any:
    return alt.Color(
        f"{field}:N",
        title=None,
        sort=values,
        scale=alt.Scale(domain=values, range=colours[: len(values)]),
        legend=alt.Legend(orient="bottom", **legend),
    )


def _tooltip(*names: str) -> list[Any]:
    return [
        alt.Tooltip(f"{name}:N", title=name.replace("_", " "))
        if name in _TEXTS
        else alt.Tooltip(
            f"{name}:Q", title=name.replace("_", " "), format=_FORMATS.get(name, ".3f")
        )
        for name in names
    ]


def _dictionary(chart: Any) -> Spec:
    """The specification without altair's own settings."""
    with alt.data_transformers.enable(consolidate_datasets=False, max_rows=None):
        spec: Spec = chart.to_dict()
    spec.pop("config", None)
    return spec


def _spec(chart: Any, description: str, height: int, pick: Any = None) -> Spec:
    """The specification, as wide as the page, with what the reader chooses by."""
    chart = chart if pick is None else chart.add_params(pick)
    sized = chart.properties(width="container", height=height, description=description)
    return _dictionary(sized) | {"autosize": {"type": "fit-x", "contains": "padding"}}
