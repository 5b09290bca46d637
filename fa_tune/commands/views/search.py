"""What a search found, workload by workload, in sentences."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fa_tune.commands.shared import documents
from fa_tune.commands.shared.documents import Count, Stages, filled, write_document
from fa_tune.commands.shared.fitted_table import fitted_table
from fa_tune.commands.shared.output import say, tell
from fa_tune.commands.views import search_table
from fa_tune.commands.views.row_table import subject_of
from fa_tune.core.comparison import OnInputs
from fa_tune.core.model import DeviceInfo, Outcome, Rejected, Variant
from fa_tune.core.stats import Ratio
from fa_tune.core.units import format_seconds
from fa_tune.core.workload import Workload
from fa_tune.report.fitted import Legend
from fa_tune.report.formats import row_objects, write_text
from fa_tune.report.page.figures import places
from fa_tune.report.page.source import Source
from fa_tune.report.page.steps import Step, steps
from fa_tune.report.wrap import terminal_width
from fa_tune.search.decide import Decision
from fa_tune.store.table.from_attempts import rows_from_attempts
from fa_tune.store.table.rows import Row
from fa_tune.tune.results import Exploration, FamilyStanding, SearchResult, WorkloadResult

ALL = 1_000_000  # rows


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """The A/B test of a choice against the default; `upheld`: the choice stood."""

    chosen: str
    default: str
    ratio: Ratio
    n: Count
    upheld: bool


@dataclass(frozen=True, kw_only=True)
class WorkloadFound:
    """One workload of a search: the decision, or the problem in its place."""

    workload: Workload
    decision: Decision | None
    confirmation: Confirmation | None
    inputs: str
    on_inputs: Mapping[str, tuple[OnInputs, ...]]
    exploration: Exploration | None
    problem: str | None
    memory: documents.Memory | None
    families: tuple[FamilyStanding, ...]
    rows: tuple[documents.Row, ...]


@dataclass(frozen=True, kw_only=True)
class Search:
    """`fa-tune search --json`"""

    schema: Literal["fa-tune-search-1"]
    whose: str
    method: str
    device: DeviceInfo | None
    registry: Path | None
    measured: Count
    reused: Count
    warnings: tuple[str, ...]
    workloads: tuple[WorkloadFound, ...]
    steps: tuple[Step, ...]
    rejected: tuple[documents.Rejected, ...]
    stages_s: Stages


def workload_rows(result: SearchResult, found: WorkloadResult) -> list[Row]:
    """The table of one workload, in its order."""
    return rows_from_attempts(found.attempts, result.resources)


def all_rows(result: SearchResult) -> list[Row]:
    """The tables of all workloads."""
    return [row for found in result.results for row in workload_rows(result, found)]


def show_search(result: SearchResult, limit: int | None, *, wide: bool = False) -> None:
    """A table and a summary for each workload on standard output: fitted to the terminal, or with
    every column and config."""
    legend = None if wide else Legend()
    sentences = []
    for found in result.results:
        rows = workload_rows(result, found)
        name = str(rows[0].group) if rows else found.workload.key
        if legend is not None:
            lines = search_table.table_lines(found, rows, legend, limit, terminal_width())
            if lines:
                tell(name)
                say("\n".join([*lines, ""]))
        # Nothing but "no recording holds it" is told better by the one line below.
        elif any(row.outcome is not Outcome.NOT_RECORDED for row in rows):
            chosen = found.decision.chosen.subject if found.decision else None
            write_text(_by_choice(found, rows), sys.stdout, limit or ALL, chosen=chosen)
            say()
        sentences.append(search_table.sentence(found, name, legend, _gpu(result)))
    decided = any(found.decision for found in result.results)
    if both := [*steps(places([page_source(result)]))]:
        say(_steps_table(both))
    if legend is not None and decided:
        tell(search_table.key_of(result.results))
        say("\n".join([*legend.lines(terminal_width()), ""]))
    if result.rejected:
        sentences.append(rejected_line(result.rejected))
    if result.reused and result.measured:
        reused = f"{result.reused} taken from earlier runs"
        sentences.append(f"{result.measured} measured now, {reused}.")
    if result.registry is not None and decided:
        sentences.append(f"Kept in {result.registry}.")
    for text in (*sentences, f"Measurements: {result.source}."):
        tell(text, wide=wide)


def _steps_table(both: Sequence[Step]) -> str:
    """Training steps, and how much faster they are than the libraries'."""
    libraries = dict.fromkeys(name for step in both for name in step.speed_over)
    headings = ["training step", "forward", "backward", "both", *(f"over {n}" for n in libraries)]
    rows = [
        [
            step.problem,
            *map(format_seconds, (step.forward_s, step.backward_s, step.both_s)),
            *(f"{step.speed_over[n]:.2f}x" if n in step.speed_over else "" for n in libraries),
        ]
        for step in both
    ]
    return f"{fitted_table(headings, rows, {headings[0]})}\n"


def _by_choice(found: WorkloadResult, rows: Sequence[Row]) -> list[Row]:
    """The rows in the order of the ratios by which was chosen; the rest stays behind them."""
    if found.decision is None:
        return list(rows)
    ratio = {s.subject: s.to_chosen.value for s in found.decision.standings}
    return sorted(
        rows, key=lambda row: 0.0 if row.is_reference else ratio.get(subject_of(row), math.inf)
    )


def write_search(result: SearchResult, stages_s: Mapping[str, float]) -> None:
    """The result as JSON."""
    write_document(
        *(Search, result),
        whose=result.source,
        workloads=[
            filled(
                *(WorkloadFound, found),
                confirmation=found.confirmation and filled(Confirmation, found.confirmation),
                problem=found.problem or None,
                memory=documents.memory(found.memory_rate(_gpu(result))),
                rows=tuple(row_objects(workload_rows(result, found))),
            )
            for found in result.results
        ],
        steps=tuple(steps(places([page_source(result)]))),
        rejected=documents.rejected(result.rejected),
        stages_s=stages_s,
    )


def _gpu(result: SearchResult) -> str:
    return result.device.name if result.device else ""


def rejected_line(rejected: Sequence[tuple[Variant, Rejected]]) -> str:
    """How many configs could not run, by constraint."""
    counts = Counter(why.constraint for _, why in rejected)
    reasons = ", ".join(f"{n} by {name}" for name, n in counts.most_common())
    noun = "config" if len(rejected) == 1 else "configs"
    return f"Not tried: {len(rejected)} {noun} that cannot run here ({reasons})."


def page_source(result: SearchResult) -> Source:
    """The rows of all workloads, the choices and what was measured beside them."""
    device = result.device
    facts = {
        "recorded_at": result.source,  # which says when
        "inputs": ", ".join(dict.fromkeys(found.inputs for found in result.results)),
        "gpu": device.name if device else "",
        "driver": device.driver if device else "",
        "method": result.method,
        "registry": str(result.registry) if result.registry else "",
    }
    measured = [a.measurement for a in result.attempts if a.outcome is Outcome.OK]
    return Source(
        name="fa-tune search",
        rows=all_rows(result),
        chosen={
            found.workload.key: found.decision.chosen.subject
            for found in result.results
            if found.decision is not None
        },
        on_inputs={found.workload.key: found.on_inputs for found in result.results},
        profiled=[m for m in measured if m is not None],
        facts={name: value for name, value in facts.items() if value},
    )
