"""Recording a space: every config of one family, measured once, as a table for replays."""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fa_tune import families
from fa_tune.core.errors import InvalidConfig, NoUsableVariant
from fa_tune.core.model import Attempt, Outcome
from fa_tune.core.options import Progress, SearchOptions
from fa_tune.families.base import Config
from fa_tune.fleet.cross_gpu import scaled
from fa_tune.ops import flops
from fa_tune.profile.stats import median
from fa_tune.search.space_table import SpaceMeta, SpaceRow, knob_types, save
from fa_tune.search.strategies.points import point
from fa_tune.store.journal import Journal
from fa_tune.tune.decide import Candidates
from fa_tune.tune.dispatch import Spot, on_boards
from fa_tune.tune.drift import CHUNK_OFF, default_of, steadied, time_of, unsteady
from fa_tune.tune.flow import prepare
from fa_tune.tune.measure import Tally, measure_workload
from fa_tune.tune.outputs import provenance
from fa_tune.tune.profilers import choose_profiler
from fa_tune.tune.results import RecordedSpace
from fa_tune.tune.session import open_context, prune_configs, workloads_for

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
    measured = choose_profiler(
        options.measure, context, progress, wanted=options.workloads.workloads()
    )
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
    rows: list[SpaceRow] = []
    units: dict[str, str] = {}
    tally = Tally()
    standard = {key: families.variant(config).key for key, config in defaults.items()}

    def measure(spot: Spot, part: Part) -> Part:
        return _measure(part, standard[part.one.workload.key], options, spot, journal)

    parts = on_boards(
        _parts(candidates, standard, len(context.pool.present) if context.pool else 1),
        measure,
        Spot(measured, context, progress, tally),
        journal,
        workload=lambda part: part.one.workload,
        cost=lambda part: flops.matmul_flop(part.one.workload) * sum(map(len, part.chunks)),
    )
    joined = [join([p for p in parts if p.one is one]) for one in candidates]
    for one, (found, _, _) in zip(candidates, joined, strict=True):
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
    if repeated := sum(part.repeated for part in parts):
        adjusted = sum(part.adjusted for part in parts)
        note += (
            f"; {repeated} chunks were measured again because the default's median was off by "
            f"more than {100 * CHUNK_OFF:g} %, and {adjusted} of them, where it was so again, "
            "had their times scaled by it"
        )
    if drifts := [drift for _, drift, _ in joined if drift is not None]:
        note += f"; the default's median varied by {100 * max(drifts):.2f} % between chunks"
    if scaled := [factor for _, _, factor in joined if factor is not None]:
        note += (
            "; chunks of one workload were measured on several boards, their times scaled by "
            f"the default's to those of the first board, by {100 * max(scaled):.2f} % at most"
        )
    meta = SpaceMeta(
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


@dataclass(frozen=True)
class Part:
    """Some chunks of one workload, all measured on one board, by subject.  `found` are their
    attempts, `default_s` the default's median in each chunk, `board` the board's UUID,
    `repeated` and `adjusted` how many chunks were measured twice and scaled (`steadied`)."""

    one: Candidates
    chunks: tuple[tuple[str, ...], ...]
    found: Mapping[str, Attempt] = field(default_factory=dict)
    default_s: tuple[float, ...] = ()
    board: str = ""
    repeated: int = 0
    adjusted: int = 0


def _parts(
    candidates: Sequence[Candidates], standard: Mapping[str, str], boards: int
) -> list[Part]:
    """A workload is one board's, unless there are more boards than workloads: then each of its
    chunks may be another's."""
    parts = []
    for one in candidates:
        others = [s for s in one.artifacts if s != standard[one.workload.key]]
        starts = range(0, max(1, len(others)), CHUNK)
        chunks = tuple(tuple(others[start : start + CHUNK]) for start in starts)
        if len(candidates) >= boards:
            parts.append(Part(one, chunks))
        else:
            parts += [Part(one, (chunk,)) for chunk in chunks]
    return parts


def _measure(
    part: Part, default: str, options: SearchOptions, spot: Spot, journal: Journal
) -> Part:
    """The part with its attempts."""
    one = part.one

    def measure(subjects: Sequence[str], again: bool) -> Mapping[str, Attempt]:
        chunk = {s: one.artifacts[s] for s in subjects}
        if default in one.artifacts:
            chunk[default] = one.artifacts[default]
        attempts = measure_workload(
            one.workload,
            chunk,
            options=dataclasses.replace(options.measure, references=()),
            measured=spot.measured,
            context=spot.context,
            journal=journal,
            reuse=options.resume and not again,
            keep=(default,),
            progress=spot.progress,
            tally=spot.tally,
            search=_mark(chunk),  # the default is measured in each chunk
        )
        return {a.subject: a for a in attempts}

    chunks = [measure(subjects, False) for subjects in part.chunks]
    # A replay would only say the same again.
    off = unsteady(chunks, default) if spot.measured.recording is None else []
    second = {i: measure(part.chunks[i], True) for i in off}
    chunks, adjusted = steadied(chunks, second, default)
    found: dict[str, Attempt] = {}
    for chunk in (*chunks, default_of(chunks, default)):
        found |= chunk
    times = [time_of(chunk, default) for chunk in chunks]
    return dataclasses.replace(
        part,
        found=found,
        default_s=tuple(t for t in times if t is not None),
        board=spot.context.board,
        repeated=len(off),
        adjusted=adjusted,
    )


def join(parts: Sequence[Part]) -> tuple[dict[str, Attempt], float | None, float | None]:
    """All attempts of one workload by subject, and two fractions: how much the default's median
    varied between the chunks of one board (None with one chunk on each), and by how much times
    were scaled at most (None with one board)."""
    found: dict[str, Attempt] = {a.subject: a for a in parts[0].one.failures}
    by_board: dict[str, list[float]] = {}
    for part in parts:
        by_board.setdefault(part.board, []).extend(part.default_s)
    drifts = [max(times) / min(times) - 1.0 for times in by_board.values() if len(times) > 1]
    drift = max(drifts, default=None)
    base = by_board[parts[0].board]
    if len(by_board) == 1 or not all(by_board.values()):  # nothing to scale, or nothing to go by
        for part in parts:
            found |= part.found
        return found, drift, None
    largest = 0.0
    for part in reversed(parts):  # the first board's own default is what stays
        factor = median(base) / median(by_board[part.board])
        largest = max(largest, abs(factor - 1.0))
        found |= {s: scaled(a, factor) for s, a in part.found.items()}
    return found, drift, largest


def _mark(chunk: Iterable[str]) -> str:
    """The same for a group and its resumption, different for a group of other configs."""
    return f"space {hashlib.sha256(chr(10).join(sorted(chunk)).encode()).hexdigest()[:12]}"


def _row(attempt: Attempt, config: Config, one: Candidates) -> SpaceRow:
    artifact = one.artifacts.get(attempt.subject)
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
