"""A proof in words."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from fa_tune.core.stats import MARGIN
from fa_tune.store.proof import Coverage, Proof, Verdict

ENDED = {
    "decided": "",
    "budget": "The budget ended the runs.",
    "interrupted": "Interrupted.",
    "failed": "A run failed.",
}


def headline(proof: Proof) -> str:
    """The answer in a line."""
    if proof.time_ratio is None:
        return "No pair of runs ended"
    speed = f"{1 / proof.time_ratio.value:.3f} times as fast with fa-tune"
    return {
        Verdict.FASTER: speed,
        Verdict.SLOWER: speed,
        Verdict.NO_GAIN: f"No gain of more than {100 * MARGIN:.0f} %: {speed}",
        Verdict.OPEN: f"Not decided: {speed}",
    }[proof.verdict]


def sentences(proof: Proof) -> Iterator[str]:
    """What was found, and what it rests on."""
    yield f"{headline(proof)}: {shlex.join(proof.command)}"
    if proof.time_ratio is not None:
        ours, torchs = proof.medians
        what = f"--metric {proof.metric!r}" if proof.metric else "wall time in seconds"
        interval = proof.time_ratio.interval
        sure = "one pair has no interval"
        if interval is not None:
            sure = f"95 % interval {1 / interval.high:.3f} to {1 / interval.low:.3f}"
        n = len(proof.pairs)
        yield (
            f"Medians of {what}: {ours:.4g} with, {torchs:.4g} without; {n} "
            f"pair{'s' if n > 1 else ''} of runs, {sure}."
        )
    if ENDED[proof.ended]:
        yield ENDED[proof.ended]
    if proof.problem is not None:
        yield f"{proof.problem[0].upper()}{proof.problem[1:]}."
    if proof.coverage is not None:
        yield _of_coverage(proof.coverage)
        yield from proof.coverage.notes


def _of_coverage(coverage: Coverage) -> str:
    if not coverage.attention_s:
        return "No time of attention was seen."
    ours = 100 * sum(part.share for part in coverage.shares if part.served.by == "fa_tune")
    return (
        f"Of {coverage.attention_s:.4g} s of attention in a run, fa-tune served {ours:.1f} %; "
        f"exact or near entries of the registry served {100 * coverage.tuned:.1f} %."
    )
