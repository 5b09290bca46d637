"""What a search found, workload by workload, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fa_tune.commands.views.registry_prose import against, as_written
from fa_tune.core import units
from fa_tune.core.model import Attempt, Outcome, Rejected, Variant, Workload, is_reference
from fa_tune.families.reference_kernels import REFERENCE_LABELS
from fa_tune.ops import flops
from fa_tune.report.summary import against_each

if TYPE_CHECKING:
    from fa_tune.store.table.rows import Row
    from fa_tune.tune.results import WorkloadResult


def label(workload: Workload, rows: Sequence[Row]) -> str:
    """How the table over it names a workload."""
    return str(rows[0].group) if rows else workload.key


def summary(one: WorkloadResult, name: str) -> str:
    """One line: what was chosen, its time and rate, what it ties with, how it stands to the
    references, and by which rule it was chosen."""
    decision = one.decision
    if decision is None:
        return f"{name}: nothing chosen: {one.problem or 'no config has a valid time'}."
    chosen = decision.chosen
    rate = flops.tflops(flops.matmul_flop(one.workload), chosen.median_s)
    parts = [
        f"{config_text(chosen.subject)} takes {units.format_seconds(chosen.median_s)} "
        f"({rate:.0f} TFLOP/s)"
    ]
    if others := [s for s in decision.tie_set if s != chosen.subject]:
        parts.append("tied with " + (f"{len(others)} others" if others[1:] else "1 other"))
    parts += _families(one)
    parts += _against_references(one)
    failed = Counter(
        a.outcome for a in one.attempts if a.outcome is not Outcome.OK and not _is_reference(a)
    )
    if failed:
        parts.append(
            "without a result: "
            + ", ".join(f"{n} {o.replace('_', ' ')}" for o, n in sorted(failed.items()))
        )
    text = f"{name}: {'; '.join(parts)}. {as_written(decision.sentence)}"
    if one.confirmation is not None and one.confirmation.upheld:
        found = one.confirmation
        text += f" Confirmed: run as a program runs it, it takes {against(found.ratio)}, in "
        text += f"{found.n} pairs."
    if one.exploration is not None:
        told = as_written(one.exploration.sentence)
        text += f" {told[0].upper()}{told[1:]}."
    return text


def config_text(subject: str) -> str:
    """A subject without its family, as people write it."""
    return Variant.from_key(subject).config


def rejected_line(rejected: Sequence[tuple[Variant, Rejected]]) -> str:
    """How many configs could not run, by constraint."""
    counts = Counter(why.constraint for _, why in rejected)
    reasons = ", ".join(f"{n} by {name}" for name, n in counts.most_common())
    noun = "config" if len(rejected) == 1 else "configs"
    return f"Not tried: {len(rejected)} {noun} that cannot run here ({reasons})."


def _families(one: WorkloadResult) -> list[str]:
    """Where several families were measured: the best of each that was not chosen, with its
    time over the chosen one's and over that of its own default."""
    assert one.decision is not None
    chosen = one.decision.chosen
    out = []
    for standing in one.families if len(one.families) > 1 else ():
        if standing.family == Variant.from_key(chosen.subject).family:
            continue
        times = f"{standing.median_s / chosen.median_s:.2f}x its time"
        if standing.ratio_to_default is not None:
            times += f" and {standing.ratio_to_default:.2f}x that of {standing.family}'s default"
        out.append(f"the best of {standing.family}, {config_text(standing.best)}, takes {times}")
    return out


def _against_references(one: WorkloadResult) -> list[str]:
    assert one.decision is not None
    ratios = one.decision.to_references.items()
    out = against_each({_reference(s): 1.0 / ratio.value for s, ratio in ratios}, "the speed")
    for attempt in one.attempts:
        if _is_reference(attempt) and attempt.outcome is not Outcome.OK:
            out.append(f"{_reference(attempt.subject)} was not measured ({attempt.reason})")
    return out


def _is_reference(attempt: Attempt) -> bool:
    return is_reference(attempt.subject)


def _reference(subject: str) -> str:
    name = subject.partition(":")[2]
    return REFERENCE_LABELS.get(name, name)
