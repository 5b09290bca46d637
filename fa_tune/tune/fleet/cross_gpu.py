"""Attempts of another GPU beside those of this one: never as they are, but by the default.

A config that took 1.10 times the default's time there takes 1.10 times what it takes here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from fa_tune.core.model import Attempt
from fa_tune.core.stats import median


def gpu_of(attempt: Attempt) -> str:
    """The UUID of the GPU that measured; empty where it is not known or nothing was measured."""
    found = attempt.measurement
    return found.gpu_uuid if found is not None else ""


def gpus_of(attempts: Mapping[str, Attempt]) -> set[str]:
    """The known GPUs of attempts, by UUID."""
    return {uuid for a in attempts.values() if (uuid := gpu_of(a))}


def scaled(attempt: Attempt, factor: float) -> Attempt:
    """The attempt with its times multiplied, and saying so."""
    measurement = attempt.measurement
    if measurement is None or factor == 1.0:
        return attempt
    found = dataclasses.replace(
        measurement,
        samples_s=tuple(s * factor for s in measurement.samples_s),
        held_out_s=tuple(s * factor for s in measurement.held_out_s),
        scaled_by=factor,
    )
    return dataclasses.replace(attempt, measurement=found)


def normalise(
    attempts: Mapping[str, Attempt],
    here: str,
    reference_times: Mapping[str, tuple[str, float]],
) -> dict[str, Attempt]:
    """The same attempts, those of other GPUs than `here` scaled by `reference_times`: a subject
    and its median in seconds, by UUID.  As they are if all are of one GPU, which need not be this
    one."""
    if len(gpus_of(attempts)) < 2:
        return dict(attempts)
    result = {}
    for subject, attempt in attempts.items():
        there = gpu_of(attempt)
        if there not in ("", here) and there in reference_times:
            reference, time_s = reference_times[there]
            own = attempts.get(reference)
            if own is not None and own.measurement is not None and gpu_of(own) == here:
                attempt = scaled(attempt, median(own.measurement.samples_s) / time_s)
        result[subject] = attempt
    return result
