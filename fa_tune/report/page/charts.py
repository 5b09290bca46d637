"""The figures of a page as Vega-Lite specifications.  Each draws records of `figures.py` and
nothing else; colours and fonts are the page's, so that they suit light and dark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fa_tune.ops.memory import ROOFS, Roof
from fa_tune.report.page.figures import Records

if TYPE_CHECKING:
    import altair as alt

# altair is imported inside functions: it is slow to load.

Spec = dict[str, Any]
ROW_PIXELS = 20
ROOFLINE_PIXELS = 400
FAR_PERCENT = 20.0  # behind the fastest: darker it does not get


def roofline(results: Records, gpu: str) -> Spec | None:
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


def ties(tied: Records) -> Spec | None:
    """Samples, ratio and interval of tied configs, for one workload at a time."""
    import altair as alt

    if not tied:
        return None
    labels = list(dict.fromkeys(r["workload"] for r in tied))
    pick = alt.param(
        name="workload_of_ties",
        value=labels[0],
        bind=alt.binding_select(options=labels, name="Workload: "),
    )
    y = alt.Y("config:N", title=None, sort=None)  # as the records stand, the fastest first
    base = alt.Chart(_data(tied)).transform_filter("datum.workload === workload_of_ties")
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
    most = max(sum(r["workload"] == label for r in tied) for label in labels)
    chart = (samples + interval + middle).add_params(pick)
    told = "Samples, median ratio and 95 % interval of the configs that are tied."
    return _spec(chart.properties(height=(ROW_PIXELS + 4) * max(3, most)), "ties", told)


def single_configs(losses: Records) -> Spec | None:
    """What one config for all workloads of a kind would lose: mean (bar) and worst (point)."""
    import altair as alt

    if not losses:
        return None
    kinds = list(dict.fromkeys(r["workloads"] for r in losses))
    pick = alt.param(
        name="kind_of_losses",
        value=kinds[0],
        bind=alt.binding_select(options=kinds, name="Workloads: "),
    )
    base = alt.Chart(_data(losses)).transform_filter("datum.workloads === kind_of_losses")
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
    most = max(sum(r["workloads"] == kind for r in losses) for kind in kinds)
    chart = (bars + points).add_params(pick).properties(height=ROW_PIXELS * max(3, most))
    return _spec(chart, "single", "What one config for all workloads of a kind would lose.")


def on_inputs(figures: Records) -> Spec | None:
    """Time on each kind of inputs over that on the quickest, per config."""
    import altair as alt

    if not figures:
        return None
    labels = list(dict.fromkeys(r["workload"] for r in figures))
    pick = alt.param(
        name="workload_of_inputs",
        value=labels[0],
        bind=alt.binding_select(options=labels, name="Workload: "),
    )
    chart = (
        alt.Chart(_data(figures))
        .transform_filter("datum.workload === workload_of_inputs")
        .mark_point(filled=True, size=70)
        .encode(
            x=alt.X(
                "over_fastest:Q",
                title="time over that on its quickest inputs",
                scale=alt.Scale(zero=False),
            ),
            y=alt.Y("config:N", title=None),
            color=alt.Color("inputs:N", legend=alt.Legend(orient="bottom", columns=2)),
            tooltip=_tooltip("config", "inputs", "median_ms", "over_fastest", "to_default"),
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
_FORMATS = {"tflops": ".1f", "gb_per_s": ".0f", "median_ms": ".4f", "other_ms": ".4f"}
_TEXTS = ("config", "kernel", "workload", "worst_on", "inputs", "cause", "winner", "runner_up")


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


def _spec(chart: Any, name: str, description: str) -> Spec:
    """The specification, as wide as the page."""
    import altair as alt

    with alt.data_transformers.enable(consolidate_datasets=False, max_rows=None):
        spec: Spec = chart.properties(width="container", description=description).to_dict()
    spec.pop("config", None)
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    spec["usermeta"] = {"figure": name}
    return spec
