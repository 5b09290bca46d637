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
    x = alt.X(
        "flop_per_byte:Q",
        title="FLOP per byte that must move",
        scale=alt.Scale(type="log", nice=False),
    )
    y = alt.Y("tflops:Q", title="TFLOP/s (4·s²·d)", scale=alt.Scale(type="log", nice=False))
    chart: Any = (
        alt.Chart(_data(points))
        .mark_point(filled=True, size=45, opacity=0.75)
        .encode(
            x=x,
            y=y,
            color=alt.Color("family:N", title="kernels of", legend=alt.Legend(orient="bottom")),
            shape=alt.Shape("chosen:N", title="chosen", legend=alt.Legend(orient="bottom")),
            tooltip=_tooltip("config", "kernel", "workload", "tflops", "gb_per_s", "median_ms"),
        )
    )
    if gpu in ROOFS:
        line = alt.Chart(_data(_roof(points, ROOFS[gpu]))).mark_line(strokeDash=[4, 3])
        chart = line.encode(x=x, y=y) + chart
    return _spec(
        chart.properties(height=ROOFLINE_PIXELS),
        "roofline",
        f"Rate of every config over intensity. {len(points)} points.",
    )


def _roof(points: Records, roof: Roof) -> Records:
    ridge = roof.tflops * 1e12 / roof.bytes_per_s
    low = min(ridge, *(p["flop_per_byte"] for p in points)) / 1.5
    high = max(ridge, *(p["flop_per_byte"] for p in points)) * 1.5
    return [
        {
            "flop_per_byte": at,
            "tflops": min(roof.tflops, at * roof.bytes_per_s / 1e12),
            "family": "roof",
        }
        for at in (low, ridge, high)
    ]


def speedups(answers: Records) -> Spec | None:
    """The speed of what is chosen over the fastest library's on each workload, with its interval,
    in numbers beside."""
    points = [r for r in answers if r["times"] is not None]
    if not points:
        return None
    labels = list(dict.fromkeys(r["short"] for r in points))
    edges = [r[name] for r in points for name in ("low", "times", "high") if r[name]]
    least, most = min(1.0, *edges), max(1.0, *edges)
    room = (most - least or 0.1) / 20
    scale = alt.Scale(domain=[least - room, most + room], nice=False, zero=False)
    y = alt.Y("short:N", title=None, sort=labels, axis=alt.Axis(labelLimit=_LABEL_PIXELS))
    hints = _tooltip("workload", "config", "kernel", "times", "low", "high", "library", "median_ms")
    base = alt.Chart(_data(points)).encode(y=y, tooltip=hints)
    level = alt.Chart(_data([{"times": 1.0}])).mark_rule(strokeDash=[4, 3]).encode(x="times:Q")
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
    chart = (level + intervals + middles + numbers).properties(
        height=ROW_PIXELS * max(3, len(labels)), padding={"right": RATIO_PIXELS}
    )
    return _spec(chart, "answers", f"Speed over the fastest library on {len(labels)} workloads.")


def rates(found: Records) -> Spec:
    """Rate by length, of what is chosen and of the libraries, for one kind at a time."""
    base, pick = _one_at_a_time(found, "kind", "rates")
    chart = _rate_bars(base, found).add_params(pick).properties(height=RATES_PIXELS)
    return _spec(chart, "rates", "Rate by sequence length, beside the libraries.")


def rate_panels(found: Records, title: str) -> Spec:
    """The same for all kinds beside one another, for a page that cannot be asked."""
    kinds = list(dict.fromkeys(r["kind"] for r in found))
    panels = []
    for kind in kinds:
        mine = [r for r in found if r["kind"] == kind]
        bars = _rate_bars(alt.Chart(_data(mine)), found)
        panels.append(bars.properties(title=kind, width=PANEL_PIXELS, height=RATES_PIXELS))
    chart = alt.concat(*panels, columns=2, title=title).resolve_legend(color="shared")
    return _dictionary(chart)


