"""Put what recordings and declarations say into the pages that quote them: tables, figures,
pictures.

python tools/pages/ladder_page.py            rewrite the pages
python tools/pages/ladder_page.py --check    change nothing; 1 if a page is out of date

A table stands between `<!-- name -->` and `<!-- /name -->`.  A figure in a sentence is followed
by a comment that says what it is:

    ncu r3            a value: a counter of COUNTERS, ncu or events (ms), tflops, elapsed (cycles
                      of the ranking run, millions), ldmatrix, busy (shared memory, %)
    ncu r1/r2         how many times as large the first is
    ncu r3:r4         the change from the first to the second in %, with its sign
    effect buffer 64x64   median change of time in %, as in the table of pairs
    repeat cycles     largest difference between two runs under ncu in %
    samples ncu 1     how many measurements have so many samples; `all`: the samples in total;
                      `most`: those of the measurement with the most; `measurements`: all of them
    implied fa2       the clock in GHz if a kernel took as many cycles by events as under ncu
    read fa2          the clock in GHz that NVML showed after the samples
    cost falling most what inputs cost sm90's choices beside normal ones in %: `median` or `most`;
                      a dash where that was not recorded
    times packed fa4 least    how many times as fast as a library the choices of a kind of problems
                      are, `least` or `most`; a dash where that was not recorded
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import kernel_tables
import recorded_decode
import recorded_grid
import recorded_kinds
import recorded_tables
import speed_plot
from fa_tune.store.table.columns import SM_CLOCK
from fa_tune.store.table.from_attempts import CYCLES
from recorded import COUNTERS, Recorded
from recorded_tables import CHANGES, signed

ROOT = Path(__file__).resolve().parents[2]
TABLES: dict[str, dict[str, Callable[[Recorded], str]]] = {
    "docs/ladder.md": {
        "conditions": recorded_tables.conditions,
        "ladder": recorded_tables.ladder,
        "counters": recorded_tables.counters,
        "blocks": recorded_tables.blocks,
        "effects": recorded_tables.effects,
    },
    "docs/measuring.md": {"offsets": recorded_tables.offsets},
    "docs/kernel-sm80.md": {"constraints": lambda _: kernel_tables.sm80_constraints()},
    "docs/kernel-decode.md": {
        "fields": lambda _: kernel_tables.decode_fields(),
        "constraints": lambda _: kernel_tables.decode_constraints(),
    },
    "docs/kernel-sm90.md": {
        "example": lambda _: kernel_tables.sm90_example(),
        "fields": lambda _: kernel_tables.sm90_fields(),
        "constraints": lambda _: kernel_tables.sm90_constraints(),
        "registers": lambda _: kernel_tables.sm90_registers(),
    },
    "docs/results.md": {
        "sm90 h200": lambda data: recorded_grid.section(data, "sm90"),
        "sm80 h200": lambda data: recorded_grid.section(data, "sm80"),
        "decoding": recorded_decode.section,
        "sm90 h100": lambda _: recorded_grid.section(Recorded(recorded_grid.H100), "sm90"),
        "sm80 h100": lambda _: recorded_grid.section(Recorded(recorded_grid.H100), "sm80"),
        "decoding h100": lambda _: recorded_decode.section(Recorded(recorded_grid.H100)),
    },
    "README.md": {
        "speed": recorded_grid.small_table,
        "kinds": recorded_kinds.kinds_table,
        "picture": recorded_grid.pictured,
        "decoding": recorded_decode.summary,
    },
    "docs/why-this-wins.md": {},
}
PICTURES: dict[str, Callable[[Recorded], str]] = {"docs/speed_h200.svg": speed_plot.svg}
_OTHERS = ("ncu", "events", "tflops", "elapsed", "ldmatrix", "busy", "effect", "repeat", "samples")
_NAMES = "|".join([*COUNTERS, *_OTHERS, "implied", "read", "cost", "times"])
FIGURE = re.compile(rf"(?P<shown>[^\s(<]+)<!-- (?P<what>{_NAMES}) (?P<of>[^>]+) -->")


def value(data: Recorded, what: str, name: str) -> float:
    """A value of one subject of the ladder; raises KeyError for what the recordings lack."""
    if what in ("ncu", "events"):
        return data.time_ms(name, what)
    if what == "tflops":
        return data.tflops(name, "ncu")
    if what == "elapsed":
        return data.timed(name, "ncu").counters[CYCLES[0]].value * 1e-6
    if what == "ldmatrix":
        return data.ldmatrix(name)
    if what == "busy":
        return data.shared_busy(name)
    if what == "implied":
        return value(data, "elapsed", name) / value(data, "events", name)
    if what == "read":
        return data.timed(name, "events").counters[SM_CLOCK].value * 1e-9
    return data.counter(name, what)


def figure(data: Recorded, what: str, of: str) -> str:
    """The figure that a comment describes, as it is to be shown."""
    if what == "effect":
        field, _, blocks = of.rpartition(" ")
        return signed(statistics.median(data.effects(blocks, CHANGES[field])))
    if what == "repeat":
        return f"{data.repeat(of):.2f}"
    if what == "cost":
        inputs, which = of.split()
        costs = recorded_grid.input_costs(data, "sm90").ratios.get(inputs, {}).values()
        if not costs:
            return "–"
        cost = max(costs) if which == "most" else statistics.median(costs)
        return f"{100 * (cost - 1):.0f}"
    if what == "times":
        kind, library, which = of.split()
        times = recorded_kinds.times_of_kind(data, kind, library)
        end = max if which == "most" else min
        return f"{end(times):.2f}" if times else "–"
    if what == "samples":
        method, number = of.split()
        counts = data.samples(method)
        overall = {"all": sum(counts), "most": max(counts), "measurements": len(counts)}
        return f"{overall[number] if number in overall else counts.count(int(number)):,}"
    if what in ("ncu", "events") and (mark := re.search("[:/]", of)):
        one, other = of.split(mark[0])
        if mark[0] == ":":
            return signed(100 * (data.times(other, one, what) - 1))
        ratio = data.times(one, other, what)
        return f"{ratio:.{1 if ratio > 3 else 2}f}"
    if ":" in of:
        before, after = (value(data, what, name) for name in of.split(":"))
        return signed(100 * (after / before - 1))
    if "/" in of:
        first, second = (value(data, what, name) for name in of.split("/"))
        return f"{first / second:.{1 if first > 3 * second else 2}f}"
    shown = value(data, what, of)
    if what in ("ncu", "events"):
        return recorded_tables.shown_ms(shown)
    if what in COUNTERS:
        return f"{shown:,.{COUNTERS[what].digits}f}"
    return f"{shown:.{0 if what in ('tflops', 'ldmatrix', 'busy') else 2}f}"


def filled(text: str, page: str, data: Recorded) -> str:
    """The page with its tables and figures as the recordings have them."""
    for name, make in TABLES[page].items():
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        made = make(data)
        text, count = block.subn(lambda m, made=made: f"{m[1]}{made}\n{m[2]}", text)  # type: ignore[misc]
        if count != 1:
            raise ValueError(f"{page} has {count} blocks named {name}, not one")
    return FIGURE.sub(
        lambda m: f"{figure(data, m['what'], m['of'])}<!-- {m['what']} {m['of']} -->", text
    )


def made(path: str, data: Recorded) -> str:
    """What a page or picture should hold."""
    if path in PICTURES:
        return PICTURES[path](data)
    return filled((ROOT / path).read_text(encoding="utf-8"), path, data)


def main() -> int:
    """Rewrite the pages, or with --check say which are out of date."""
    data, stale = Recorded(), []
    for name in (*TABLES, *PICTURES):
        path, new = ROOT / name, made(name, data)
        if path.exists() and path.read_text(encoding="utf-8") == new:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            path.write_text(new, encoding="utf-8")
    if stale and "--check" in sys.argv:
        print(f"out of date: {', '.join(stale)}; run: python tools/pages/ladder_page.py")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
