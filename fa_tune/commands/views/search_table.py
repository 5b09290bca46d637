"""What a search found, fitted to a terminal: configs by number, with a legend.

All of it goes by the time over the chosen config's, paired within rounds, by which the choice was
made: the order of the rows, the mark, and the figures.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence

from fa_tune import families
from fa_tune.commands.views.registry_prose import against, data_dependence, without_family
from fa_tune.core import units
from fa_tune.core.model import Outcome, Variant, is_reference, reference_name
from fa_tune.families.reference_kernels import REFERENCE_LABELS
from fa_tune.search.decide import Decision
from fa_tune.store.table.rows import Row
from fa_tune.tune.results import WorkloadResult

DEFAULT_LIMIT = 5  # configs per workload, beside the chosen one and the default
DEFAULT_WIDTH = 80
CHOSEN, TIED = "*", "="
KEY = f"{CHOSEN} chosen, {TIED} tied with the fastest; x: time over the chosen one's, paired"
_HEADINGS = ("", "config", "time", "x", "TFLOP/s", "regs", "L2 %", "n", "")


class Legend:
    """The configs that were named, each by a number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, subject: str) -> str:
        """`#1` for a subject, the same each time."""
        return f"#{self._numbers.setdefault(subject, len(self._numbers) + 1)}"

    def numbered(self, sentence: str, subjects: Sequence[str]) -> str:
        """A sentence with the subjects' configs by their numbers."""
        for subject in sorted(subjects, key=len, reverse=True):
            config = Variant.from_key(subject).config
            if config in sentence:
                # No longer config begins with this one.
                pattern = rf"(?:\w+:)?{re.escape(config)}(?![+\w])"
                if re.search(pattern, sentence):
                    sentence = re.sub(pattern, self.number(subject), sentence)
        return sentence

    def lines(self, width: int) -> list[str]:
        """Every config, by family; what all of a family share is said once."""
        out: list[str] = []
        for name in families.family_names():
            own = {s: n for s, n in self._numbers.items() if Variant.from_key(s).family == name}
            out += _family_lines(name, own, width)
        return out


def _family_lines(name: str, numbers: Mapping[str, int], width: int) -> list[str]:
    parted = {n: _parted(Variant.from_key(s).config) for s, n in numbers.items()}
    if not parted:
        return []
    words = [words for _, words in parted.values()]
    shared = [w for w in words[0] if all(w in others for others in words)] if words[1:] else []
    lines = []
    if shared:
        lines += _folded(f"{name}, all with ", shared, width)
    more = "+ " if shared else ""
    for n, (head, own) in parted.items():
        rest = [word for word in own if word not in shared]
        lines += _folded(f"  #{n} {head}: {more}" if rest else f"  #{n} {head}", rest, width)
    return lines


def _parted(config: str) -> tuple[str, list[str]]:
    """`sm90(FP16, 128, 128x128)` and its words."""
    head, _, words = config.partition("):")
    return f"{head})", words.strip().split("+") if words.strip() else []


def _folded(begin: str, words: Sequence[str], width: int) -> list[str]:
    """Words joined by `+`, in lines that fit."""
    lines, line = [], begin
    for i, word in enumerate(words):
        piece = word + ("+" if i + 1 < len(words) else "")
        if len(line) + len(piece) > width and line.strip():
            lines.append(line.rstrip())
            line = " " * 6
        line += piece
    return [*lines, line]


def terminal_width() -> int:
    """Columns of the terminal, or of one that is not there."""
    return shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns


