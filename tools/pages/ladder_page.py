"""Put what recordings and declarations say into the pages that quote them: tables, figures,
pictures.

python tools/pages/ladder_page.py            rewrite the pages
python tools/pages/ladder_page.py --check    change nothing; 1 if a page is out of date

A table stands between `<!-- name -->` and `<!-- /name -->`.  A figure in a sentence is followed
by a comment that says what it is: `ncu r3`, `tensor r1/r2`, `instructions r3:r4` as `ladder.figure`
has it, or

    cost falling most         what inputs cost sm90's choices beside normal ones in %: `median` or
                              `most`
    times columns fa4 least   how many times as fast as a library the choices of a kind of problems
                              are: `least` or `most`
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import kernel_tables
import ladder
import recorded_decode
import recorded_grid
import recorded_models
import speed_plot
from fa_tune.families.decode.config import DecodeConfig
from fa_tune.families.sm80.config import FlashForwardKernelConfig
from fa_tune.families.sm80_bwd.config import Sm80BackwardConfig
from fa_tune.families.sm90.config import Sm90Config
from fa_tune.families.sm90_bwd.config import Sm90BackwardConfig
from recorded_grid import H100, H200

ROOT = Path(__file__).resolve().parents[2]
TABLES: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {
        "speed": lambda: recorded_grid.small_table(H200),
        "kinds": lambda: recorded_grid.kinds_table(H200),
        "picture": lambda: recorded_grid.pictured(H200),
        "decoding": lambda: recorded_decode.summary(H200),
        "models": recorded_models.sentence,
    },
    "docs/results.md": {
        "sm90 h200": lambda: recorded_grid.section(H200, "sm90"),
        "decoding": lambda: recorded_decode.section(H200),
        "models": recorded_models.summary,
        "sm90 h100": lambda: recorded_grid.short_section(H100),
    },
    "benchmarks/models_h200.md": {"models": recorded_models.by_model},
    "docs/ladder.md": ladder.TABLES,
    "docs/kernel-sm80.md": {"fields": lambda: kernel_tables.fields(FlashForwardKernelConfig)},
    "docs/kernel-sm90.md": {
        "example": kernel_tables.sm90_example,
        "fields": lambda: kernel_tables.fields(Sm90Config),
    },
    "docs/kernel-sm80-bwd.md": {
        "example": kernel_tables.sm80_bwd_example,
        "fields": lambda: kernel_tables.fields(Sm80BackwardConfig),
    },
    "docs/kernel-sm90-bwd.md": {
        "example": kernel_tables.sm90_bwd_example,
        "fields": lambda: kernel_tables.fields(Sm90BackwardConfig),
    },
    "docs/kernel-decode.md": {"fields": lambda: kernel_tables.fields(DecodeConfig)},
}
PICTURES: dict[str, Callable[[], str]] = {"docs/speed_h200.svg": lambda: speed_plot.svg(H200)}
_NAMES = "|".join([*ladder.COUNTERS, *ladder.METHODS, "tflops", "cost", "times"])
FIGURE = re.compile(rf"(?P<shown>[^\s(<]+)<!-- (?P<what>{_NAMES}) (?P<of>[^>]+) -->")


def figure(what: str, of: str) -> str:
    """The figure that a comment describes; raises KeyError for what the recordings lack."""
    if what == "cost":
        inputs, which = of.split()
        costs = recorded_grid.input_costs(H200)[inputs].values()
        cost = max(costs) if which == "most" else statistics.median(costs)
        return f"{100 * (cost - 1):.0f}"
    if what == "times":
        kind, library, which = of.split()
        end = {"most": max, "least": min}[which]
        return f"{end(one.times(library) for one in recorded_grid.of_kind(H200, kind)):.2f}"
    return ladder.figure(what, of)


def filled(text: str, page: str) -> str:
    """The page with its tables and figures as the recordings have them."""
    for name, make in TABLES[page].items():
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        made = make()
        text, count = block.subn(lambda m, made=made: f"{m[1]}{made}\n{m[2]}", text)  # type: ignore[misc]
        if count != 1:
            raise ValueError(f"{page} has {count} blocks named {name}, not one")
    return FIGURE.sub(lambda m: f"{figure(m['what'], m['of'])}<!-- {m['what']} {m['of']} -->", text)


def made(path: str) -> str:
    """What a page or picture should hold."""
    if path in PICTURES:
        return PICTURES[path]()
    return filled((ROOT / path).read_text(encoding="utf-8"), path)


def main() -> int:
    """Rewrite the pages, or with --check say which are out of date."""
    stale = []
    for name in (*TABLES, *PICTURES):
        path, new = ROOT / name, made(name)
        if not path.exists() or path.read_text(encoding="utf-8") != new:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(new, encoding="utf-8")
    if stale and "--check" in sys.argv:
        print(f"out of date: {', '.join(stale)}; run: python tools/pages/ladder_page.py")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
