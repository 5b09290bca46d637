"""Which profiled launch belongs to which subject.  Pure.

Our kernels are known by their mangled symbol.  A library's kernel is known by its place: ncu
numbers launches in the order in which the program reported them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from operator import itemgetter

from fa_tune.core.errors import ProfileFormatError
from fa_tune.core.model import Measurement, Quantity
from fa_tune.core.reference_kernels import reference_label
from fa_tune.profile.ncu.launches import Launch
from fa_tune.profile.ncu.metrics import DURATION

PASSES = "profiler__replayer_passes"


def assign_launches(
    order: Sequence[str],
    symbols: Mapping[str, Sequence[str]],
    libraries: Mapping[str, str],
    launches: Sequence[Launch],
) -> dict[str, list[Launch]]:
    """Launches by item.

    `order` are the items of the calls in their order: those of variants are in `symbols`, with the
    mangled names of their launches, one after another; those of library calls in `libraries`, with
    the library's short name (`fa2`).  A prefix of the launches may be all there is (the program
    was killed).  A library call of several kernels gives several launches, and two items of one
    library must not follow one another.  Raises ProfileFormatError if a launch is nobody's.
    """
    ours = {symbol for launched in symbols.values() for symbol in launched}
    assigned: dict[str, list[Launch]] = {item: [] for item in order}
    position = 0
    for previous, item in pairwise(("", *order)):
        if position >= len(launches):
            break
        if item in libraries and item == previous:
            continue  # last of one round, first of the next: its launches went to the call before
        if item in symbols:
            call = launches[position : position + len(symbols[item])]
            for launch, symbol in zip(call, symbols[item], strict=False):
                if launch.kernel_name != symbol:
                    raise ProfileFormatError(
                        f"launch {position} is {launch.kernel_name}, where {item} was launched; "
                        "another program used the GPU under this ncu, or rows are missing"
                    )
                assigned[item].append(launch)
                position += 1
            continue
        label = libraries[item]
        first = position
        while position < len(launches) and launches[position].kernel_name not in ours:
            if position > first and reference_label(launches[position].kernel_name) != label:
                break
            position += 1
        if position == first:
            raise ProfileFormatError(f"no kernel of {item} was profiled")
        assigned[item] += launches[first:position]
    return assigned


def measurement(
    subject: str,
    workload: str,
    launches: Sequence[Launch],
    calls: int,
    metrics: Sequence[str],
    conditions: Mapping[str, str],
) -> Measurement | None:
    """One measurement from the launches of a subject's `calls`; None if some are missing or
    a launch has no duration.

    A sample is one call: a library's may be several launches, whose times add up.  A counter
    is its median over the calls, each with its longest launch.
    """
    durations = [q.value for launch in launches if (q := launch.quantity(DURATION)) is not None]
    per_call, rest = divmod(len(launches), calls)
    if rest or not per_call or len(durations) < len(launches):
        return None
    parts = [slice(i, i + per_call) for i in range(0, len(launches), per_call)]
    longest = [max(zip(durations[p], launches[p], strict=True), key=itemgetter(0)) for p in parts]
    counters: dict[str, Quantity] = {}
    for name in dict.fromkeys([*metrics, PASSES]):
        found = [q for _, launch in longest if (q := launch.quantity(name)) is not None]
        if found and name != DURATION:
            counters[name] = Quantity(statistics.median(q.value for q in found), found[0].unit)
    samples_s = tuple(sum(durations[p]) for p in parts)
    return Measurement(subject, workload, "ncu", samples_s, counters, conditions)
