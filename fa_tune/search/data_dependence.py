"""How a choice does on other inputs than those it was made on, and when that forbids it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fa_tune.core.comparison import OnInputs


def worst(figures: Sequence[OnInputs]) -> OnInputs | None:
    """Where a config does worst against the default; None where nothing was compared."""
    compared = [(f.to_default.value, f) for f in figures if f.to_default is not None]
    return max(compared, key=lambda pair: pair[0], default=(0.0, None))[1]


def first_sound(contenders: Sequence[str], figures: Mapping[str, Sequence[OnInputs]]) -> str | None:
    """The first that is nowhere behind; None if all are.  What was not compared is not behind."""
    return next((s for s in contenders if not any(f.is_behind for f in figures.get(s, ()))), None)


def paired_with_own(
    figures: Sequence[OnInputs], default_to_own: Mapping[str, float], own: str
) -> tuple[OnInputs, ...]:
    """A config's figures with `to_own_inputs`.  `own` are the inputs of the search,
    `default_to_own` has, by inputs, the default's time on them over that on `own`.

    On inputs X, with the default D, each factor is of paired samples:

        config on X     config on X     D on X       config on own
        ------------- = ----------- * -----------  / -------------
        config on own     D on X       D on own        D on own
    """
    to_default = {f.inputs: 1.0 if f.to_default is None else f.to_default.value for f in figures}
    if own not in to_default:
        return tuple(figures)
    known = {x: to_default[x] * default_to_own[x] for x in to_default.keys() & default_to_own}
    ratios = {x: ratio / to_default[own] for x, ratio in known.items()} | {own: 1.0}
    return tuple(replace(f, to_own_inputs=ratios.get(f.inputs)) for f in figures)


def slowdown(figures: Sequence[OnInputs]) -> tuple[str, float] | None:
    """The inputs that take a config the most time, and that time over the one on the inputs of the
    search; None where no ratio to these is known."""
    ratios = {f.inputs: f.to_own_inputs for f in figures if f.to_own_inputs is not None}
    if len(ratios) < 2:
        return None
    slowest = max(ratios, key=lambda name: ratios[name])
    return slowest, ratios[slowest]
