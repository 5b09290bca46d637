"""Recording a space: every config of one family, measured once, as a table for replays."""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from fa_tune import families
from fa_tune.errors import InvalidConfig, NoUsableVariant
from fa_tune.families.base import Config
from fa_tune.model import Attempt, Outcome
from fa_tune.options import Progress, SearchOptions
from fa_tune.pipeline.concluding import Candidates
from fa_tune.pipeline.context import Context, open_context, prune_configs
from fa_tune.pipeline.keeping import provenance
from fa_tune.pipeline.measuring import Measured, Tally, choose_profiler, measure_workload
from fa_tune.pipeline.results import RecordedSpace
from fa_tune.pipeline.search import prepare, workloads_for
from fa_tune.pipeline.space_points import point
from fa_tune.profile.stats import median
from fa_tune.search.journal import Journal
from fa_tune.spaces.table import Meta, Row, knob_types, save

CHUNK = 256  # configs measured side by side; what a chunk found is kept when the next one begins


def record_space(
    configs: Sequence[Config],
    options: SearchOptions,
    to: Path,
    progress: Progress,
    *,
    at_most: int | None = None,
) -> RecordedSpace:
    """Measure every config on every workload of `options` and write the table `to`.

    `at_most` configs: the family's default and a random sample, the same for the same seed.
    Results are checked by the profiler after timing where it does that (events), else by
    verification before.  Attempts are in the journal as chunks end, so a recording that was
    interrupted goes on.

    Raises InvalidConfig for configs of several families, NoUsableVariant when nothing ran,
    and what measuring raises.
    """
    context = open_context(options.machine, progress)
    measured = choose_profiler(options.measure, context, progress)
    progress.note(measured.whose)
    kept, rejected = prune_configs(configs, context)
    if not kept:
        raise NoUsableVariant(f"none of the {len(configs)} configs can run on {context.arch}")
    names = {families.of(config).name for config in kept}
    if len(names) > 1:
        raise InvalidConfig(f"a space has configs of one family, not of {', '.join(sorted(names))}")
    workloads = workloads_for(options, kept)
    defaults = {w.key: families.of(kept[0]).default_config(w.d_head, w.dtype) for w in workloads}
    able, _ = prune_configs(list(dict.fromkeys(defaults.values())), context)
    kept = _sampled(list(dict.fromkeys([*able, *kept])), set(able), at_most, options.measure.seed)
    by_key = {families.variant(config).key: config for config in kept}
    own_check = measured.profiler.method == "events"
    candidates = prepare(
        workloads, kept, options, context, measured, progress, verify=not own_check
    )
    journal = context.journal()
    rows: list[Row] = []
    units: dict[str, str] = {}
    drifts: list[float] = []
    tally = Tally()
    for one in candidates:
        default = families.variant(defaults[one.workload.key]).key
        found, drift = _measure(one, default, options, measured, context, journal, progress, tally)
        drifts += [drift] if drift is not None else []
        for attempt in (found[key] for key in by_key if key in found):
            if attempt.outcome is Outcome.NOT_RECORDED:
                continue
            rows.append(_row(attempt, by_key[attempt.subject], one))
            if attempt.measurement is not None:
                units |= {n: q.unit for n, q in attempt.measurement.counters.items()}
    if not any(row.samples_s for row in rows):
        reasons = "; ".join(dict.fromkeys(row.reason for row in rows if row.reason))
        raise NoUsableVariant(f"nothing was measured{': ' if reasons else ''}{reasons}")
    note = f"{len(rejected)} configs that cannot run are not among these"
    if drifts:
        note += f"; the default's median varied by {100 * max(drifts):.2f} % between chunks"
    meta = Meta(
        knobs=knob_types(row.knobs for row in rows),
        device=dataclasses.replace(measured.device, uuid=""),
        provenance=(
            measured.recording.meta.provenance
            if measured.recording is not None
            else provenance(measured, sorted(names))
        ),
        units=units,
        defaults={
            key: variant
            for key, config in defaults.items()
            if (variant := families.variant(config).key) in by_key
        },
        note=note,
    )
    save(to, rows, meta)
    return RecordedSpace(to, tuple(rows), meta, measured.whose, tally.measured, tally.reused)


def _sampled(
    configs: list[Config], always: set[Config], at_most: int | None, seed: int
) -> list[Config]:
    if at_most is None or len(configs) <= at_most:
        return configs
    others = [c for c in configs if c not in always]
    chosen = set(random.Random(f"space:{seed}").sample(others, max(0, at_most - len(always))))
    return [c for c in configs if c in always or c in chosen]


def _measure(
    one: Candidates,
    default: str,
    options: SearchOptions,
    measured: Measured,
    context: Context,
    journal: Journal,
    progress: Progress,
    tally: Tally,
) -> tuple[dict[str, Attempt], float | None]:
    """Attempts by subject, and how much the default's median varied between chunks (as a
    fraction), None with one chunk."""
    others = [subject for subject in one.artifacts if subject != default]
    found: dict[str, Attempt] = {a.subject: a for a in one.failures}
    medians: list[float] = []
    starts = range(0, max(1, len(others)), CHUNK)
    for start in starts:
        chunk = {s: one.artifacts[s] for s in others[start : start + CHUNK]}
        if default in one.artifacts:
            chunk[default] = one.artifacts[default]
        attempts = measure_workload(
            one.workload,
            chunk,
            options=dataclasses.replace(options.measure, references=()),
            measured=measured,
            context=context,
            journal=journal,
            reuse=options.resume,
            keep=(default,),
            progress=progress,
            tally=tally,
            search=_mark(chunk),  # the default is measured in each chunk
        )
        for attempt in attempts:
            if attempt.subject == default and attempt.measurement is not None:
                medians.append(median(attempt.measurement.samples_s))
            found[attempt.subject] = attempt
    drift = max(medians) / min(medians) - 1.0 if len(medians) > 1 else None
    return found, drift


def _mark(chunk: Iterable[str]) -> str:
    """The same for a group and its resumption, different for a group of other configs."""
    return f"space {hashlib.sha256(chr(10).join(sorted(chunk)).encode()).hexdigest()[:12]}"


def _row(attempt: Attempt, config: Config, one: Candidates) -> Row:
    artifact = one.artifacts.get(attempt.subject)
    made = point(config, artifact.resources if artifact is not None else None)
    measurement = attempt.measurement if attempt.outcome is Outcome.OK else None
    return Row(
        variant=attempt.subject,
        workload=attempt.workload,
        outcome=attempt.outcome,
        knobs=made.knobs,
        samples_s=tuple(map(_rounded, measurement.samples_s)) if measurement else (),
        reason=attempt.reason,
        soft_rules=made.soft_rules,
        facts=made.facts,
        counters={n: q.value for n, q in measurement.counters.items()} if measurement else {},
    )


def _rounded(seconds: float) -> float:
    """Seven digits: finer than any timer, and half the file."""
    return float(f"{seconds:.7g}")
