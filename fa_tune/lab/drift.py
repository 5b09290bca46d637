"""Chunks of one space beside each other: the default, measured in each, says whether the GPU was
the same in all.

A chunk whose default is off is measured again.  If the default is off by as much again, the
chunk was taken under other conditions (a GPU at its power limit gets slower as it warms up), and
its times are scaled by the default's.  If not, something disturbed one of the two, and the one
whose default is nearer to the usual time stands as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from fa_tune.core.model import Attempt
from fa_tune.core.stats import median

MAX_DRIFT = 0.02  # of the default's usual time; a chunk whose default is further off is repeated

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
