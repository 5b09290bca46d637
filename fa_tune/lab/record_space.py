"""Recording a space: every config of one family, measured once, as a table for replays.

Configs are measured in chunks, each with the default, which says whether the GPU was the same in
all.  A chunk whose default is off is measured again.  If the default is off by as much again, the
chunk was taken under other conditions (a GPU at its power limit gets slower as it warms up), and
its times are scaled by the default's.  If not, something disturbed one of the two, and the one
whose default is nearer to the usual time stands as it is.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fa_tune import families
from fa_tune.core import input_files
from fa_tune.core.errors import InvalidConfig, NoUsableVariant
from fa_tune.core.model import Attempt, Outcome
from fa_tune.core.options import KernelOptions, Progress
from fa_tune.core.stats import median
from fa_tune.families.base import Config
from fa_tune.lab.space_table import SpaceMeta, SpaceRow, knob_types, save
from fa_tune.search.strategies.points import point
from fa_tune.tune.build import PreparedWorkload, prepare
from fa_tune.tune.candidates import prune_configs, workloads_for
from fa_tune.tune.dispatch import cost_of, run_on_gpus
from fa_tune.tune.measure import measured, request_for
from fa_tune.tune.outputs import provenance
from fa_tune.tune.profilers import choose_profiler
from fa_tune.tune.session import Machine, Session, open_machine, open_session
from fa_tune.tune.unrecorded import recorded_among, recorded_only

MAX_DRIFT = 0.02  # of the default's usual time; a chunk whose default is further off is repeated
CHUNK = 256  # configs measured side by side; what a chunk found is kept when the next one begins


@dataclass(frozen=True)
class RecordedSpace:
    """A space that was measured and written; `source` as in a search's result."""

    rows: tuple[SpaceRow, ...]
    meta: SpaceMeta
    source: str


