"""Verification through worker processes, remembered in the journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fa_tune.jobs import run_items
from fa_tune.model import Artifact, Attempt, Outcome, Verdict
from fa_tune.options import Progress
from fa_tune.search.journal import AttemptRecord, Fingerprint, Journal, VerdictRecord
from fa_tune.verify import verdict_from_json

HANDLER = "fa_tune.handlers.verify:handle"
NO_WORKLOAD = "verify"  # a verdict is about a kernel, not about one workload


def verdict_key(artifact: Artifact) -> str:
    """What a verdict is about: a variant with the traits it was compiled for."""
    return f"{artifact.variant.key} @ {artifact.traits}"


def verify_all(
    artifacts: Sequence[Artifact],
    *,
    fingerprint: Callable[[str], Fingerprint],
    journal: Journal,
    reuse: bool,
    device: int,
    seed: int,
    item_timeout_s: float,
    progress: Progress,
) -> tuple[dict[str, Verdict], dict[str, Attempt]]:
    """Verdicts by `verdict_key`, and attempts that ended without one (crashed, timed out).

    `fingerprint` gives the conditions of a family's attempts by its name.  Verdicts and
    failures are remembered, so that a resumed search does not die twice of the same kernel.
    """
    marks = {n: fingerprint(n).for_verify() for n in {a.variant.family for a in artifacts}}
    verdicts: dict[str, Verdict] = {}
    failures: dict[str, Attempt] = {}
    todo: dict[str, Artifact] = {}
    for artifact in artifacts:
        key = verdict_key(artifact)
        digest = marks[artifact.variant.family].digest
        known = journal.find_verdict(digest, key) if reuse else None
        failure = journal.find(digest, key, NO_WORKLOAD) if reuse else None
        if known is not None:
            verdicts[key] = known
        elif failure is not None:
            failures[key] = failure
        else:
            todo[key] = artifact
    if not todo:
        return verdicts, failures
    progress.stage("verify", len(todo))
    items = {
        key: {"subject": a.variant.key, "traits": a.traits, "cubin": a.cubin, "symbol": a.symbol}
        for key, a in todo.items()
    }
    shared = {"device": device, "seed": seed, "item_timeout_s": item_timeout_s}
    for result in run_items(HANDLER, shared, items, item_timeout_s=item_timeout_s):
        variant = todo[result.item].variant
        progress.advance(variant.config)
        if result.outcome is Outcome.OK and isinstance(result.value, dict):
            verdict = verdict_from_json(result.value)
            verdicts[result.item] = verdict
            journal.append(VerdictRecord(marks[variant.family], result.item, verdict))
        else:
            failure = Attempt(result.item, NO_WORKLOAD, result.outcome, result.reason)
            failures[result.item] = failure
            journal.append(AttemptRecord(marks[variant.family], failure))
    return verdicts, failures
