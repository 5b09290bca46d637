"""Choices against the default, as people and scripts see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fa_tune.commands.shared.documents import Count, filled, write_document
from fa_tune.commands.shared.fitted_table import fitted_table
from fa_tune.commands.views.registry_table import workload_text
from fa_tune.core.comparison import LIMIT
from fa_tune.core.stats import MARGIN, Ratio
from fa_tune.core.workload import Workload
from fa_tune.lab.default_check import REGISTRY, DefaultComparison

# `ratio`: to the default's time; one word, that no narrow table breaks.
_HEADINGS = ("from", "GPU", "workload", "method", "config", "ratio", "afterwards", "n", "")


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One choice against the default; ratios are times over the default's."""

    gpu: str
    workload: Workload
    method: str
    chosen: str
    default: str | None
    ratio: Ratio | None
    confirmed: Ratio | None
    n: int | None
    slower: bool
    on_inputs: Mapping[str, Ratio | None]
    behind_on: tuple[str, ...]
    source: str


@dataclass(frozen=True, kw_only=True)
class RegistryCheck:
    """`fa-tune registry check --json`"""

    schema: Literal["fa-tune-check-1"]
    slower: Count
    choices: tuple[Choice, ...]


def check_table(found: Sequence[DefaultComparison]) -> str:
    """One line per choice, those that are slower than the default first."""
    rows = [
        [
            comparison.source.rpartition("/")[2],  # the folder is the GPU's
            comparison.gpu,
            workload_text(comparison.workload),
            comparison.method,
            comparison.chosen.partition(":")[2],
            "the default" if comparison.is_default else _ratio(comparison.ratio),
            _ratio(comparison.confirmed),
            str(comparison.n),
            _verdict(comparison),
        ]
        for comparison in sorted(found, key=lambda comparison: not comparison.slower)
    ]
    left = {"GPU", "workload", "method", "config", "", "from"}
    of_registry = all(comparison.source == REGISTRY for comparison in found)
    first = 1 if of_registry else 0  # where all are from there, nothing is told by that
    headings, rows = _HEADINGS[first:], [row[first:] for row in rows]
    return fitted_table(headings, rows, left, configs="config")


def _verdict(comparison: DefaultComparison) -> str:
    """`slower`, and on which inputs."""
    on = ", ".join(comparison.behind_on)
    return (f"slower on {on}" if on else "slower") if comparison.slower else ""


def check_sentence(found: Sequence[DefaultComparison]) -> str:
    """`Slower than the default by more than 1 %: 0 of 48 choices; 20 are the default itself; 9
    were compared with it once more after the search.`"""
    slower = sum(comparison.slower for comparison in found)
    text = f"Slower than the default by more than {100 * MARGIN:g} %"
    compared = sum(any(f.to_default for f in comparison.on_inputs) for comparison in found)
    if compared:
        text += f", or by more than {100 * LIMIT:g} % on any inputs"
    text += f": {slower} of {len(found)} {'choice' if len(found) == 1 else 'choices'}"
    own = sum(comparison.is_default for comparison in found)
    again = sum(comparison.confirmed is not None for comparison in found)
    unknown = sum(comparison.default is None for comparison in found)
    for n, one, more, what in (
        (own, "is", "are", "the default itself"),
        (again, "was", "were", "compared with it once more after the search"),
        (compared, "was", "were", "compared with it on other inputs"),
        (unknown, "could", "could", "not be compared, the default was not measured"),
    ):
        text += f"; {n} {one if n == 1 else more} {what}" if n else ""
    return f"{text}."


def write_check(found: Sequence[DefaultComparison]) -> None:
    """The same for scripts."""
    choices = [
        filled(Choice, one, on_inputs={on.inputs: on.to_default for on in one.on_inputs})
        for one in found
    ]
    write_document(RegistryCheck, slower=sum(c.slower for c in choices), choices=choices)


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return ""
    interval = ratio.interval
    ends = f" ({interval.low:.4f} to {interval.high:.4f})" if interval is not None else ""
    return f"{ratio.value:.4f}{ends}"