def _rate_bars(base: alt.Chart, found: Records) -> Any:
    kernels = list(dict.fromkeys(r["kernel"] for r in found))
    lengths = list(dict.fromkeys(r["length"] for r in found))
    x = alt.X("length:N", title="sequence length", sort=lengths, axis=alt.Axis(labelAngle=0))
    highest = max(r["tflops"] for r in found)
    scale = alt.Scale(domain=[0, ROOM_ABOVE * highest])
    y = alt.Y("tflops:Q", title="TFLOP/s (4·s²·d)", scale=scale)
    color = alt.Color(
        "kernel:N",
        title=None,
        sort=kernels,
        scale=alt.Scale(domain=kernels, range=_COLOURS[: len(kernels)]),
        legend=alt.Legend(orient="bottom"),
    )
    bars = base.mark_bar().encode(
        x=x,
        xOffset=alt.XOffset("kernel:N", scale=alt.Scale(domain=kernels)),
        y=y,
        color=color,
        tooltip=_tooltip("workload", "kernel", "tflops", "times"),
    )
    ours = base.transform_filter("datum.times != null")
    numbers = (
        ours.transform_calculate(shown="format(datum.times, '.2f') + '×'")
        .mark_text(dy=-7, fontWeight="bold")
        .encode(
            x=x,
            xOffset=alt.XOffset("kernel:N", scale=alt.Scale(domain=kernels)),
            y="tflops:Q",
            text="shown:N",
            color=alt.value(_COLOURS[0]),
        )
    )
    return bars + numbers


def counters(found: Records) -> Spec:
    """Every counter of every profiled kernel, as a share of the largest of its line."""
    base, pick = _one_at_a_time(found, "workload", "counters")
    kernels = list(dict.fromkeys(r["config"] for r in found))
    lines = list(dict.fromkeys(r["counter"] for r in found))
    squares = base.mark_rect().encode(
        x=alt.X("config:N", title=None, sort=kernels, axis=alt.Axis(labelAngle=0)),
        y=alt.Y("counter:N", title=None, sort=lines, axis=alt.Axis(labelLimit=_LABEL_PIXELS)),
        color=alt.Color("share:Q", scale=alt.Scale(domain=[0, 1], scheme="blues"), legend=None),
        tooltip=_tooltip("kernel", "counter", "shown"),
    )
    chart = squares.add_params(pick).properties(height=ROW_PIXELS * len(lines))
    return _spec(chart, "counters", f"{len(lines)} counters of {len(kernels)} kernels.")


def curves(found: Records, others: str) -> Spec:
    """The share of the best over measurements, a panel for each space: solid at the median, dashed
    for all but the unluckiest; those of `others` are thin and grey."""
    named = list(dict.fromkeys(r["strategy"] for r in found))
    own = itertools.cycle(_COLOURS)
    colours = [_GREY if name == others else next(own) for name in named]
    thin = alt.condition(f"datum.strategy === '{others}'", alt.value(0.6), alt.value(1.6))
    panels = []
    for space in dict.fromkeys(r["space"] for r in found):
        mine = [r for r in found if r["space"] == space and r["share"] >= WORST_SHARE]
        base = alt.Chart(_data(mine))
        lines = base.mark_line(interpolate="step-after").encode(
            x=alt.X("measurements:Q", title="measurements"),
            y=alt.Y(
                "share:Q", title="share of the best", scale=alt.Scale(domain=[WORST_SHARE, 1.003])
            ),
            detail="line:N",
            color=alt.Color(
                "strategy:N",
                title=None,
                sort=named,
                scale=alt.Scale(domain=named, range=colours),
                legend=alt.Legend(orient="bottom", columns=4, symbolType="stroke"),
            ),
            strokeWidth=thin,
            strokeDash=alt.StrokeDash(
                "quantile:N",
                title=None,
                sort=list(dict.fromkeys(r["quantile"] for r in found)),
                legend=alt.Legend(orient="bottom", symbolType="stroke"),
            ),
        )
        title = alt.Title(space, fontSize=9)  # the longest is as wide as its panel
        panels.append(lines.properties(title=title, width=PANEL_PIXELS, height=RATES_PIXELS))
    return _dictionary(alt.concat(*panels, columns=2))


