"""A table that fits the terminal, whatever its columns."""

from __future__ import annotations

from collections.abc import Sequence

from fa_tune import families
from fa_tune.commands.shared.output import one_line, text_table
from fa_tune.report.fitted import Legend, fitted
from fa_tune.report.wrap import folded, terminal_width


def fitted_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], left: set[str], *, configs: str = ""
) -> str:
    """`text_table`, or where the terminal is too narrow for that, lines that fit: configs, which
    stand in the column of that name, by numbers with a legend, and what is too long even so
    folded."""
    drawn, width = text_table(headings, rows, left), terminal_width()
    if len(drawn.partition("\n")[0]) <= width:
        return drawn
    legend = Legend()
    cells = [
        [
            legend.number(_subject(cell)) if name == configs and cell else one_line(cell)
            for name, cell in zip(headings, row, strict=True)
        ]
        for row in rows
    ]
    shown = ["" if name == configs else name for name in headings]
    lines = fitted(shown, cells, width, left={*left, ""})
    return "\n".join([*(folded(line, width) for line in lines), *legend.lines(width)])


def _subject(config: str) -> str:
    """`family:config` of a short form; `:name` of what is none."""
    meant = [f.name for f in families.all_families() if f.recognises(config)]
    named = [name for name in meant if config.startswith(name)]
    return f"{(named or meant or [''])[0]}:{config}"
