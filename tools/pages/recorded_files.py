"""What recordings hold of each workload, and what pages say of it: of several recordings that hold
a workload the newest counts, so that a part of the workloads can be recorded anew."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fa_tune.build.compile import kernel_source_sha256
from fa_tune.core.model import Measurement
from fa_tune.core.stats import comparable
from fa_tune.core.workload import Workload
from fa_tune.families import family_names
from fa_tune.families.equal_sources import equal, kind_of
from fa_tune.store import recordings
from fa_tune.store.recordings import Meta, Recording, load

LABELS = {"fa2": "FlashAttention 2", "cudnn": "cuDNN", "fa4": "FlashAttention 4"}
READ = "ref:read"  # a kernel that only reads K and V
Measured = Mapping[str, Measurement]  # by subject


@dataclass(frozen=True)
class Held:
    """One workload of a recording: its measurements by subject, all of one run, and the subject
    that the search chose.  `file` is the recording's name, `changed` are the families whose
    kernels have other sources today."""

    workload: Workload
    meta: Meta
    measured: Measured
    chosen: str
    file: str
    changed: frozenset[str]

    def times(self, library: str) -> float:
        """How many times as fast as a library the choice is."""
        return ratio(self.measured, f"ref:{library}", self.chosen)

    @property
    def libraries(self) -> list[str]:
        """Names of the libraries that were measured beside the choice."""
        found = [s.removeprefix("ref:") for s in self.measured if s.startswith("ref:")]
        return [name for name in found if f"ref:{name}" != READ]


def newest(paths: Iterable[Path]) -> dict[Workload, Held]:
    """Each workload of some recordings, as the one that was taken last has it; of equals the first
    by name."""
    found: dict[Workload, Held] = {}
    loaded = [load(path) for path in sorted(paths)]
    for recording in sorted(loaded, key=lambda r: r.meta.provenance.recorded_at, reverse=True):
        for held in _held(recording):
            found.setdefault(held.workload, held)
    return found


def _held(recording: Recording) -> Iterable[Held]:
    measured: dict[Workload, dict[str, Measurement]] = {}
    for attempt in recording.attempts:
        if attempt.measurement is not None:
            workload = Workload.from_key(attempt.workload)
            measured.setdefault(workload, {})[attempt.subject] = attempt.measurement
    changed = {kind: _changed(recording, kind) for kind in set(map(kind_of, measured))}
    for workload, found in measured.items():
        chosen = recording.meta.decided[workload.key].chosen
        file = recording.path.name
        yield Held(workload, recording.meta, found, chosen, file, changed[kind_of(workload)])


def _changed(recording: Recording, kind: object) -> frozenset[str]:
    then, now = recordings.kernel_source_sha256, kernel_source_sha256
    names = {*recordings.families_in(recording)} & {*family_names()}
    return frozenset(n for n in names if not equal(n, then(recording, n), now(n), [kind]))  # type: ignore[list-item]


def seconds(found: Measurement) -> float:
    """Median time: of the held-out samples, by which nothing was chosen, where there are any."""
    return statistics.median(found.held_out_s or found.samples_s)


def ratio(measured: Measured, a: str, b: str, *, raced: bool = False) -> float:
    """Time of `a` over time of `b`: the median of the ratios within the rounds of both, of the
    held-out ones where both have them; `raced`: of the rounds that the search chose by."""
    held_out = not raced and all(measured[s].held_out_s for s in (a, b))
    taken = {s: measured[s] for s in (a, b)} if held_out else measured
    compared = comparable(
        {s: m.held_out_s if held_out else m.samples_s for s, m in taken.items()},
        {s: m.held_out_relative if held_out else m.relative for s, m in taken.items()},
    )
    return statistics.median(x / y for x, y in zip(compared[a], compared[b], strict=False))


def notes(held: Iterable[Held], family: str) -> str:
    """What recordings say of themselves, and which have kernels of a family that have changed
    since; empty where there is nothing."""
    held = list(held)
    said = {one.file: one.meta.note for one in held if one.meta.note}
    told = [f"`{file}`: {note}." for file, note in sorted(said.items())]
    if changed := sorted({f"`{one.file}`" for one in held if family in one.changed}):
        told.append(f"Recorded before the last change of these kernels: {', '.join(changed)}.")
    return " ".join(told)


def days(metas: Iterable[Meta]) -> str:
    """The day of recordings, or the first and the last: `2026-11-23 to 2026-11-26`."""
    found = {meta.provenance.recorded_at[:10] for meta in metas}
    return " to ".join(dict.fromkeys((min(found), max(found))))


def conditions(held: Iterable[Held]) -> str:
    """Inputs, hardware, versions and dates of recordings, which are of one GPU model and driver."""
    metas = list({id(one.meta): one.meta for one in held}.values())
    inputs, first = metas[0].inputs, metas[0].provenance
    same = {(m.inputs, m.provenance.gpu, m.provenance.driver, m.provenance.nvrtc) for m in metas}
    assert len(same) == 1, f"recordings that do not belong together: {same}"
    libraries = dict.fromkeys(one for m in metas for one in m.measured_by.libraries.split(", "))
    return (
        f"{inputs} inputs, {first.gpu}, driver {first.driver}, CUDA {first.cuda}, "
        f"NVRTC {first.nvrtc}"
        f"{''.join(f', {one}' for one in libraries if one)}; recorded {days(metas)}"
    )


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> str:
    """A Markdown table; the first `words` columns are text, the rest numbers."""
    rules = ["---" if i < words else "---:" for i in range(len(headings))]
    lines = ["| " + " | ".join(headings) + " |", "|" + "|".join(rules) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def between(values: Sequence[float], digits: int) -> str:
    """`1.03 to 1.19`; one number where both are."""
    return " to ".join(dict.fromkeys(f"{end:.{digits}f}" for end in (min(values), max(values))))
