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
from fa_tune.core.model import Measurement, Quantity, reference_name
from fa_tune.core.reference_kernels import reference_label
from fa_tune.profile.ncu.launches import Launch
from fa_tune.profile.ncu.metrics import DURATION

PASSES = "profiler__replayer_passes"


def assign_launches(
    order: Sequence[str], symbols: Mapping[str, Sequence[str]], launches: Sequence[Launch]
) -> dict[str, list[Launch]]:
    """Launches by subject.

    `order` are the subjects of the calls in their order, `symbols` the mangled names of each
    variant's launches, one after another.  A prefix of the launches may be all there is (the
    program was killed).  A library call of several kernels gives several launches.  Raises
    ProfileFormatError if a launch is nobody's.
    """
    ours = {symbol for launched in symbols.values() for symbol in launched}
    assigned: dict[str, list[Launch]] = {subject: [] for subject in order}
    position = 0
    for previous, subject in pairwise(("", *order)):
        if position >= len(launches):
            break
        if subject not in symbols and subject == previous:
            continue  # last of one round, first of the next: its launches went to the call before
        if subject in symbols:
            call = launches[position : position + len(symbols[subject])]
            for launch, symbol in zip(call, symbols[subject], strict=False):
                if launch.kernel_name != symbol:
                    raise ProfileFormatError(
                        f"launch {position} is {launch.kernel_name}, where {subject} was launched; "
                        "another program used the GPU under this ncu, or rows are missing"
                    )
                assigned[subject].append(launch)
                position += 1
            continue
        label = reference_name(subject)
        first = position
        while position < len(launches) and launches[position].kernel_name not in ours:
            if position > first and reference_label(launches[position].kernel_name) != label:
                break
            position += 1
        if position == first:
            raise ProfileFormatError(f"no kernel of {subject} was profiled")
        assigned[subject] += launches[first:position]
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
