"""The README's picture: TFLOP/s of the chosen sm90 configs and of two libraries, as SVG.

A library's bar is our rate over the ratio paired within rounds, so that the heights compare as
the recordings do.  Colours suit light and dark pages; fonts are the reader's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fa_tune.core.workload import Workload
from recorded import Recorded
from recorded_grid import LABELS, cells, lines, rate, ratio, shown

D_HEAD = 128
LIBRARIES = ("fa4", "cudnn")
BARS = {"sm90": "fa-tune sm90", **{name: LABELS[name] for name in LIBRARIES}}
PANEL_WIDTH, PANEL_HEIGHT = 430, 190
LEFT, TOP = 44, 34  # of a panel: the axis' numbers, the title
BAR = 15
TOP_RATE, STEP = 900, 300

STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", Arial, sans-serif; fill: #1f2328 }
.title { font-weight: 600 }
.times { font-size: 11px; font-weight: 600; fill: #0a57c2 }
.grid { stroke: #8c959f; stroke-opacity: 0.35 }
.sm90 { fill: #1f6feb } .cudnn { fill: #5a9e4b } .fa4 { fill: #9a8fb3 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .times { fill: #79b8ff } .sm90 { fill: #388bfd }
}
"""


@dataclass(frozen=True)
class Group:
    """The bars of one length: TFLOP/s by name, and our speed over the faster library's."""

    seq_len: int
    rates: dict[str, float]
    times: float


def _group(data: Recorded, workload: Workload) -> Group | None:
    """None where the recordings lack one of the three."""
    measured, subject = cells(data)[workload], shown(data, workload, "sm90")
    if subject is None or any(f"ref:{name}" not in measured for name in LIBRARIES):
        return None
    ours = rate(workload, measured[subject])
    times = {name: ratio(measured, f"ref:{name}", subject) for name in LIBRARIES}
    rates = {"sm90": ours, **{name: ours / times[name] for name in LIBRARIES}}
    return Group(workload.seq_len_q, rates, min(times.values()))


def svg(data: Recorded) -> str:
    """The picture; deterministic, so that it can be compared with the one that is kept."""
    panels = [
        (f"{dtype}, {'causal' if causal else 'full'}", groups)
        for (d_head, causal, dtype), workloads in lines(data).items()
        if d_head == D_HEAD and (groups := [g for w in workloads if (g := _group(data, w))])
    ]
    rows = (len(panels) + 1) // 2
    width, height = 2 * PANEL_WIDTH, rows * (PANEL_HEIGHT + 50) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>Forward attention, d_head {D_HEAD}: TFLOP/s by sequence length</title>",
        f"<style>{STYLE}</style>",
        *_legend(),
    ]
    for i, (title, groups) in enumerate(panels):
        x, y = i % 2 * PANEL_WIDTH, 30 + i // 2 * (PANEL_HEIGHT + 50)
        parts += [f'<g transform="translate({x},{y})">', *_panel(title, groups), "</g>"]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _legend() -> Iterator[str]:
    x = LEFT
    for name, words in BARS.items():
        yield f'<rect class="{name}" x="{x}" y="8" width="12" height="12"/>'
        yield f'<text x="{x + 17}" y="18">{words}</text>'
        x += 34 + 7 * len(words)
    yield f'<text x="{x + 10}" y="18">n×: speed over the faster library</text>'


def _panel(title: str, groups: list[Group]) -> Iterator[str]:
    base = TOP + PANEL_HEIGHT - 20
    scale = (base - TOP) / TOP_RATE
    yield f'<text class="title" x="{LEFT}" y="{TOP - 12}">{title} (TFLOP/s)</text>'
    for value in range(0, TOP_RATE + 1, STEP):
        y = base - value * scale
        yield (
            f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{PANEL_WIDTH - 12}" y2="{y:.1f}"/>'
        )
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value}</text>'
    step = (PANEL_WIDTH - LEFT - 20) / len(groups)
    for i, group in enumerate(groups):
        x = LEFT + 6 + i * step
        middle = x + 1.5 * BAR
        for j, name in enumerate(BARS):
            tall = group.rates[name] * scale
            yield (
                f'<rect class="{name}" x="{x + j * BAR:.1f}" y="{base - tall:.1f}" '
                f'width="{BAR - 1}" height="{tall:.1f}"/>'
            )
        above = base - max(group.rates.values()) * scale - 5
        yield (
            f'<text class="times" x="{middle:.1f}" y="{above:.1f}" text-anchor="middle">'
            f"{group.times:.2f}×</text>"
        )
        yield f'<text x="{middle:.1f}" y="{base + 16}" text-anchor="middle">{group.seq_len}</text>'