def record_space(
    configs: Sequence[Config],
    options: KernelOptions,
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

    Raises InvalidConfig for configs of several families, NoUsableVariant when nothing ran or is
    recorded, and what measuring raises.
    """
    for workload in options.workloads.workloads():
        input_files.check(options.measure.inputs, workload)
    machine = open_machine(options.machine, progress)
    kept, n_rejected = _able(configs, machine)
    family = families.of(kept[0])
    workloads = workloads_for(options, kept)
    selection = choose_profiler(options.measure, machine, progress, wanted=workloads, configs=kept)
    workloads = recorded_only(workloads, selection, progress)
    progress.note(selection.source)
    defaults = {w.key: families.default_for(family, w) for w in workloads}
    able, _ = prune_configs(list(dict.fromkeys(defaults.values())), machine.limits)
    session = open_session(machine, selection, options.measure, progress, reuse=options.resume)
    wanted = list(dict.fromkeys([*able, *kept]))
    held = recorded_among(wanted, workloads, selection, progress)
    kept = _sampled(held, set(able), at_most, options.measure.seed)
    verify = not session.capabilities.checks_results
    prepared = prepare(session, workloads, kept, verify=verify, facts=True)
    default_keys = {key: families.variant(config).key for key, config in defaults.items()}
    found = run_on_gpus(
        session,
        prepared,
        lambda own, one: _measure(own, one, default_keys[one.workload.key]),
        workload=lambda one: one.workload,
        cost=lambda one: cost_of(one.workload, len(one.artifacts)),
    )
    by_key = {families.variant(config).key: config for config in kept}
    rows, units = _rows(prepared, found, by_key)
    if not any(row.samples_s for row in rows):
        reasons = "; ".join(dict.fromkeys(row.reason for row in rows if row.reason))
        raise NoUsableVariant(f"nothing was measured{': ' if reasons else ''}{reasons}")
    recording = selection.recording
    origin = (
        provenance(selection, [family.name]) if recording is None else recording.meta.provenance
    )
    meta = SpaceMeta(
        knobs=knob_types(row.knobs for row in rows),
        device=dataclasses.replace(selection.device, uuid=""),
        provenance=origin,
        units=units,
        defaults={key: variant for key, variant in default_keys.items() if variant in by_key},
        note="; ".join(_notes(n_rejected, len(wanted) - len(held), found)),
        inputs=str(selection.inputs),
    )
    save(to, rows, meta)
    return RecordedSpace(tuple(rows), meta, selection.source)


def _able(configs: Sequence[Config], machine: Machine) -> tuple[list[Config], int]:
    """Configs that can run, all of one family, and how many cannot; raises NoUsableVariant and
    InvalidConfig."""
    kept, rejected = prune_configs(configs, machine.limits)
    if not kept:
        raise NoUsableVariant(f"none of the {len(configs)} configs can run on {machine.arch}")
    names = {families.of(config).name for config in kept}
    if len(names) > 1:
        raise InvalidConfig(f"a space has configs of one family, not of {', '.join(sorted(names))}")
    return kept, len(rejected)


def _sampled(
    configs: list[Config], always: set[Config], at_most: int | None, seed: int
) -> list[Config]:
    if at_most is None or len(configs) <= at_most:
        return configs
    others = [c for c in configs if c not in always]
    chosen = set(random.Random(f"space:{seed}").sample(others, max(0, at_most - len(always))))
    return [c for c in configs if c in always or c in chosen]


@dataclass(frozen=True)
class MeasuredSpace:
    """The attempts at one workload, by subject, with the default's median in each chunk, and how
    many chunks were measured twice and scaled (`corrected`)."""

    attempts: Mapping[str, Attempt]
    default_s: tuple[float, ...]
    repeated: int
    adjusted: int


def _measure(session: Session, prepared: PreparedWorkload, default: str) -> MeasuredSpace:
    """All configs in chunks; one in which the GPU was not the same is measured again."""
    others = [s for s in prepared.artifacts if s != default]
    starts = range(0, max(1, len(others)), CHUNK)
    parts = [(*others[start : start + CHUNK], default) for start in starts]
    chunks = [_measure_chunk(session, prepared, part) for part in parts]
    # A replay would only say the same again.
    again = drifted_chunks(chunks, default) if session.capabilities.measures_anew else []
    afresh = dataclasses.replace(session, reuse=False)
    second = {i: _measure_chunk(afresh, prepared, parts[i]) for i in again}
    chunks, adjusted = corrected(chunks, second, default)
    attempts = {a.subject: a for a in prepared.failures}
    for chunk in (*chunks, default_of(chunks, default)):
        attempts |= chunk
    times = [time_of(chunk, default) for chunk in chunks]
    known = tuple(t for t in times if t is not None)
    return MeasuredSpace(attempts, known, len(again), adjusted)


def _measure_chunk(
    session: Session, prepared: PreparedWorkload, subjects: Sequence[str]
) -> Mapping[str, Attempt]:
    """These side by side; the last one is the default, which each chunk has."""
    artifacts = {s: prepared.artifacts[s] for s in subjects if s in prepared.artifacts}
    session = session.with_runs(session.measure.runs)
    keep, search = (subjects[-1],), _tag(artifacts)
    request = request_for(session, prepared.workload, artifacts, keep=keep, search=search)
    (attempts,) = measured(session, [request])
    return {a.subject: a for a in attempts}


def _tag(chunk: Iterable[str]) -> str:
    """The same for a chunk and its resumption, different for a chunk of other configs."""
    return f"space {hashlib.sha256(chr(10).join(sorted(chunk)).encode()).hexdigest()[:12]}"


def _notes(n_rejected: int, n_unrecorded: int, found: Sequence[MeasuredSpace]) -> Iterator[str]:
    """What a reader of the table should know."""
    yield f"{n_rejected} configs that cannot run are not among these"
    if n_unrecorded:
        yield f"{n_unrecorded} configs are not among these because no recording holds them"
    measured = [a.measurement for one in found for a in one.attempts.values() if a.measurement]
    labels = {m.replayed_from for m in measured}
    if len(labels) > 1:
        yield f"times are of several recordings: {', '.join(sorted(labels))}"
    if repeated := sum(one.repeated for one in found):
        adjusted = sum(one.adjusted for one in found)
        yield (
            f"{repeated} chunks were measured again because the default's median was off by "
            f"more than {100 * MAX_DRIFT:g} %, and {adjusted} of them, where it was so again, "
            "had their times scaled by it"
        )
    if drifts := [max(t) / min(t) - 1.0 for one in found if len(t := one.default_s) > 1]:
        yield f"the default's median varied by {100 * max(drifts):.2f} % between chunks"


def _rows(
    prepared: Sequence[PreparedWorkload],
    found: Sequence[MeasuredSpace],
    by_key: Mapping[str, Config],
) -> tuple[list[SpaceRow], dict[str, str]]:
    """The table's rows, and the units of the counters in them."""
    rows: list[SpaceRow] = []
    units: dict[str, str] = {}
    for workload, one in zip(prepared, found, strict=True):
        for attempt in (one.attempts[key] for key in by_key if key in one.attempts):
            if attempt.outcome is Outcome.NOT_RECORDED:
                continue
            rows.append(_row(attempt, by_key[attempt.subject], workload))
            if attempt.measurement is not None:
                units |= {n: q.unit for n, q in attempt.measurement.counters.items()}
    return rows, units


def _row(attempt: Attempt, config: Config, prepared: PreparedWorkload) -> SpaceRow:
    artifact = prepared.artifacts.get(attempt.subject)
    made = point(config, artifact.resources if artifact is not None else None)
    measurement = attempt.measurement if attempt.outcome is Outcome.OK else None
    return SpaceRow(
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


# The chunks beside each other --------------------------------------------------------------------

Chunk = Mapping[str, Attempt]  # by subject


def time_of(chunk: Chunk, default: str) -> float | None:
    """The default's median in a chunk in seconds; None where it has none."""
    attempt = chunk.get(default)
    found = attempt.measurement if attempt is not None else None
    return median(found.samples_s) if found is not None else None


def usual_time(times: Sequence[float | None]) -> float | None:
    """The median of the chunks' times; None where no chunk has one."""
    known = [t for t in times if t is not None]
    return median(known) if known else None


def drifted_chunks(chunks: Sequence[Chunk], default: str) -> list[int]:
    """The chunks to measure again."""
    times = [time_of(chunk, default) for chunk in chunks]
    usual = usual_time(times)
    return [i for i, t in enumerate(times) if t and usual and _is_off(t, usual)]


def corrected(
    chunks: Sequence[Chunk], second: Mapping[int, Chunk], default: str
) -> tuple[list[Chunk], int]:
    """The chunks to keep, given those measured again by their number, and how many were
    scaled."""
    usual = usual_time([time_of(chunk, default) for chunk in chunks])
    kept, adjusted = list(chunks), 0
    for i, again in second.items():
        before, after = time_of(chunks[i], default), time_of(again, default)
        if usual is None or before is None or after is None:
            continue
        if abs(after - usual) <= abs(before - usual):
            kept[i] = again
        if _is_off(after, usual) and not _is_off(after, before):
            taken = time_of(kept[i], default) or usual
            kept[i] = {s: _scaled(attempt, usual / taken) for s, attempt in kept[i].items()}
            adjusted += 1
    return kept, adjusted


def default_of(chunks: Sequence[Chunk], default: str) -> dict[str, Attempt]:
    """The default's attempt in the chunk where its time is nearest to the usual one, by its
    name; empty where it has no time."""
    usual = usual_time([time_of(chunk, default) for chunk in chunks])
    if usual is None:
        return {}
    timed = [(t, c) for c in chunks if (t := time_of(c, default)) is not None]
    return {default: min(timed, key=lambda pair: abs(pair[0] - usual))[1][default]}


def _scaled(attempt: Attempt, factor: float) -> Attempt:
    """The attempt with its times multiplied, and saying so."""
    found = attempt.measurement
    if found is None:
        return attempt
    scaled = dataclasses.replace(
        found,
        samples_s=tuple(s * factor for s in found.samples_s),
        held_out_s=tuple(s * factor for s in found.held_out_s),
        scaled_by=factor,
    )
    return dataclasses.replace(attempt, measurement=scaled)


def _is_off(time_s: float, usual_s: float) -> bool:
    return abs(time_s / usual_s - 1.0) > MAX_DRIFT
