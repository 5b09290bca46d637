"""The page of a proof."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fa_tune.core.files import save_file
from fa_tune.report.page.headline import Headline
from fa_tune.report.page.render import rendered
from fa_tune.report.page.source import Source
from fa_tune.report.proof import headline, sentences
from fa_tune.store.proof import Proof

_PAIRS: tuple[str, str, dict[str, Any]] = (
    "How much faster is the program?",
    "Each row is a run with fa-tune and one without, one right after the other; a speed above 1 is "
    "a gain.",
    {
        "pair": ("pair", 0),
        "first": ("first", None),
        "ours": ("with", 4),
        "torchs": ("without", 4),
        "speed": ("speed", 3),
    },
)
_SHARES: tuple[str, str, dict[str, Any]] = (
    "What served its attention?",
    "Of a run with fa-tune, by time. An entry is the registry's for the very problem (exact), for "
    "one near it, or none (default).",
    {
        "percent": ("share, %", 1),
        "ms": ("time, ms", 2),
        "runs": ("runs", 0),
        "by": ("served by", None),
        "entry": ("entry", None),
        "kernel": ("kernel", None),
        "why": ("why", None),
    },
)


def write_proof(path: Path, proof: Proof) -> None:
    """Write the page to a file; raises StorageError."""
    from fa_tune.report.page.sections import Contents, Section  # late, like what draws

    _, *rest = sentences(proof)
    pairs = [
        {
            "pair": i,
            "first": "with" if pair.ours_first else "without",
            "ours": pair.ours,
            "torchs": pair.torchs,
            "speed": pair.ours / pair.torchs if proof.higher_is_better else pair.torchs / pair.ours,
        }
        for i, pair in enumerate(proof.pairs, start=1)
    ]
    shares = [
        asdict(part.served)
        | {"runs": part.runs, "percent": 100 * part.share, "ms": 1e3 * part.time_s}
        for part in (proof.coverage.shares if proof.coverage else ())
    ]
    sections = [
        Section(*words, lambda _: None).filled(name, records)
        for name, words, records in (("pairs", _PAIRS, pairs), ("shares", _SHARES, shares))
        if records
    ]
    facts = {"command": shlex.join(proof.command), "started": proof.started}
    contents = Contents(Headline(headline(proof), tuple(rest), {}, ""), sections, [])
    save_file(path, rendered(contents, [Source("prove", (), facts=facts)]).encode())
