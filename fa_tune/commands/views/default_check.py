"""Choices against the default, as people and scripts see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fa_tune.commands.shared.output import text_table
from fa_tune.commands.views.registry_table import workload_text
from fa_tune.evaluate.default_check import Against
from fa_tune.profile.stats import MARGIN, Ratio

SCHEMA = "fa-tune-check-1"
_HEADINGS = ("GPU", "workload", "method", "config", "/ default", "afterwards", "n", "", "from")


def check_table(found: Sequence[Against]) -> str:
    """One line per choice, those that are slower than the default first."""
    rows = [
        [
            one.gpu,
            workload_text(one.workload),
            one.method,
            one.chosen.partition(":")[2],
            "the default" if one.is_default else _ratio(one.ratio),
            _ratio(one.confirmed),
            str(one.n),
            "slower" if one.slower else "",
            one.source,
        ]
        for one in sorted(found, key=lambda one: not one.slower)
    ]
    return text_table(_HEADINGS, rows, {"GPU", "workload", "method", "config", "", "from"})


def check_sentence(found: Sequence[Against]) -> str:
    """`Slower than the default by more than 1 %: 0 of 48 choices; 20 are the default itself; 9
    were compared with it once more after the search.`"""
    slower = sum(one.slower for one in found)
    text = f"Slower than the default by more than {100 * MARGIN:g} %: {slower} of {len(found)}"
    text += " choice" if len(found) == 1 else " choices"
    own = sum(one.is_default for one in found)
    again = sum(one.confirmed is not None for one in found)
    unknown = sum(one.default is None for one in found)
    if own:
        text += f"; {own} {'is' if own == 1 else 'are'} the default itself"
    if again:
        text += f"; {again} {'was' if again == 1 else 'were'} compared with it once more after the "
        text += "search"
    if unknown:
        text += f"; {unknown} could not be compared, the default was not measured"
    return f"{text}."


def check_document(found: Sequence[Against]) -> dict[str, Any]:
    """The same for scripts; ratios are times over the default's."""
    return {
        "schema": SCHEMA,
        "slower": sum(one.slower for one in found),
        "choices": [
            {
                "gpu": one.gpu,
                "workload": one.workload.key,
                "method": one.method,
                "chosen": one.chosen,
                "default": one.default,
                "ratio": _object(one.ratio),
                "confirmed": _object(one.confirmed),
                "n": one.n,
                "slower": one.slower,
                "source": one.source,
            }
            for one in found
        ],
    }


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return ""
    interval = ratio.interval
    ends = f" ({interval.low:.4f} to {interval.high:.4f})" if interval is not None else ""
    return f"{ratio.value:.4f}{ends}"


def _object(ratio: Ratio | None) -> dict[str, Any] | None:
    if ratio is None:
        return None
    return {"value": ratio.value, "interval": list(ratio.interval) if ratio.interval else None}
