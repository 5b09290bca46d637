"""Every choice against the default it replaces: is any of them slower?

For a registry these are its entries' own figures.  For recordings, each workload is decided again
as the search that recorded it decided; the default took part in every search.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fa_tune.core.comparison import OnInputs
from fa_tune.core.devices import limits_of
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.files import check_folder
from fa_tune.core.model import Measurement
from fa_tune.core.stats import Ratio
from fa_tune.core.workload import Workload
from fa_tune.lab.repeatability import is_slower
from fa_tune.search.decide import Decision, decide, sound_choice
from fa_tune.store.recordings import Meta, Recording, load_all
from fa_tune.store.registry.schema import Entry
from fa_tune.tune.candidates import default_keys
from fa_tune.tune.tie_break import TieBreak

NEVER = (1 << 30,)

REGISTRY = "registry"  # where a choice is from that is kept there


@dataclass(frozen=True)
class DefaultComparison:
    """One choice.  `ratio` is its time over the default's, which is None where the choice is the
    default or where that was not measured (`default` is None then); `confirmed` the same from
    the comparison after the search, `on_inputs` that on each kind of inputs.  `source` says where
    it is kept."""

    source: str
    gpu: str
    workload: Workload
    method: str
    chosen: str
    default: str | None
    ratio: Ratio | None
    confirmed: Ratio | None
    n: int
    on_inputs: tuple[OnInputs, ...] = ()

    @property
    def is_default(self) -> bool:
        return self.chosen == self.default

    @property
    def slower(self) -> bool:
        """Whether the choice is slower than the default, beyond the margin and chance."""
        found = [r for r in (self.ratio, self.confirmed) if r is not None]
        return not self.is_default and (any(map(is_slower, found)) or bool(self.behind_on))

    @property
    def behind_on(self) -> tuple[str, ...]:
        """The inputs on which the choice is behind the default by more than a choice may be."""
        return tuple(found.inputs for found in self.on_inputs if found.is_behind)


def compare_registry(entries: Iterable[Entry]) -> list[DefaultComparison]:
    """What a registry keeps, in its order."""
    found = []
    for entry in entries:
        chosen = entry.chosen.key
        default = entry.default.key if entry.default is not None else None
        confirmed = entry.confirmation
        if confirmed is not None and not confirmed.upheld:
            confirmed = None  # that comparison put the default in its place
        found.append(
            DefaultComparison(
                REGISTRY,
                entry.gpu.name,
                entry.workload,
                entry.method,
                chosen,
                default if default == chosen or entry.ratio_to_default is not None else None,
                entry.ratio_to_default if default != chosen else None,
                confirmed.ratio if confirmed is not None else None,
                entry.n,
                entry.on_inputs,
            )
        )
    return found


def compare_recordings(
    folder: Path, gpu: str | None = None, method: str | None = None
) -> list[DefaultComparison]:
    """What the searches recorded in a folder, of a GPU and by a method if given, chose, each
    recording for itself; raises ProfileFormatError, and StorageError for a folder that does not
    exist."""
    check_folder(folder)

    def wanted(meta: Meta) -> bool:
        return gpu in (None, meta.device.name) and method in (None, meta.provenance.method)

    found = load_all(folder, of=wanted)
    return [comparison for recording in found for comparison in compare_recording(recording)]


@dataclass(frozen=True)
class Redecided:
    """One workload of a recorded search, decided again; `default` is None where none of the
    defaults was measured."""

    workload: Workload
    decision: Decision
    default: str | None
    figures: Mapping[str, tuple[OnInputs, ...]]


def decided_again(recording: Recording) -> Iterator[Redecided]:
    """What one recorded search found, workload by workload."""
    by_workload: dict[str, list[Measurement]] = {}
    for attempt in recording.attempts:
        if attempt.measurement is not None:
            found = attempt.measurement
            by_workload.setdefault(attempt.workload, []).append(found)
    device = recording.meta.device
    for key, measurements in by_workload.items():
        workload = Workload.from_key(key)
        taken = {m.subject for m in measurements}
        defaults = default_keys(workload, limits_of(device), taken)
        default = next((key for key in defaults if key in taken), None)
        ranks, margin = _as_then(recording, workload, measurements)
        try:
            decision = decide(
                measurements,
                default,
                tie_break=lambda s, ranks=ranks: ranks.get(s, NEVER),  # type: ignore[misc]
                **margin,
            )
        except NoUsableVariant:
            continue  # references alone
        decided = recording.meta.decided.get(key)
        figures = decided.on_inputs if decided is not None else {}
        decision = sound_choice(decision, measurements, figures, **margin)
        yield Redecided(workload, decision, default, figures)


def compare_recording(recording: Recording) -> Iterator[DefaultComparison]:
    """What one recorded search chose, workload by workload."""
    for found in decided_again(recording):
        workload, decision, default = found.workload, found.decision, found.default
        decided = recording.meta.decided.get(workload.key)
        chosen = decision.chosen.subject
        confirmed = decided.confirmed if decided is not None else None
        ratio = None
        if confirmed is not None and (confirmed.chosen, confirmed.default) == (chosen, default):
            chosen, ratio = confirmed.left, confirmed.ratio if confirmed.upheld else None
        yield DefaultComparison(
            recording.label,
            recording.meta.device.name,
            workload,
            decision.method,
            chosen,
            default,
            decision.to_default if chosen != default else None,
            ratio,
            decision.chosen.n,
            found.figures.get(chosen, ()),
        )


def _as_then(
    recording: Recording, workload: Workload, measurements: Sequence[Measurement]
) -> tuple[Mapping[str, tuple[int, ...]], dict[str, float]]:
    """Ranks and margin of the search that was recorded, as far as it tells."""
    known = TieBreak(replayed={recording.label: recording})
    found = known.of_replay(workload, [_labelled(m, recording.label) for m in measurements])
    return ({}, {}) if found is None else (found[0], {"margin": found[1]})


def _labelled(measurement: Measurement, label: str) -> Measurement:
    return dataclasses.replace(measurement, replayed_from=label)
