"""What a search prefers in a tie, known before anything is measured.

Configs within the noise of each other change places from one search to the next, and so would a
choice by their times.  It is made by what is the same in every search instead: how the config did
on neighbouring workloads in the recordings that come with fa-tune, then on neighbours in this
search or the registry, then by shared memory and registers.  How good it was on this very workload
is to be found out; what is recorded of that only keeps the choice clear of limits.  Who was near
the limit of a tie there comes after all who were not; and the margin that the default has to be
beaten by is the one that it was not near.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fa_tune.core import paths
from fa_tune.core.errors import FaTuneError
from fa_tune.core.inputs import NORMAL
from fa_tune.core.model import Artifact, Measurement, is_reference
from fa_tune.core.stats import MARGIN
from fa_tune.core.workload import Workload
from fa_tune.search.neighbor_regret import (
    Neighbour,
    is_near_tie_limit,
    margin_over,
    neighbour,
    recorded_regret_bucket,
    regret_bucket,
)
from fa_tune.store import recordings
from fa_tune.store.recordings import Recording
from fa_tune.store.registry.lookup import distance, same_kind
from fa_tune.tune.session import Session

NEAR = 2.0  # doublings within which a workload is a neighbour
MAX_NEIGHBOURS = 2

Rank = tuple[int, ...]  # the smallest is preferred


@dataclass(frozen=True)
class TieBreak:
    """`recorded` is what recordings of this GPU model, taken with this method, say of workloads;
    `replayed` are those that a replay answers from, by their labels."""

    recorded: Mapping[Workload, Neighbour] = field(default_factory=dict)
    replayed: Mapping[str, Recording] = field(default_factory=dict)

    def margin(self, workload: Workload, default: str | None) -> float:
        """What the default of a workload has to be beaten by, as a fraction."""
        return MARGIN if default is None else margin_over(default, self.recorded.get(workload))

    def ranks(
        self,
        workload: Workload,
        artifacts: Mapping[str, Artifact],
        neighbours: Sequence[Neighbour] = (),
    ) -> dict[str, Rank]:
        """The rank of each subject; `neighbours` are those that were measured in this search or
        are in the registry."""
        recorded = neighbours_of(workload, self.recorded)
        here = self.recorded.get(workload)
        return {
            subject: (
                int(is_near_tie_limit(subject, here)),
                recorded_regret_bucket(subject, recorded),
                regret_bucket(subject, neighbours),
                artifact.resources.dynamic_smem_bytes,
                artifact.resources.registers,
            )
            for subject, artifact in artifacts.items()
        }

    def of_replay(
        self, workload: Workload, measurements: Sequence[Measurement]
    ) -> tuple[dict[str, Rank], float] | None:
        """Ranks and margin as they were when these were measured; None where they were not all in
        one search, or its recording does not tell."""
        ours = [m for m in measurements if not is_reference(m.subject)]
        places = {m.subject: m.preference for m in ours if m.preference is not None}
        labels = {m.replayed_from for m in ours}
        recording = self.replayed.get(labels.pop()) if len(labels) == 1 else None
        decided = recording.meta.decided.get(workload.key) if recording is not None else None
        if decided is None or len(places) < len(ours):
            return None
        return {subject: (place,) for subject, place in places.items()}, decided.margin

    def order(self, workload: Workload, artifacts: Mapping[str, Artifact]) -> tuple[str, ...]:
        """The subjects by what is known of them before this search."""
        ranks = self.ranks(workload, artifacts)
        return tuple(sorted(artifacts, key=lambda s: (ranks[s], s)))


def tie_break_for(session: Session, workloads: Iterable[Workload]) -> TieBreak:
    """What the recordings of a checkout or an installation say of workloads like these; for a
    replay, which measures nothing new, what was said when its recordings were made.  Recordings
    that cannot be read are a warning."""
    selection = session.selection
    if not session.capabilities.measures_anew:
        return TieBreak(replayed={r.label: r for r in selection.recordings})
    folder = session.machine.options.recordings or paths.profiles_dir()
    requested, normal = str(session.measure.inputs), str(NORMAL)
    wanted = {(selection.device.name, selection.method, inputs) for inputs in (requested, normal)}
    try:
        found = recordings.load_all(
            folder,
            of=lambda m: (m.device.name, m.provenance.method, m.inputs) in wanted,
            like=workloads,
        )
    except FaTuneError as error:
        session.progress.warn(f"ties are not settled by recordings: {error}")
        return TieBreak()

    # Of the same inputs where there are any; else of normal ones, as all once were.
    of_requested, of_normal = (
        [r for r in found if r.meta.inputs == inputs] for inputs in (requested, normal)
    )
    return TieBreak(recorded_neighbours(of_requested, of_normal))


class _Recorded(Mapping[Workload, Neighbour]):
    """What measurements say of each workload, worked out when it is asked for: a search asks for a
    few of hundreds."""

    def __init__(self, measured: Mapping[Workload, Sequence[Measurement]]) -> None:
        self._measured = measured
        self._known: dict[Workload, Neighbour] = {}

    def __getitem__(self, workload: Workload) -> Neighbour:
        if workload not in self._known:
            found = neighbour(self._measured[workload])
            if found is None:
                raise KeyError(workload)
            self._known[workload] = found
        return self._known[workload]

    def __iter__(self) -> Iterator[Workload]:
        return iter(self._measured)

    def __len__(self) -> int:
        return len(self._measured)


def recorded_neighbours(*found: Iterable[Recording]) -> Mapping[Workload, Neighbour]:
    """What recordings say of each workload: those of the first group that know it, and of these
    the one that holds most of it, the first of equals."""
    measured: dict[Workload, Sequence[Measurement]] = {}
    for group in reversed(found):
        measured |= _measured(group)
    return _Recorded(measured)


def _measured(found: Iterable[Recording]) -> dict[Workload, Sequence[Measurement]]:
    most: dict[str, list[Measurement]] = {}
    for recording in found:
        held: dict[str, list[Measurement]] = {}
        for attempt in recording.attempts:
            if attempt.measurement is not None:
                held.setdefault(attempt.workload, []).append(attempt.measurement)
        for key, measurements in held.items():
            if len(measurements) > len(most.get(key, ())):
                most[key] = measurements
    return {
        Workload.from_key(key): measurements
        for key, measurements in most.items()
        if any(m.samples_s and not is_reference(m.subject) for m in measurements)
    }


def neighbours_of(workload: Workload, known: Mapping[Workload, Neighbour]) -> tuple[Neighbour, ...]:
    """The nearest of the known workloads of the same kind."""
    near = sorted(
        (apart, other)
        for other in known
        if same_kind(other, workload) and 0.0 < (apart := distance(other, workload)) <= NEAR
    )
    return tuple(known[other] for _, other in near[:MAX_NEIGHBOURS])
