"""A table that fits the terminal, whatever its columns."""

from __future__ import annotations

from collections.abc import Sequence

from fa_tune import families
from fa_tune.core.errors import one_line
from fa_tune.report.fitted import Legend, fitted
from fa_tune.report.formats import text_table
from fa_tune.report.wrap import folded, terminal_width


def fitted_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], left: set[str], *, configs: str = ""
) -> str:
    """`text_table`, or where the terminal is too narrow for that, lines that fit: configs, which
    stand in the column of that name, by numbers with a legend, what all rows have in common once,
    and what is too long even so folded."""
    drawn, width = text_table(headings, rows, left), terminal_width()
    if len(drawn.partition("\n")[0]) <= width:
        return drawn
    legend = Legend()
    columns = {name: [*map(one_line, cells)] for name, *cells in zip(headings, *rows, strict=True)}
    common = {name: cells[0] for name, cells in columns.items() if cells[1:] and len({*cells}) == 1}
    common.pop(configs, None)
    if len(common) == len(columns):  # rows that nothing tells apart are still rows
        common = {}
    said = "; ".join(f"{name}: {cell}" if name else cell for name, cell in common.items() if cell)
    kept = {name: cells for name, cells in columns.items() if name not in common}
    if configs in kept:
        kept[configs] = [legend.number(subject_of(c)) if c else "" for c in kept[configs]]
    shown = ["" if name == configs else name for name in kept]
    beside = list(zip(*kept.values(), strict=True))
    lines = fitted(shown, beside, width, left={*left, ""}, fold=True)
    first = [f"all: {said}"] if said else []
    return "\n".join([*(folded(line, width) for line in (*first, *lines)), *legend.lines(width)])


def subject_of(config: str) -> str:
    """`family:config` of a short form; `:name` of what is none."""
    meant = [f.name for f in families.all_families() if f.recognises(config)]
    named = [name for name in meant if config.startswith(name)]
    return f"{(named or meant or [''])[0]}:{config}"