def ties(tied: Records) -> Spec:
    """Samples, ratio and interval of tied configs, for one workload at a time."""
    base, pick = _one_at_a_time(tied, "workload", "ties")
    y = alt.Y("config:N", title=None, sort=None)  # as the records stand, the fastest first
    scale = alt.Scale(zero=False)
    samples = (
        base.transform_flatten(["samples"])
        .mark_tick(opacity=0.35, thickness=1)
        .encode(x=alt.X("samples:Q", title="time over the fastest's", scale=scale), y=y)
    )
    interval = base.mark_rule(size=3).encode(x=alt.X("low:Q", scale=scale), x2="high:Q", y=y)
    middle = base.mark_point(filled=True, size=70).encode(
        x=alt.X("ratio:Q", scale=scale),
        y=y,
        color=_coloured("role", ["chosen", "as fast"]),
        tooltip=_tooltip("config", "kernel", "ratio", "low", "high"),
    )
    most = max(Counter(r["workload"] for r in tied).values())
    chart = (samples + interval + middle).add_params(pick)
    told = "Samples, median ratio and 95 % interval of the configs that are tied."
    return _spec(chart.properties(height=(ROW_PIXELS + 4) * max(3, most)), "ties", told)


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
    most = max(Counter(r["workloads"] for r in losses).values())
    chart = (bars + points).add_params(pick).properties(height=ROW_PIXELS * max(3, most))
    return _spec(chart, "single", "What one config for all workloads of a kind would lose.")


def on_inputs(figures: Records) -> Spec:
    """Time on each kind of inputs over that on the quickest, per workload and config."""
    kinds = list(dict.fromkeys(r["inputs"] for r in figures))
    rows = len({(r["workload"], r["config"]) for r in figures})
    base = alt.Chart(_data(figures)).transform_calculate(row="datum.short + ' ' + datum.config")
    worst = max(1.2, *(r["over_fastest"] for r in figures))
    chart = _grid(base, ("inputs", kinds), "row", "over_fastest", domain=(1.0, worst), format=".2f")
    told = "How much the time of each config depends on its inputs."
    return _spec(chart.properties(height=ROW_PIXELS * max(2, rows)), "inputs", told)


def busy(found: Records) -> Spec:
    """How busy each kernel keeps the parts of the GPU, with the numbers in the squares."""
    base, pick = _one_at_a_time(found, "workload", "busy")
    units = [unit for unit in (*UNITS, MEMORY) if any(unit in r for r in found)]
    chart = _grid(
        base.transform_fold(units, as_=["unit", "percent"]), ("unit", units), "config", "percent"
    )
    told = "How busy each kernel keeps tensor cores, exponentials, issue slots and memory."
    return _spec(chart.add_params(pick).properties(height=_height(found)), "busy", told)


def _grid(base: Any, columns: tuple[str, list[str]], row: str, value: str, **of: Any) -> Any:
    """Squares of a value, darker for more, with its number: `columns` are a field and its values,
    `of` domain and format."""
    low, high = of.get("domain", (0, 100))
    field, values = columns
    placed = base.encode(
        x=alt.X(
            f"{field}:N",
            title=None,
            sort=values,
            axis=alt.Axis(labelAngle=0, orient="top", ticks=False),
        ),
        y=alt.Y(f"{row}:N", title=None, sort=None, axis=alt.Axis(labelLimit=_LABEL_PIXELS)),
        tooltip=_tooltip("workload", "config", "kernel"),
    )
    squares = placed.mark_rect().encode(
        color=alt.Color(
            f"{value}:Q",
            scale=alt.Scale(domain=[low, high], clamp=True, scheme="blues"),
            legend=None,
        )
    )
    numbers = placed.mark_text().encode(
        text=alt.Text(f"{value}:Q", format=of.get("format", ".0f")),
        color=alt.condition(
            f"datum.{value} > {(low + high) / 2}", alt.value("white"), alt.value("#1b1f24")
        ),
    )
    return squares + numbers


def _height(found: Records) -> int:
    """Of a row for each kernel of the workload that has most."""
    return (ROW_PIXELS + 4) * max(2, *Counter(r["workload"] for r in found).values())


def waits(found: Records) -> Spec:
    """What the cycles of each kernel's warps were spent on."""
    base, pick = _one_at_a_time(found, "workload", "waits")
    bars = (
        base.transform_fold(list(REASONS), as_=["cause", "percent"])
        .mark_bar()
        .encode(
            x=alt.X("percent:Q", title="% of the warps' cycles", scale=alt.Scale(domain=[0, 100])),
            y=alt.Y("config:N", title=None, sort=None, axis=alt.Axis(labelLimit=_LABEL_PIXELS)),
            color=_coloured("cause", list(REASONS)),
            tooltip=_tooltip("config", "kernel", "cause", "percent"),
        )
    )
    told = "What the warps of each kernel spend their cycles on."
    return _spec(bars.add_params(pick).properties(height=_height(found)), "waits", told)


