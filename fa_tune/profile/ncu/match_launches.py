"""Which profiled launch belongs to which subject.  Pure.

Our kernels are known by their mangled symbol.  A library's kernels are known by their place,
between two of ours or before the first that is named after the next library: ncu numbers launches
in the order in which the program reported them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter

from fa_tune.core.errors import ProfileFormatError
from fa_tune.core.model import Measurement, Quantity
from fa_tune.core.workload import FORWARD
from fa_tune.libraries import is_nameless, label_of_kernel
from fa_tune.profile.ncu.launches import Launch
from fa_tune.profile.ncu.metrics import DURATION

PASSES = "profiler__replayer_passes"


def assign_launches(
    order: Sequence[str],
    symbols: Mapping[str, Sequence[str]],
    libraries: Mapping[str, str],
    launches: Sequence[Launch],
    operation: str = FORWARD,
) -> dict[str, list[Launch]]:
    """Launches by item.

    `order` are the items of the calls in their order: those of variants are in `symbols`, with the
    mangled names of their launches, one after another; those of library calls in `libraries`, with
    the library's short name (`fa2`).  All compute `operation`.  A prefix of the launches may be all
    there is (the program was killed).  A library call of several kernels gives several launches,
    and two items of one library must not follow one another.  Raises ProfileFormatError if a launch
    is nobody's, or could be of either of two library calls.
    """
    ours = {symbol for launched in symbols.values() for symbol in launched}
    assigned: dict[str, list[Launch]] = {item: [] for item in order}
    position = 0
    for are_libraries, calls in groupby(order, key=libraries.__contains__):
        if are_libraries:
            items = [item for item, _ in groupby(calls)]  # the last of a round may begin the next
            end = position
            while end < len(launches) and launches[end].kernel_name not in ours:
                end += 1
            for item, share in _shares(items, libraries, launches[position:end], operation):
                if not share and end < len(launches):
                    raise ProfileFormatError(f"no kernel of {item} was profiled")
                assigned[item] += share
            position = end
            continue
        for item in calls:
            call = launches[position : position + len(symbols[item])]
            for launch, symbol in zip(call, symbols[item], strict=False):
                if launch.kernel_name != symbol:
                    raise _foreign(launch, item)
                assigned[item].append(launch)
                position += 1
    return assigned


def _foreign(launch: Launch, item: str) -> ProfileFormatError:
    return ProfileFormatError(
        f"launch {launch.launch_id} is {launch.kernel_name}, where {item} was launched; "
        "another program used the GPU under this ncu, or rows are missing"
    )


def _shares(
    items: Sequence[str], libraries: Mapping[str, str], launches: Sequence[Launch], operation: str
) -> Iterator[tuple[str, Sequence[Launch]]]:
    """The launches of library calls that follow one another, by call.

    Helpers without a label come behind their library's own kernels: they are its own until the
    next library's kernels begin.  Raises ProfileFormatError for a launch of another library, and
    where the next one's kernels have no label either.
    """
    rest = launches
    for place, item in enumerate(items, start=1):
        labels = [label_of_kernel(launch.kernel_name, operation) for launch in rest]
        own, later = libraries[item], len(items) - place
        if not later:
            count = len(rest)
        elif libraries[items[place]] in labels:
            count = labels.index(libraries[items[place]])
        else:
            count = len(rest) - labels[::-1].index(own) if own in labels else min(1, len(rest))
            if len(rest) - count > later:  # not one for each call
                raise ProfileFormatError(
                    f"{rest[count].kernel_name} may be of {item} or of {items[place]}, which were "
                    "launched one after the other: measure one of them at a time"
                )
        for launch, label in zip(rest[:count], labels, strict=False):
            if label not in (None, own) and not is_nameless(own):
                raise _foreign(launch, item)
        yield item, rest[:count]
        rest = rest[count:]


def measurement(
    subject: str,
    workload: str,
    launches: Sequence[Launch],
    calls: int,
    metrics: Sequence[str],
    conditions: Mapping[str, str],
) -> Measurement | None:
    """Measurement from the launches of a subject's `calls`; None if some are missing or
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
