"""The figures of a page as Vega-Lite specifications.  Each draws records of `figures.py` and
nothing else; colours and fonts are the page's, so that they suit light and dark."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fa_tune.core.roofline import ROOFS, Roof
from fa_tune.report.page.figures import Records

if TYPE_CHECKING:
    import altair as alt

# altair is imported inside functions: it is slow to load.

Spec = dict[str, Any]
ROW_PIXELS = 20
ROOFLINE_PIXELS = 400
RATES_PIXELS = 200
ROOM_ABOVE = 1.08  # the highest bar, for its number
PANEL_PIXELS = 380  # wide, of several beside one another
WORST_SHARE = 0.7  # of the best, that curves show
FAR_PERCENT = 20.0  # behind the fastest: darker it does not get


def roofline(results: Records, gpu: str = "") -> Spec | None:
    """Rate over intensity for every result, under the roof of the GPU where it is known."""
    import altair as alt

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


def winners(results: Records) -> Spec | None:
    """Configs that are chosen somewhere, over all workloads: how far behind the fastest."""
    import altair as alt

    chosen = {r["config"] for r in results if r["chosen"]}
    cells = [r for r in results if r["config"] in chosen and r["loss_percent"] is not None]
    if not cells:
        return None
    labels = list(dict.fromkeys(r["short"] for r in cells))
    base = alt.Chart(_data(cells)).encode(
        x=alt.X("config:N", title="config", sort=sorted(chosen, key=_number)),
        y=alt.Y("short:N", title=None, sort=labels, axis=alt.Axis(labelLimit=_LABEL_PIXELS)),
        tooltip=_tooltip("workload", "config", "kernel", "loss_percent", "median_ms"),
    )
    squares = base.mark_rect().encode(
        color=alt.Color(
            "loss_percent:Q",
            title="% slower than the fastest",
            scale=alt.Scale(domain=[0, FAR_PERCENT], clamp=True, scheme="viridis", reverse=True),
            legend=alt.Legend(orient="bottom"),
        )
    )
    marks = base.transform_filter("datum.chosen").mark_text(text="★", color="black", size=13)
    chart = (squares + marks).properties(height=ROW_PIXELS * max(3, len(labels)))
    told = f"How far configs are behind the fastest on {len(labels)} workloads; ★ is chosen."
    return _spec(chart, "winners", told)


def rates(found: Records) -> Spec | None:
    """Rate by length, of what is chosen and of the libraries, for one kind at a time."""
    if not found:
        return None
    base, pick = _one_at_a_time(found, "kind", "rates")
    chart = _rate_bars(base, found).add_params(pick).properties(height=RATES_PIXELS)
    return _spec(chart, "rates", "Rate by sequence length, beside the libraries.")


def rate_panels(found: Records, title: str) -> Spec:
    """The same for all kinds beside one another, for a page that cannot be asked."""
    import altair as alt

    kinds = list(dict.fromkeys(r["kind"] for r in found))
    panels = []
    for kind in kinds:
        mine = [r for r in found if r["kind"] == kind]
        bars = _rate_bars(alt.Chart(_data(mine)), found)
        panels.append(bars.properties(title=kind, width=PANEL_PIXELS, height=RATES_PIXELS))
    chart = alt.concat(*panels, columns=2, title=title).resolve_legend(color="shared")
    return _dictionary(chart)


def _rate_bars(base: alt.Chart, found: Records) -> Any:
    import altair as alt

    kernels = list(dict.fromkeys(r["kernel"] for r in found))
    lengths = list(dict.fromkeys(r["length"] for r in found))
    x = alt.X("length:N", title="sequence length", sort=lengths, axis=alt.Axis(labelAngle=0))
    highest = max(r["highest"] for r in found)
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
        xOffset=alt.XOffset("kernel:N", sort=kernels),
        y=y,
        color=color,
        tooltip=_tooltip("workload", "kernel", "tflops", "times"),
    )
    ours = base.transform_filter("datum.times != null")
    told = (
        ours.transform_calculate(told="format(datum.times, '.2f') + '×'")
        .mark_text(dy=-7, fontWeight="bold")
        .encode(x=x, y="highest:Q", text="told:N", color=alt.value(_COLOURS[0]))
    )
    return bars + told


def ladder(found: Records) -> Spec | None:
    """Every counter of every rung, as a share of the largest of its line."""
    import altair as alt

    if not found:
        return None
    base, pick = _one_at_a_time(found, "workload", "ladder")
    rungs = list(dict.fromkeys(r["rung"] for r in found))
    counters = list(dict.fromkeys(r["counter"] for r in found))
    chart = (
        base.mark_rect()
        .encode(
            x=alt.X("rung:N", title="step", sort=rungs, axis=alt.Axis(labelAngle=0)),
            y=alt.Y(
                "counter:N", title=None, sort=counters, axis=alt.Axis(labelLimit=_LABEL_PIXELS)
            ),
            color=alt.Color(
                "share:Q",
                title="of the largest of its line",
                scale=alt.Scale(domain=[0, 1], scheme="viridis", reverse=True),
                legend=alt.Legend(orient="bottom"),
            ),
            tooltip=_tooltip("kernel", "counter", "shown"),
        )
        .add_params(pick)
        .properties(height=ROW_PIXELS * len(counters))
    )
    return _spec(chart, "ladder", f"{len(counters)} counters of the ladder, step by step.")


def curves(found: Records) -> Spec:
    """The share of the best over measurements, a panel for each space: solid at the median, dashed
    for all but the unluckiest; OTHERS is thin and grey."""
    import altair as alt

    named = list(dict.fromkeys(r["strategy"] for r in found))
    own = itertools.cycle(_COLOURS)
    colours = [_GREY if name == OTHERS else next(own) for name in named]
    thin = alt.condition(f"datum.strategy === '{OTHERS}'", alt.value(0.6), alt.value(1.6))
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
        panels.append(lines.properties(title=space, width=PANEL_PIXELS, height=RATES_PIXELS))
    return _dictionary(alt.concat(*panels, columns=2))


def ties(tied: Records) -> Spec | None:
    """Samples, ratio and interval of tied configs, for one workload at a time."""
    import altair as alt

    if not tied:
        return None
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
        color=alt.Color("chosen:N", title="chosen", legend=alt.Legend(orient="bottom")),
        tooltip=_tooltip("config", "kernel", "ratio", "low", "high"),
    )
    most = max(Counter(r["workload"] for r in tied).values())
    chart = (samples + interval + middle).add_params(pick)
    told = "Samples, median ratio and 95 % interval of the configs that are tied."
    return _spec(chart.properties(height=(ROW_PIXELS + 4) * max(3, most)), "ties", told)


def single_configs(losses: Records) -> Spec | None:
    """What one config for all workloads of a kind would lose: mean (bar) and worst (point)."""
    import altair as alt

    if not losses:
        return None
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


def on_inputs(figures: Records) -> Spec | None:
    """Time on each kind of inputs over that on the quickest, per config."""
    import altair as alt

    if not figures:
        return None
    base, pick = _one_at_a_time(figures, "workload", "inputs")
    chart = (
        base.mark_point(filled=True, size=70)
        .encode(
            x=alt.X(
                "over_fastest:Q",
                title="time over that on its quickest inputs",
                scale=alt.Scale(zero=False),
            ),
            y=alt.Y("config:N", title=None),
            color=alt.Color("inputs:N", legend=alt.Legend(orient="bottom", columns=2)),
            tooltip=_tooltip(
                *("config", "inputs", "median_ms", "over_fastest", "samples", "to_default")
            ),
        )
        .add_params(pick)
        .properties(height=ROW_PIXELS * max(3, len({r["config"] for r in figures})))
    )
    return _spec(chart, "inputs", "How much the time of each config depends on its inputs.")


def explanations(told: Records) -> Spec | None:
    """To what the runner-up loses its cycles, on each workload."""
    import altair as alt

    if not told:
        return None
    labels = list(dict.fromkeys(r["workload"] for r in told))
    chart = (
        alt.Chart(_data(told))
        .mark_bar()
        .encode(
            x=alt.X("share_percent:Q", title="% of the difference in cycles"),
            y=alt.Y("workload:N", title=None, sort=labels, axis=alt.Axis(labelLimit=_LABEL_PIXELS)),
            color=alt.Color("cause:N", legend=alt.Legend(orient="bottom", columns=1)),
            tooltip=_tooltip("workload", "cause", "share_percent", "winner", "runner_up"),
        )
        .properties(height=(ROW_PIXELS + 8) * max(2, len(labels)))
    )
    return _spec(chart, "explained", "What the runner-up loses its cycles to.")


def differences(compared: Records) -> Spec | None:
    """This run's time over the other's for every kernel that both have."""
    import altair as alt

    if not compared:
        return None
    labels = list(dict.fromkeys(r["short"] for r in compared))
    points = (
        alt.Chart(_data(compared))
        .mark_point(filled=True, size=45, opacity=0.7)
        .encode(
            x=alt.X("ratio:Q", title="time over the other's", scale=alt.Scale(zero=False)),
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
OTHERS = "Kernel Tuner"
_FORMATS = {"tflops": ".1f", "gb_per_s": ".0f", "median_ms": ".5r", "other_ms": ".5r"}
_TEXTS = (
    *("config", "kernel", "workload", "worst_on", "inputs", "cause", "winner", "runner_up"),
    *("counter", "shown"),
)


def _one_at_a_time(records: Records, field: str, name: str) -> tuple[alt.Chart, Any]:
    """A chart of the records of one value of a field, and what the reader chooses it by."""
    import altair as alt

    values = list(dict.fromkeys(r[field] for r in records))
    chosen = f"{field}_of_{name}"
    bind = alt.binding_select(options=values, name=f"{field.capitalize()}: ")
    base = alt.Chart(_data(records)).transform_filter(f"datum.{field} === {chosen}")
    return base, alt.param(name=chosen, value=values[0], bind=bind)


def _number(config: str) -> tuple[int, str]:
    digits = config.removeprefix("C")
    return (int(digits), "") if digits.isdigit() else (0, config)


def _data(records: Sequence[Mapping[str, Any]]) -> alt.Data:
    import altair as alt

    return alt.Data(values=[dict(record) for record in records])


def _tooltip(*names: str) -> list[Any]:
    import altair as alt

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
    import altair as alt

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