def explanations(found: Records) -> Spec:
    """What the runner-up spends more cycles on, on each workload."""
    labels = list(dict.fromkeys(r["workload"] for r in found))
    causes = list(dict.fromkeys(r["cause"] for r in found))
    bars = (
        alt.Chart(_data(found))
        .mark_bar()
        .encode(
            x=alt.X("more_percent:Q", title="more cycles than the winner, % of the winner's"),
            y=alt.Y("workload:N", title=None, sort=labels, axis=alt.Axis(labelLimit=_LABEL_PIXELS)),
            color=_coloured("cause", causes),
            tooltip=_tooltip("workload", "cause", "more_percent", "winner", "runner_up"),
        )
    )
    level = alt.Chart(_data([{"at": 0.0}])).mark_rule().encode(x="at:Q")
    chart = (bars + level).properties(height=(ROW_PIXELS + 8) * max(2, len(labels)))
    return _spec(chart, "explained", "What the runner-up spends more cycles on.")


def _coloured(field: str, values: Sequence[str]) -> Any:
    return alt.Color(
        f"{field}:N",
        title=None,
        sort=values,
        scale=alt.Scale(domain=values, range=_COLOURS[: len(values)]),
        legend=alt.Legend(orient="bottom", columns=2),
    )


def differences(compared: Records) -> Spec:
    """This run's time over the other's for every kernel that both have."""
    labels = list(dict.fromkeys(r["short"] for r in compared))
    points = (
        alt.Chart(_data(compared))
        .mark_point(filled=True, size=45, opacity=0.7)
        .encode(
            x=alt.X("ratio:Q", title="time in A over time in B", scale=alt.Scale(zero=False)),
            y=alt.Y("short:N", title=None, sort=labels, axis=alt.Axis(labelLimit=_LABEL_PIXELS)),
            tooltip=_tooltip("workload", "config", "kernel", "ratio", "median_ms", "other_ms"),
        )
    )
    level = alt.Chart(_data([{"ratio": 1.0}])).mark_rule(strokeDash=[4, 3]).encode(x="ratio:Q")
    chart = (level + points).properties(height=ROW_PIXELS * max(3, len(labels)))
    return _spec(chart, "differences", f"The difference of two runs: {len(compared)} points.")


_LABEL_PIXELS = 150  # of a workload's name, so that a telephone has room for the figure
_ACCENT = "#e45756"
# Readable on light and dark; what is chosen comes first.
_COLOURS = ("#1f77d0", "#5a9e4b", "#d9822b", "#9a6fc4", "#c2504f", "#2a9d9d", "#8c6d31", "#b0578d")
_GREY = "#9aa0a6"
_FORMATS = {"tflops": ".1f", "gb_per_s": ".0f", "median_ms": ".5r", "other_ms": ".5r"}
_TEXTS = (
    *("config", "kernel", "workload", "worst_on", "inputs", "cause", "winner", "runner_up"),
    *("counter", "shown", "unit", "library"),
)


def _one_at_a_time(records: Records, field: str, name: str) -> tuple[alt.Chart, Any]:
    """A chart of the records of one value of a field, and what the reader chooses it by."""
    values = list(dict.fromkeys(r[field] for r in records))
    chosen = f"{field}_of_{name}"
    bind = alt.binding_select(options=values, name=f"{field.capitalize()}: ")
    base = alt.Chart(_data(records)).transform_filter(f"datum.{field} === {chosen}")
    return base, alt.param(name=chosen, value=values[0], bind=bind)


def _data(records: Sequence[Mapping[str, Any]]) -> alt.Data:
    return alt.Data(values=[dict(record) for record in records])


def _tooltip(*names: str) -> list[Any]:
    return [
        alt.Tooltip(
            f"{name}:{'N' if name in _TEXTS else 'Q'}",
            title=name.replace("_", " "),
            **({} if name in _TEXTS else {"format": _FORMATS.get(name, ".3f")}),
        )
        for name in names
    ]


def _dictionary(chart: Any) -> Spec:
    """The specification without altair's own settings."""
    with alt.data_transformers.enable(consolidate_datasets=False, max_rows=None):
        spec: Spec = chart.to_dict()
    spec.pop("config", None)
    return spec


def _spec(chart: Any, name: str, description: str) -> Spec:
    """The specification, as wide as the page."""
    spec = _dictionary(chart.properties(width="container", description=description))
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    spec["usermeta"] = {"figure": name}
    return spec
