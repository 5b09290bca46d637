"""What strategies need on the recorded spaces: results of `fa-tune bench-search --json` joined
into one file, and the table of benchmarks/search_experiments.md made from it.

    python tools/pages/search_table.py join OUT.json RESULT.json…
    python tools/pages/search_table.py table RESULT.json benchmarks/search_experiments.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- searches -->", "<!-- /searches -->"
RANDOM = "random (calculated)"
OURS = ("learned", "learned + others", "learned (blind)", "learned (blind) + others")
FEW, MANY = "95%", "98%"


def joined(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One document with all scores; of a strategy that several have, the first."""
    spaces: dict[str, dict[str, Any]] = {}
    for document in documents:
        for space in document["spaces"]:
            into = spaces.setdefault(space["space"], {**space, "scores": []})
            known = {score["strategy"] for score in into["scores"]}
            into["scores"] += [s for s in space["scores"] if s["strategy"] not in known]
    plan = {"limit": documents[0]["plan"]["limit"]}  # what the parts had in common
    return {
        "schema": documents[0].get("schema"),
        "plan": plan,
        "spaces": [spaces[name] for name in sorted(spaces)],
    }


def table(document: Mapping[str, Any]) -> str:
    """Measurements needed by nine tenths of the runs for 95 and 98 % of the best, per space."""
    limit = document["plan"]["limit"]
    heads = ["Space", "random", *OURS, "best of Kernel Tuner's for 95 %", "for 98 %"]
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|--:" * (len(heads) - 1) + "|"]
    for space in document["spaces"]:
        scores = {score["strategy"]: score for score in space["scores"]}
        cells = [f"`{space['space'].split()[0]}`, {space['configs']}"]
        cells += [_pair(scores.get(name), limit) for name in (RANDOM, *OURS)]
        kernel_tuners = [s for name, s in scores.items() if name.startswith("KT ")]
        cells += [_best(kernel_tuners, level, limit) for level in (FEW, MANY)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def with_table(text: str, made: str) -> str:
    """A page with the table between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{made}\n{END}{after}"


def _pair(score: Mapping[str, Any] | None, limit: int) -> str:
    if score is None:
        return ""
    return "/".join(_count(score["needed"][level]["p90"], limit) for level in (FEW, MANY))


def _best(scores: Sequence[Mapping[str, Any]], level: str, limit: int) -> str:
    best = min(scores, key=lambda s: _rank(s["needed"][level]), default=None)
    if best is None:
        return ""
    p90, name = best["needed"][level]["p90"], best["strategy"].removeprefix("KT ")
    return f"{_count(p90, limit)} ({'all' if p90 is None else name})"


def _count(value: int | None, limit: int) -> str:
    return f">{limit}" if value is None else str(value)


def _rank(needed: Mapping[str, int | None]) -> tuple[float, float]:
    p90, median = needed["p90"], needed["median"]
    return float("inf") if p90 is None else p90, float("inf") if median is None else median


def main(arguments: Sequence[str]) -> None:
    """See the module."""
    what, target, *others = arguments
    if what == "join":
        documents = [json.loads(Path(path).read_text(encoding="utf-8")) for path in others]
        text = json.dumps(joined(documents), separators=(",", ":"))
        Path(target).write_text(text.replace('{"space":', '\n{"space":') + "\n", encoding="utf-8")
    else:
        document = json.loads(Path(target).read_text(encoding="utf-8"))
        page = Path(others[0])
        made = with_table(page.read_text(encoding="utf-8"), table(document))
        page.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