def wrapped(text: str, width: int) -> str:
    """A sentence in lines that fit."""
    return textwrap.fill(
        text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def table_lines(
    found: WorkloadResult, rows: Sequence[Row], legend: Legend, limit: int | None
) -> list[str]:
    """The references, the best configs, the chosen one and the default."""
    decision = found.decision
    if decision is None:
        return []
    by_subject = {f"{row.family}:{row.kernel}": row for row in rows}
    lines = [[*_reference_cells(row, decision)] for row in rows if row.is_reference]
    lines = [cells for cells in lines if cells]
    standings = sorted(decision.standings, key=lambda s: (s.to_chosen.value, s.subject))
    best = {s.subject for s in standings[: limit or DEFAULT_LIMIT]}
    shown = best | {decision.chosen.subject, decision.default}
    for standing in standings:
        if standing.subject in shown:
            row = by_subject[standing.subject]
            mark = CHOSEN if standing.subject == decision.chosen.subject else ""
            mark = mark or (TIED if standing.subject in decision.tie_set else "")
            note = "default" if standing.subject == decision.default else ""
            lines.append(
                [
                    *(mark, legend.number(standing.subject)),
                    *_figures(row, standing.median_s, standing.to_chosen.value, note),
                ]
            )
    hidden = sum(s.subject not in shown for s in standings)
    out = _aligned([_HEADINGS, *lines])
    return out + ([f"  … {hidden} more (--wide)"] if hidden else [])


def _reference_cells(row: Row, decision: Decision) -> list[str]:
    names = {REFERENCE_LABELS.get(reference_name(s), s): s for s in decision.to_references}
    subject = names.get(row.kernel)
    if subject is None or row.outcome is not Outcome.OK or row.rank_s is None:
        return []
    return [
        *("", row.kernel),
        *_figures(row, row.rank_s, 1.0 / decision.to_references[subject].value, ""),
    ]


def _figures(row: Row, seconds: float, ratio: float, note: str) -> list[str]:
    return [
        units.format_seconds(seconds),
        f"{ratio:.3f}",
        f"{row.matmul_tflops:.0f}" if row.matmul_tflops else "",
        str(row.registers or ""),
        f"{row.l2_hit_percent:.1f}" if row.l2_hit_percent is not None else "",
        str(row.n or ""),
        note,
    ]


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Columns that have something, beside one another."""
    kept = [i for i in range(len(_HEADINGS)) if i == 0 or any(line[i] for line in lines[1:])]
    widths = {i: max(len(line[i]) for line in lines) for i in kept}
    last = len(_HEADINGS) - 1
    out = []
    for line in lines:
        cells = [
            line[i].ljust(widths[i]) if i in (0, 1, last) else line[i].rjust(widths[i])
            for i in kept
        ]
        out.append("  ".join(cells).rstrip())
    return out


def sentence(found: WorkloadResult, name: str, legend: Legend) -> str:
    """What was chosen and why, with configs by number."""
    decision = found.decision
    if decision is None:
        return f"{name}: nothing chosen: {found.problem or 'no config has a valid time'}."
    subjects = [s.subject for s in decision.standings]
    text = f"{name}: {legend.numbered(without_family(decision.sentence), subjects)}"
    speeds = [
        f"{1.0 / ratio.value:.2f}x the speed of {REFERENCE_LABELS.get(reference_name(s), s)}"
        for s, ratio in decision.to_references.items()
    ]
    if speeds:
        text += f" It has {', '.join(speeds)}."
    missing = [a for a in found.attempts if is_reference(a.subject) and a.outcome is not Outcome.OK]
    for attempt in missing:
        label = REFERENCE_LABELS.get(reference_name(attempt.subject), attempt.subject)
        text += f" {label} was not measured ({attempt.reason})."
    failed = [
        a for a in found.attempts if not is_reference(a.subject) and a.outcome is not Outcome.OK
    ]
    if failed:
        noun = "config is" if len(failed) == 1 else "configs are"
        text += f" {len(failed)} {noun} without a result."
    if found.confirmation is not None and found.confirmation.upheld:
        ratio = found.confirmation.ratio
        text += f" Confirmed: run as a program runs it, it takes {against(ratio)}."
    figures = found.on_inputs.get(decision.chosen.subject, ())
    text += "".join(f" {told}" for told in data_dependence(figures, found.inputs))
    if found.exploration is not None:
        told = legend.numbered(without_family(found.exploration.sentence), subjects)
        text += f" {told[0].upper()}{told[1:]}."
    return text
