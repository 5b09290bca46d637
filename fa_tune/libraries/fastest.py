"""Which of a library's own ways is the fastest for a problem, found before anything is measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from fa_tune.core.errors import InvalidConfig, first_line
from fa_tune.libraries.base import Library
from fa_tune.operations.base import Launch

ROUNDS = 5


def fastest(
    library: Library, ways: Iterable[Callable[[], Launch]], refusals: tuple[type[Exception], ...]
) -> Launch:
    """The launch that takes the least time.  A way that raises one of `refusals`, when it is made
    or at its first call, is left out; raises InvalidConfig with the first reason if all are."""
    best, least, why = None, math.inf, None
    for way in ways:
        try:
            launch = way()
            launch()
        except refusals as error:
            why = why or error
            continue
        if (took := _milliseconds(launch)) < least:
            best, least = launch, took
    if best is None:
        if isinstance(why, InvalidConfig):
            raise why
        raise library.refusal(first_line(why) if why else "it has no kernel") from why
    return best


def _milliseconds(launch: Launch) -> float:
    """Of some calls that follow one another."""
    import torch

    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(ROUNDS):
        launch()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last))
