"""The search for what a captured program ran: the costliest first, until nothing that is left can
gain anything, or the budget is spent."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.options import Progress, SearchOptions, WorkloadOptions
from fa_tune.store.capture.workloads import Wishes
from fa_tune.tune.results import SearchResult, as_one

SMALLEST_GAIN = 0.01  # of the program's attention time


@dataclass(frozen=True)
class CapturedSearch:
    """The results of all searches as one, None without any; `ended` says why there are no more, in
    a sentence."""

    result: SearchResult | None
    ended: str


def search_captured(
    options: SearchOptions,
    wishes: Wishes,
    seconds: float | None,
    search: Callable[[SearchOptions], SearchResult],
    progress: Progress,
    clock: Callable[[], float] = time.monotonic,
) -> CapturedSearch:
    """`search` for each of the wishes with `options` in their order; none begins once so many
    seconds are over.  One that nothing usable comes out of does not end the others.  Each is in the
    registry when it ends."""
    began = clock()
    found: list[SearchResult] = []
    for done, wanted in enumerate(wishes.wanted):
        left = f"{wishes.left_s(done) / wishes.attention_s:.1%} of the attention's time"
        if wishes.left_s(done) < SMALLEST_GAIN * wishes.attention_s:
            ended = f"{done} of {len(wishes.wanted)} workloads; the others can gain {left} at most"
            break
        if seconds is not None and clock() - began >= seconds:
            ended = f"the budget of {seconds:g} s ended; what is left can gain {left} at most"
            break
        share = wanted.time_s / wishes.attention_s
        alike = f" and {len(wanted.others)} near ones" if wanted.others else ""
        progress.note(f"{wanted.workload.key}{alike}: {share:.1%} of the attention's time")
        grid = WorkloadOptions.of((wanted.workload,), wanted.workload.op)
        try:
            found.append(search(replace(options, workloads=grid)))
        except NoUsableVariant as error:
            progress.warn(f"{wanted.workload.key}: {error}")
    else:
        ended = f"all {len(wishes.wanted)} workloads"
    return CapturedSearch(as_one(found) if found else None, f"Searched: {ended}.")
