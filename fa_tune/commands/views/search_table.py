"""What a search found, fitted to a terminal: configs by number, with a legend.

All of it goes by the time over the chosen config's, paired within rounds, by which the choice was
made: the order of the rows, the mark, and the figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fa_tune.commands.views.registry_prose import against, data_dependence, without_family
from fa_tune.commands.views.row_table import figures, subject_of
from fa_tune.core.model import BARE_READ, Outcome, Variant, is_reference, reference_name
from fa_tune.libraries import label_of
from fa_tune.report.fitted import Legend, fitted
from fa_tune.search.decide import Decision
from fa_tune.store.table.rows import Row
from fa_tune.tune.results import WorkloadResult

DEFAULT_LIMIT = 5  # the fastest of a workload; the chosen one and the default are shown as well
CHOSEN, TIED = "*", "="
KEY = (
    f"{CHOSEN} chosen; {TIED} cannot be told from the fastest; x: time over the chosen one's, "
    "paired within rounds"
)
ERROR_KEY = f"{KEY}; error: root mean square, over FlashAttention 2's"
_HEADINGS = ("", "config", "time", "x", "TFLOP/s", "GB/s", "regs", "L2 %", "n", "error", "")
_LEFT = ("", "config")
_SPARE = ("n", "error", "regs", "L2 %", "TFLOP/s")


def table_lines(
    found: WorkloadResult, rows: Sequence[Row], legend: Legend, limit: int | None, width: int
) -> list[str]:
    """The references, the best configs, the chosen one and the default."""
    decision = found.decision
    if decision is None:
        return []
    standings = sorted(decision.standings, key=lambda s: (s.to_chosen.value, s.subject))
    best = {s.subject for s in standings[: limit or DEFAULT_LIMIT]}
    shown = best | {decision.chosen.subject, decision.default}
    references = {label_of(s): 1.0 / ratio.value for s, ratio in decision.to_references.items()}
    by_subject = {subject_of(row): row for row in rows}
    lines = [
        [*_line("", row.kernel, row, row.rank_s, references[row.kernel]), "", ""]
        for row in rows
        if row.is_reference and row.kernel in references and row.rank_s is not None
    ]
    for one in (s for s in standings if s.subject in shown):
        row, name = by_subject[one.subject], legend.number(one.subject)
        cells = _line(_mark(one.subject, decision), name, row, one.median_s, one.to_chosen.value)
        error = _error(found, one.subject)
        told = "" if error is None else f"{error:.2f}"
        lines.append([*cells, told, "default" if one.subject == decision.default else ""])
    hidden = sum(s.subject not in shown for s in standings)
    out = fitted(_HEADINGS, lines, width, left=_LEFT, spare=_SPARE)
    return out + ([f"  … {hidden} more (--wide)"] if hidden else [])


def key_of(results: Iterable[WorkloadResult]) -> str:
    """What marks and columns of these tables mean."""
    known = any(_error(found, s) is not None for found in results for s in found.on_inputs)
    return ERROR_KEY if known else KEY


def _error(found: WorkloadResult, subject: str) -> float | None:
    """On the inputs of the search, over FlashAttention 2's; None where nobody looked."""
    told = found.on_inputs.get(subject, ())
    return next((f.error for f in told if f.inputs == found.inputs), None)


def _mark(subject: str, decision: Decision) -> str:
    """The fastest is tied only with something else: with what was chosen, or it needs no mark."""
    chosen, leader = decision.chosen.subject, decision.leader.subject
    if subject == chosen:
        return CHOSEN
    is_tied = subject in decision.tie_set and (subject != leader or chosen in decision.tie_set)
    return TIED if is_tied else ""


def _line(mark: str, name: str, row: Row, seconds: float, ratio: float) -> list[str]:
    cells = figures(row, seconds, ratio)
    return [mark, name, *(cells[heading] for heading in _HEADINGS[2:-2])]


def sentence(found: WorkloadResult, name: str, legend: Legend | None, gpu: str = "") -> str:
    """What was chosen and why, with configs by number; without a legend they are in full, and how
    other families stand to the choice is told as well."""
    decision = found.decision
    if decision is None:
        return f"{name}: nothing chosen: {found.problem or 'no config has a valid time'}."
    subjects = [s.subject for s in decision.standings]

    def named(text: str) -> str:
        text = without_family(text)
        return text if legend is None else legend.numbered(text, subjects)

    texts = [named(decision.sentence)]
    speeds = [
        f"{1.0 / ratio.value:.2f}x the speed of {label_of(s)}"
        for s, ratio in decision.to_references.items()
        if reference_name(s) != BARE_READ
    ]
    if speeds:
        texts.append(f"It has {', '.join(speeds)}.")
    if legend is None:
        texts += _other_families(found)
    if (rate := found.memory_rate(gpu)) is not None:
        texts.append(rate.sentence)
    failed = [a for a in found.attempts if a.outcome is not Outcome.OK]
    ours = [a for a in failed if not is_reference(a.subject)]
    texts += [
        f"{label_of(a.subject)} was not measured ({a.reason})." for a in failed if a not in ours
    ]
    if ours:
        noun = "configs are" if ours[1:] else "config is"
        texts.append(f"{len(ours)} {noun} without a result.")
    if found.confirmation is not None and found.confirmation.upheld:
        gain = against(found.confirmation.ratio)
        texts.append(f"Confirmed: run as a program runs it, it takes {gain}.")
    texts += data_dependence(found.on_inputs.get(decision.chosen.subject, ()), found.inputs)
    if found.exploration is not None:
        explored = named(found.exploration.sentence)
        texts.append(f"{explored[0].upper()}{explored[1:]}.")
    return f"{name}: {' '.join(texts)}"


def _other_families(found: WorkloadResult) -> list[str]:
    """The best of each family that was measured and not chosen, with its time over the chosen
    one's and over that of its own default."""
    assert found.decision is not None
    chosen = found.decision.chosen
    out = []
    for standing in found.families:
        if standing.family == Variant.from_key(chosen.subject).family:
            continue
        times = f"{standing.median_s / chosen.median_s:.2f}x its time"
        if standing.ratio_to_default is not None:
            times += f" and {standing.ratio_to_default:.2f}x that of {standing.family}'s default"
        best = Variant.from_key(standing.best).config
        out.append(f"The best of {standing.family}, {best}, takes {times}.")
    return out
