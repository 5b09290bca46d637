"""Attempts of another board beside those of this one: never as they are, but by the default.

A config that took 1.10 times the default's time there takes 1.10 times what it takes here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from fa_tune.core.model import Attempt
from fa_tune.profile.stats import median


def board_of(attempt: Attempt) -> str:
    """The UUID of the board that measured; empty where it is not known or nothing was measured."""
    found = attempt.measurement
    return found.gpu_uuid if found is not None else ""


def boards_of(attempts: Mapping[str, Attempt]) -> set[str]:
    """The known boards of attempts."""
    return {board for a in attempts.values() if (board := board_of(a))}


def scaled(attempt: Attempt, factor: float) -> Attempt:
    """The attempt with its times multiplied, and saying so."""
    measurement = attempt.measurement
    if measurement is None or factor == 1.0:
        return attempt
    found = dataclasses.replace(
        measurement,
        samples_s=tuple(s * factor for s in measurement.samples_s),
        scaled_by=factor,
    )
    return dataclasses.replace(attempt, measurement=found)


def carried(
    attempts: Mapping[str, Attempt], here: str, known: Mapping[str, tuple[str, float]]
) -> dict[str, Attempt]:
    """The same attempts, those of other boards than `here` scaled by what `known` has of theirs
    (a subject and its median, by UUID).  As they are if all are of one board, which need not be
    this one."""
    if len(boards_of(attempts)) < 2:
        return dict(attempts)
    result = {}
    for subject, attempt in attempts.items():
        board = board_of(attempt)
        base = known.get(board)
        own = attempts.get(base[0]) if base is not None else None
        if board and board != here and base and own and own.measurement and board_of(own) == here:
            attempt = scaled(attempt, median(own.measurement.samples_s) / base[1])
        result[subject] = attempt
    return result
