"""What the registry's rule between tuned problems loses, and what one config for all of them does.

Each recorded problem is taken out in turn, and the rule is asked for it by the others, of which it
knows what a registry's entries would tell: its config's time there over that of the config that
tuning chose there is the loss.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fa_tune.core.files import check_folder
from fa_tune.core.model import Variant, is_reference
from fa_tune.core.workload import Workload
from fa_tune.lab.default_check import decided_again
from fa_tune.store.recordings import Recording, load_all
from fa_tune.store.registry.between import Tuned, between, distance
from fa_tune.tune.outputs import MAX_RUNNERS_UP

APART = 0.5  # doublings: what is nearer was tuned for the problem itself


@dataclass(frozen=True)
class Losses:
    """One problem: the config that tuning chose, the rule's, the nearest problem that it went by,
    and losses as fractions, None where a config was not measured there.  `nearest`: of the config
    of the nearest problem; `default`: of what runs untuned; `single`: of the one config that loses
    least over all problems."""

    gpu: str
    method: str
    workload: Workload
    tuned: str
    chosen: str
    near: Workload
    rule: float | None
    nearest: float | None
    default: float | None
    single: float | None


@dataclass(frozen=True)
class Single:
    """One config for all problems of a kind: what it loses, on average and at worst, and what the
    registry's choices gain on it, as fractions."""

    gpu: str
    method: str
    problems: int
    config: str
    mean: float
    worst: float


@dataclass(frozen=True)
class _TunedProblem:
    """`tuned` is what an entry tells, `ratios` of all configs that were measured."""

    tuned: Tuned
    ratios: Mapping[Variant, float]
    default: str | None


def losses_of(folder: Path) -> tuple[list[Losses], list[Single]]:
    """Losses of all recordings in a folder; raises ProfileFormatError, and StorageError for one
    that does not exist."""
    check_folder(folder)
    return losses_among(load_all(folder))


def losses_among(
    tuned: Iterable[Recording], requested: Iterable[Recording] = ()
) -> tuple[list[Losses], list[Single]]:
    """Losses at the problems of few rows that recordings have, by GPU and method: of `requested`
    ones by the `tuned` ones, or without any of each of the tuned ones by the others."""
    known, wanted = _by_kind(tuned), _by_kind(requested)
    found: list[Losses] = []
    singles: list[Single] = []
    for of, every in known.items():
        single = _single([p.ratios for p in every])
        if single is not None:
            variant, lost = single
            mean, worst = statistics.fmean(lost), max(lost)
            singles.append(Single(*of, len(every), variant.config, mean, worst))
        for problem in wanted.get(of, []) if wanted else every:
            one = _losses(of, problem, every, single[0] if single else None)
            found += [one] if one is not None else []
    found.sort(key=lambda f: (f.gpu, f.method, f.workload))
    return found, singles


def _by_kind(recordings: Iterable[Recording]) -> dict[tuple[str, str], list[_TunedProblem]]:
    kinds: dict[tuple[str, str], list[_TunedProblem]] = {}
    for recording in recordings:
        of = (recording.meta.device.name, recording.meta.provenance.method)
        kinds.setdefault(of, []).extend(_problems(recording))
    return {of: _once(problems) for of, problems in kinds.items()}


def _problems(recording: Recording) -> Iterable[_TunedProblem]:
    for found in decided_again(recording):
        if not found.workload.decode_shape or found.workload.cached:
            continue
        ratios = {
            Variant.from_key(s.subject): s.to_chosen.value
            for s in found.decision.standings
            if not is_reference(s.subject)
        }
        chosen = Variant.from_key(found.decision.chosen.subject)
        default = ratios.get(Variant.from_key(found.default)) if found.default else None
        tied = dict.fromkeys(map(Variant.from_key, found.decision.tie_set), 1.0)
        first = (Variant.from_key(s.subject) for s in found.decision.runners_up[:MAX_RUNNERS_UP])
        kept = tied | {v: ratios[v] for v in first} | {chosen: 1.0}
        yield _TunedProblem(Tuned(found.workload, chosen, kept, default), ratios, found.default)


def _once(problems: Sequence[_TunedProblem]) -> list[_TunedProblem]:
    """Each problem once, as the recording with the most configs has it; of equals the newest, as
    they come."""
    found: dict[Workload, _TunedProblem] = {}
    for problem in problems:
        known = found.setdefault(problem.tuned.workload, problem)
        if len(problem.ratios) > len(known.ratios):
            found[problem.tuned.workload] = problem
    return list(found.values())


def _single(ratios: Sequence[Mapping[Variant, float]]) -> tuple[Variant, list[float]] | None:
    """The config that loses least on average of those that were measured on every problem."""
    if not ratios:
        return None
    everywhere = set.intersection(*map(set, ratios))
    lost = {v: [times[v] - 1.0 for times in ratios] for v in everywhere}
    if not lost:
        return None
    best = min(lost, key=lambda v: (statistics.fmean(lost[v]), v))
    return best, lost[best]


def _losses(
    of: tuple[str, str],
    problem: _TunedProblem,
    every: Sequence[_TunedProblem],
    single: Variant | None,
) -> Losses | None:
    """None for a problem without others."""
    own, requested, ratios = problem.tuned, problem.tuned.workload, problem.ratios
    others = [
        p.tuned
        for p in every
        if _alike(p.tuned.workload, requested) and distance(p.tuned.workload, requested) >= APART
    ]
    default = Variant.from_key(problem.default) if problem.default else None
    found = between(others, requested, default)
    if found is None:
        return None
    nearest = min(others, key=lambda t: distance(t.workload, requested))

    def loss(variant: Variant | None) -> float | None:
        return ratios[variant] - 1.0 if variant is not None and variant in ratios else None

    return Losses(
        *of,
        requested,
        own.chosen.config,
        found.variant.config,
        found.asked[0].workload,
        loss(found.variant),
        loss(nearest.chosen),
        loss(default),
        loss(single),
    )


def _alike(a: Workload, b: Workload) -> bool:
    """Whether problems differ in what there is to read alone."""
    return (a.dtype, a.d_head, a.causal, a.rows_of_kv_head, a.seq_len_q) == (
        *(b.dtype, b.d_head, b.causal, b.rows_of_kv_head, b.seq_len_q),
    )
