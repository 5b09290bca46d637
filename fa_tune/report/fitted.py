"""Tables fitted to a terminal: configs by number with a legend, no column without a value."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fa_tune.report.wrap import folded

_GAP = "  "
_FURTHER = " " * 6  # before what does not fit on the first line of a row


class Legend:
    """The configs that were named, each by a number.  A subject is `family:config`, or `:name`
    for a kernel of nobody's."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, subject: str) -> str:
        """`#1` for a subject, the same each time."""
        return f"#{self._numbers.setdefault(subject, len(self._numbers) + 1)}"

    def numbered(self, sentence: str, subjects: Sequence[str]) -> str:
        """A sentence with the subjects' configs by their numbers."""
        for subject in sorted(subjects, key=len, reverse=True):
            config = _config(subject)
            if config in sentence:
                # No longer config begins with this one.
                pattern = rf"(?:\w+:)?{re.escape(config)}(?![+\w])"
                if re.search(pattern, sentence):
                    sentence = re.sub(pattern, self.number(subject), sentence)
        return sentence

    def __len__(self) -> int:
        return len(self._numbers)

    def by_family(self, after: int = 0) -> list[FamilyPart]:
        """The configs with numbers above `after`, a part for each family in the order in which they
        were named, and one for what is of none."""
        of_family: dict[str, dict[int, str]] = {}
        for subject, number in list(self._numbers.items())[after:]:
            of_family.setdefault(subject.partition(":")[0], {})[number] = _config(subject)
        named = sorted(of_family.items(), key=lambda item: not item[0])
        return [_family_part(name, numbered) for name, numbered in named]

    def lines(self, width: int, after: int = 0) -> list[str]:
        out: list[str] = []
        for part in self.by_family(after):
            if part.shared:
                out += _lines(f"{part.family}, all with ", part.shared, width)
            more = "+ " if part.shared else ""
            for number, (head, own) in part.configs.items():
                if part.family:
                    out += _lines(f"  #{number} {head}{f': {more}' if own else ''}", own, width)
                else:
                    out += textwrap.wrap(f"  #{number} {head}", width, subsequent_indent=_FURTHER)
        return out


@dataclass(frozen=True)
class FamilyPart:
    """Configs of one family: the words that all `shared` have, and by number each one's head,
    `sm90(FP16, 128, 128x128)`, and the words of its own."""

    family: str
    shared: tuple[str, ...]
    configs: Mapping[int, tuple[str, tuple[str, ...]]]


def _config(subject: str) -> str:
    return subject.partition(":")[2]


def _family_part(name: str, numbered: Mapping[int, str]) -> FamilyPart:
    if not name:
        return FamilyPart("", (), {n: (config, ()) for n, config in numbered.items()})
    parted = {n: _parted(config) for n, config in numbered.items()}
    words = [words for _, words in parted.values()]
    shared = [w for w in words[0] if all(w in others for others in words)] if words[1:] else []
    own = {
        n: (head, tuple(w for w in words if w not in shared)) for n, (head, words) in parted.items()
    }
    return FamilyPart(name, tuple(shared), own)


def _parted(config: str) -> tuple[str, list[str]]:
    """`sm90(FP16, 128, 128x128)` and its words."""
    head, _, words = config.partition("):")
    return f"{head.removesuffix(')')})", words.strip().split("+") if words.strip() else []


def _lines(begin: str, words: Sequence[str], width: int) -> list[str]:
    return folded(begin + "+".join(words), width, further=_FURTHER).splitlines()


def fitted(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    left: Collection[str] = (),
    spare: Sequence[str] = (),
    fold: bool = False,
) -> list[str]:
    """Columns beside one another, those named in `left` to the left.  Where the lines are too long,
    the `spare` ones go, in that order; then headings get several lines, if that is enough; then,
    with `fold`, every row gets several lines, broken between the same columns.  A column without a
    value is left out, save the first."""
    kept = [i for i in range(len(headings)) if i == 0 or any(row[i] for row in rows)]
    for heading in spare:
        if _line_width([headings, *rows], kept) <= width:
            break
        kept = [i for i in kept if headings[i] != heading]
    lines = [headings, *rows]
    if _line_width(lines, kept) > width:
        stacked = [*_stacked(headings, rows), *rows]
        lines = stacked if _line_width(stacked, kept) <= width else lines
    widths = {i: max(len(line[i]) for line in lines) for i in kept}
    return [
        begin
        + _GAP.join(
            line[i].ljust(widths[i]) if headings[i] in left else line[i].rjust(widths[i])
            for i in columns
        ).rstrip()
        for line in lines
        for begin, columns in (_parts(widths, width) if fold else [("", kept)])
    ]


def _parts(widths: Mapping[int, int], width: int) -> list[tuple[str, list[int]]]:
    """The columns of each line of a row, and what it begins with.  One line where a column is too
    wide for any."""
    if max(widths.values()) > width - len(_FURTHER):
        return [("", list(widths))]
    parts: list[tuple[str, list[int]]] = [("", [])]
    used = 0
    for i, own in widths.items():
        if parts[-1][1] and used + len(_GAP) + own > width:
            parts.append((_FURTHER, []))
            used = len(_FURTHER) - len(_GAP)
        used += (len(_GAP) if used else 0) + own
        parts[-1][1].append(i)
    return parts


def _line_width(lines: Sequence[Sequence[str]], kept: Sequence[int]) -> int:
    widths = [max(len(line[i]) for line in lines) for i in kept]
    return sum(widths) + len(_GAP) * (len(kept) - 1)


def _stacked(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """The headings in several lines, each no longer than a word or a cell of its column."""
    parts = []
    for i, heading in enumerate(headings):
        longest = max(len(text) for text in ("-", *heading.split(), *(row[i] for row in rows)))
        parts.append(textwrap.wrap(heading, longest, break_on_hyphens=False))
    height = max(map(len, parts))
    columns = [[""] * (height - len(part)) + part for part in parts]
    return [list(line) for line in zip(*columns, strict=True)]
