"""The answer at the top of a page: what was found, on which GPU, how much faster than what, and
how sure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fa_tune.report.page.figures import Records
from fa_tune.report.page.source import FACTS, Source
from fa_tune.report.summary import counted

NEEDED = ("gpu", "driver", "recorded_at", "inputs")  # without which a number says little


@dataclass(frozen=True)
class Headline:
    """`title` is the answer in a line, `sentences` what it rests on; `facts` say where and how it
    was measured, and `missing` which of these no file says."""

    title: str
    sentences: tuple[str, ...]
    facts: Mapping[str, str]
    missing: str


def headline(answers: Records, sources: Sequence[Source], rows: int) -> Headline:
    """The headline over `answers`, one record for each workload (`figures.answers`), and the number
    of rows."""
    known, missing = conditions(sources)
    compared = [a for a in answers if a["times"] is not None]
    gpu = known.get("gpu", "an unknown GPU")
    if compared:
        title, sentences = _compared(compared, gpu)
    elif answers:
        title = f"The fastest config on {counted(len(answers), 'workload')}, beside no library"
        sentences = [f"On {gpu} no library was measured beside: {counted(rows, 'row')}."]
    else:
        title = f"{counted(rows, 'measurement')}, none of a config of fa-tune with a valid time"
        sentences = []
    return Headline(title, (*sentences, *_configs(answers)), known, missing)


def conditions(sources: Sequence[Source]) -> tuple[dict[str, str], str]:
    """Where and how measurements were taken, as far as their files say, by the names of `FACTS`;
    and a sentence on what none of them says, empty if nothing is missing."""
    facts = {
        name: "; ".join(dict.fromkeys(s.facts[name] for s in sources if name in s.facts))
        for name in FACTS
    }
    known = {name: value for name, value in facts.items() if value}
    unsaid = [FACTS[name] for name in NEEDED if name not in known]
    if not unsaid:
        return known, ""
    return known, f"No file says {_listed(unsaid, 'or')}: compare these numbers with no others."


def _compared(found: Records, gpu: str) -> tuple[str, list[str]]:
    low, high = (pick(a["times"] for a in found) for pick in (min, max))
    libraries = list(dict.fromkeys(name.rpartition(" ")[0] for a in found for name in _names(a)))
    against = libraries[0] if len(libraries) == 1 else "the fastest library"
    span = f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
    ahead = sum(_edge(a, "low") > 1 for a in found)
    behind = sum(_edge(a, "high") < 1 for a in found)
    level = len(found) - ahead - behind
    parts = [
        f"faster on {ahead}" if ahead else "",
        f"level on {level}" if level else "",
        f"slower on {behind}" if behind else "",
    ]
    mean = math.exp(math.fsum(math.log(a["times"]) for a in found) / len(found))
    sentences = [
        f"On {gpu}, what is chosen is compared with the fastest of {_listed(libraries, 'and')} on "
        f"each of {counted(len(found), 'workload')}: {_listed([p for p in parts if p], 'and')}; "
        f"{mean:.2f} times as fast in the geometric mean.",
        _sure(found),
    ]
    return f"{span} times as fast as {against}", sentences


def _names(answer: Mapping[str, Any]) -> list[str]:
    return str(answer["others"]).split(", ")


def _edge(answer: Mapping[str, Any], name: str) -> float:
    return float(answer["times"] if answer[name] is None else answer[name])


def _sure(found: Records) -> str:
    spans = [a["high"] - a["low"] for a in found if a["low"] is not None]
    if not spans:
        return "No ratio has an interval: too few samples were taken."
    without = len(found) - len(spans)
    apart = f"; {counted(without, 'ratio')} without one" if without else ""
    return f"The 95 % interval of such a ratio spans at most {max(spans):.3f}{apart}."


def _configs(answers: Records) -> list[str]:
    counts = Counter(answer["config"] for answer in answers)
    if len(counts) == 1:
        return [f"One config, {next(iter(counts))}, is chosen everywhere."]
    return [
        f"{len(counts)} configs are chosen; {most} most often, on {n}."
        for most, n in counts.most_common(1)
    ]


def _listed(words: Sequence[str], last: str) -> str:
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
