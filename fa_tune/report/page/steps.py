"""Training steps: what the attention of a forward and of a backward pass takes together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fa_tune.core.workload import BACKWARD, FORWARD
from fa_tune.report.page.figures import MS, Place, Records, parts_of
from fa_tune.store.table.rows import Row


@dataclass(frozen=True)
class Step:
    """Both passes of one problem, with the log-sum-exp between them: medians of what is chosen, in
    seconds; `speed_over`: their speed together over that of both passes of each library."""

    problem: str
    forward_s: float
    backward_s: float
    speed_over: Mapping[str, float]

    @property
    def both_s(self) -> float:
        """The time of both."""
        return self.forward_s + self.backward_s


def steps(found: Sequence[Place]) -> Iterator[Step]:
    """One for each backward pass whose forward pass is beside it, measured in the same way."""
    timed = {_key(place, row): (place, row.rank_s) for place, row in _chosen(found)}
    for place, row in _chosen(found):
        workload = row.workload
        if workload is None or workload.op != BACKWARD or row.rank_s is None:
            continue
        forward = replace(workload, op=FORWARD, lse=True)
        before, forward_s = timed.get(_key(place, row, forward.key), (None, None))
        if before is None or forward_s is None:
            continue
        over = {name: ratio.value for name, ratio in place.over_libraries.items()}
        both = forward_s + row.rank_s
        yield Step(
            ", ".join(part for part in parts_of(place.label) if part != BACKWARD),
            forward_s,
            row.rank_s,
            {
                name: (forward_s * ratio.value + row.rank_s * over[name]) / both
                for name, ratio in before.over_libraries.items()
                if name in over
            },
        )


def records(found: Sequence[Place]) -> Records:
    """Steps for a page, each with the fastest library's."""
    out: Records = []
    for step in steps(found):
        nearest = min(step.speed_over, key=lambda name: step.speed_over[name], default="")
        out.append(
            {
                "workload": step.problem,
                "forward_ms": step.forward_s * MS,
                "backward_ms": step.backward_s * MS,
                "both_ms": step.both_s * MS,
                "library": nearest,
                "times": step.speed_over.get(nearest),
                "others": ", ".join(f"{name} {v:.2f}" for name, v in step.speed_over.items()),
            }
        )
    return out


def _chosen(found: Sequence[Place]) -> Iterator[tuple[Place, Row]]:
    return ((place, row) for place in found if (row := place.chosen_row) is not None)


def _key(place: Place, row: Row, workload: str = "") -> tuple[str, ...]:
    return (workload or place.key, place.source.name, row.source, row.method, row.inputs)
