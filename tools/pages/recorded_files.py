"""Which recording a page quotes for a workload: of several that hold it the newest.

So a part of the workloads can be recorded anew, beside a recording of more, whose other workloads
go on to count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from fa_tune.build.compile import kernel_source_sha256
from fa_tune.core.model import Measurement
from fa_tune.core.workload import Workload
from fa_tune.evaluate.default_check import compare_recording
from fa_tune.families import family_names
from fa_tune.families.equal_sources import Kind, equal, kind_of
from fa_tune.store import recordings
from fa_tune.store.recordings import Meta, Recording, load, load_meta


@dataclass(frozen=True)
class Held:
    """One workload of a recording: its measurements by subject, all of one run, and the subject
    that the search chose, empty where it chose none.  `file` is the recording's name, `changed` are
    the families whose kernels have other sources today."""

    meta: Meta
    measured: Mapping[str, Measurement]
    chosen: str
    file: str
    changed: frozenset[str]


def newest(paths: Iterable[Path]) -> dict[Workload, Held]:
    """Each workload of some recordings, as the one that was taken last has it; of equals the first
    by name."""
    found: dict[Workload, Held] = {}
    for path in sorted(sorted(paths), key=_taken_at, reverse=True):
        for workload, held in _held(load(path)):
            found.setdefault(workload, held)
    return found


def _taken_at(path: Path) -> str:
    return load_meta(path).provenance.recorded_at


def _held(recording: Recording) -> Iterable[tuple[Workload, Held]]:
    measured: dict[Workload, dict[str, Measurement]] = {}
    for attempt in recording.attempts:
        if attempt.measurement is not None:
            workload = Workload.from_key(attempt.workload)
            measured.setdefault(workload, {})[attempt.subject] = attempt.measurement
    chosen = _choices(recording, measured)
    file, changed = recording.path.name, cache(partial(_changed, recording))
    for workload, found in measured.items():
        own = chosen.get(workload, "")
        yield workload, Held(recording.meta, found, own, file, changed(kind_of(workload)))


def _changed(recording: Recording, kind: Kind) -> frozenset[str]:
    """Families whose kernels of a kind are not what they were."""
    return frozenset(
        name
        for name in {*recordings.families_in(recording)} & {*family_names()}
        if not equal(
            name,
            recordings.kernel_source_sha256(recording, name),
            kernel_source_sha256(name),
            [kind],
        )
    )


def _choices(recording: Recording, workloads: Collection[Workload]) -> Mapping[Workload, str]:
    """As the recording says, or in older ones as the search decides on what they hold."""
    decided = recording.meta.decided
    told = {w: decided[w.key].chosen for w in workloads if w.key in decided}
    if all(told.get(w) for w in workloads):
        return told
    again = {one.workload: one.chosen for one in compare_recording(recording)}
    return again | {w: subject for w, subject in told.items() if subject}


def notes(held: Iterable[Held], family: str) -> str:
    """What has to be known of recordings beside their conditions: what they say of themselves, and
    which have kernels of a family that have changed since; empty where there is nothing."""
    held = list(held)
    said = {one.file: one.meta.note for one in held if one.meta.note}
    told = [f"`{file}`: {note}." for file, note in sorted(said.items())]
    if changed := sorted({one.file for one in held if family in one.changed}):
        files = ", ".join(f"`{file}`" for file in changed)
        told.append(f"Recorded before the last change of these kernels: {files}.")
    return " ".join(told)


def days(metas: Iterable[Meta]) -> str:
    """The day of recordings, or the first and the last: `2026-11-23 to 2026-11-26`."""
    found = {meta.provenance.recorded_at[:10] for meta in metas}
    return " to ".join(dict.fromkeys((min(found), max(found))))


def conditions(metas: Iterable[Meta]) -> str:
    """Inputs, hardware, versions and dates of recordings, which are of one GPU model and driver."""
    told = list({id(meta): meta for meta in metas}.values())
    inputs, first = told[0].inputs, told[0].provenance
    same = {(m.inputs, m.provenance.gpu, m.provenance.driver, m.provenance.nvrtc) for m in told}
    assert len(same) == 1, f"recordings that do not belong together: {same}"
    libraries = dict.fromkeys(one for m in told for one in m.measured_by.libraries.split(", "))
    return (
        f"{inputs} inputs, {first.gpu}, driver {first.driver}, CUDA {first.cuda}, "
        f"NVRTC {first.nvrtc}"
        f"{''.join(f', {one}' for one in libraries if one)}; recorded {days(told)}"
    )
