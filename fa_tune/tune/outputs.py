"""What outlives a search: registry entries, the CSV, a recording."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Lock

from fa_tune import __version__, families
from fa_tune.build import nvrtc
from fa_tune.build.compile import kernel_source_sha256
from fa_tune.core import files
from fa_tune.core.devices import cuda_driver_version
from fa_tune.core.errors import StorageError
from fa_tune.core.inputs import NORMAL, InputSpec
from fa_tune.core.model import (
    Attempt,
    Outcome,
    Provenance,
    Resources,
    Variant,
    is_reference,
    is_users,
    reference_name,
)
from fa_tune.core.options import KernelOptions
from fa_tune.core.workload import FORWARD
from fa_tune.operations import flops
from fa_tune.search.decide import Decision, Standing
from fa_tune.store import recordings
from fa_tune.store.recordings import SOURCES, UNFINISHED, Decided, MeasuredBy, Recording
from fa_tune.store.registry import file as registry_file
from fa_tune.store.registry.combine import FoundEntry
from fa_tune.store.registry.schema import (
    Confirmed,
    Entry,
    Gpu,
    InputFigures,
    RunnerUp,
    VerdictSummary,
)
from fa_tune.store.shared_files import check_lockable
from fa_tune.store.table.from_attempts import rows_from_attempts
from fa_tune.store.table.write_csv import write_report
from fa_tune.tune.results import SearchResult, WorkloadResult
from fa_tune.tune.session import ProfilerSelection

MAX_RUNNERS_UP = 5
CUT_OFF = "the search was cut off: no A/B test of the choices, nor other inputs"


def registry_path(given: Path | None) -> Path:
    """The registry a search writes to: the one given, or the user's own."""
    return given or registry_file.default_path()


def check_writable(options: KernelOptions, registry: Path | None = None) -> None:
    """Raise StorageError or RegistryError before any work is done rather than after all of it."""
    for path, option in ((registry, "--registry"), (options.csv, "--csv")):
        if path is not None and path.is_dir():
            raise StorageError(f"{path} is a folder, where a file is to be written")
        if path is not None:
            files.check_replaceable(path, f"{option} names another place")
    if options.record is not None:
        if options.record.is_file():
            raise StorageError(f"cannot write {options.record}: {options.record} is not a folder")
        files.check_writable(options.record, "--record names another place")
    if registry is not None:
        if registry.parent.is_dir():
            check_lockable(registry, "registry")
        registry_file.load(registry)


def save_csv(path: Path, result: SearchResult) -> None:
    """The table of all workloads as CSV, whole or not at all; raises StorageError."""
    table = io.StringIO(newline="")
    write_report(rows_from_attempts(result.attempts, result.resources), table)
    with files.storage_errors(f"cannot write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace_file(path, table.getvalue().encode())


class Recorder:
    """Writes the recording of a search: while it measures what there is, beside an older
    recording of the same name, which is replaced when the search has ended.

    `<record>/<gpu>/<set>_<inputs>_<method>.csv` and its provenance, where normal inputs are not
    named, and an operation that is not forward comes first; until then `…_unfinished.csv`,
    which an interrupted search leaves: a recording of the workloads that it has measured, with
    the choice that each of them gives.  Workloads may come from several threads.
    """

    def __init__(self, folder: Path, options: KernelOptions, selection: ProfilerSelection) -> None:
        self.of = partial(Recorder, folder, options)  # the same of another selection
        op = options.workloads.op
        what = _in_file_name(options.kernels if op == FORWARD else f"{op} {options.kernels}")
        name = f"{what}{_of_inputs(selection.inputs)}_{selection.method}"
        self.path = folder / selection.device.slug / f"{name}.csv"
        self._unfinished = self.path.with_name(f"{name}{UNFINISHED}.csv")
        self._selection = selection
        self._found: list[WorkloadResult] = []
        self._lock = Lock()

    def add(self, found: WorkloadResult) -> None:
        """One workload is measured; raises StorageError."""
        with self._lock:
            self._found.append(found)
            self._save_results(self._unfinished, self._found, CUT_OFF)

    def finish(self, results: Sequence[WorkloadResult]) -> None:
        """All are decided; raises StorageError."""
        self._save_results(self.path, results)
        recordings.remove(self._unfinished)

    def _save_results(self, path: Path, results: Sequence[WorkloadResult], note: str = "") -> None:
        attempts = [a for found in results for a in _preferred(found)]
        resources = {s: a.resources for r in results for s, a in r.artifacts.items()}
        decided = {
            r.workload.key: Decided(
                r.margin, r.confirmation, r.decision.chosen.subject, r.on_inputs
            )
            for r in results
            if r.decision is not None
        }
        self.keep(attempts, resources, decided, path, note)

    def keep(
        self,
        attempts: Sequence[Attempt],
        resources: Mapping[str, Resources],
        decided: Mapping[str, Decided] | None = None,
        path: Path | None = None,
        note: str = "",
    ) -> None:
        """Measurements, and what is decided by them; raises StorageError."""
        subjects = {a.subject for a in attempts if not is_reference(a.subject)}
        origin = provenance(self._selection, sorted({Variant.from_key(s).family for s in subjects}))
        meta = recordings.Meta(
            recordings.SCHEMA,
            self._selection.device,
            origin,
            note,
            decided=decided or {},
            measured_by=MeasuredBy.of(attempts),
            inputs=str(self._selection.inputs),
        )
        recordings.save(path or self.path, attempts, resources, meta)


def _in_file_name(text: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in text)


def _of_inputs(inputs: InputSpec) -> str:
    if inputs == NORMAL:
        return ""
    return "_" + _in_file_name(Path(inputs.path).stem if inputs.path else str(inputs))


def _preferred(result: WorkloadResult) -> Iterator[Attempt]:
    """The attempts of a workload, each measurement with its place in what a tie preferred."""
    places = {s: i for i, s in enumerate(sorted(result.ranks, key=lambda s: (result.ranks[s], s)))}
    for attempt in result.attempts:
        found, place = attempt.measurement, places.get(attempt.subject)
        if found is None or place is None:
            yield attempt
        else:
            yield replace(attempt, measurement=replace(found, preference=place))


def provenance(selection: ProfilerSelection, names: Sequence[str]) -> Provenance:
    """Where this run's measurements of these families come from."""
    profiler = selection.profiler
    sources = {name: kernel_source_sha256(name) for name in names}
    return Provenance(
        gpu=selection.device.name,
        driver=selection.device.driver,
        cuda=cuda_driver_version(),
        nvrtc=nvrtc.version(),
        method=profiler.method,
        profiler_version=profiler.version,
        profiler_args=profiler.arguments,
        clock_policy=profiler.clock_policy,
        cache_policy=profiler.cache_policy,
        kernel_source_sha256=kernel_source_sha256(*names),
        recorded_at=datetime.now(UTC).isoformat(timespec="seconds"),
        fa_tune_version=__version__,
        extra={SOURCES: sources} if len(sources) > 1 else {},
    )


def _origin(
    chosen: Variant, recording: Recording | None, selection: ProfilerSelection
) -> Provenance:
    """Where the chosen variant's measurement comes from; a replay's is its recording's."""
    if recording is None:
        return provenance(selection, (chosen.family,))
    recorded = recording.meta.provenance
    extra = {name: value for name, value in recorded.extra.items() if name != SOURCES}
    sha256 = recordings.kernel_source_sha256(recording, chosen.family)
    return replace(recorded, kernel_source_sha256=sha256, extra=extra)


def keep_in_registry(
    path: Path, result: SearchResult, selection: ProfilerSelection
) -> tuple[str, ...]:
    """Put every decision into the registry; returns what was not taken, and why.  Raises
    RegistryError, StorageError."""
    entries = []
    for found in result.results:
        if found.decision is not None:
            entry = entry_of(found, found.decision, selection)
            others = {r.variant: r for r in _runners_up(found.decision.runners_up)}
            failed = {
                Variant.from_key(a.subject)
                for a in found.attempts
                if a.outcome not in (Outcome.OK, Outcome.NOT_RECORDED)
                and not is_reference(a.subject)
            }
            entries.append(FoundEntry(entry, others, failed))
    return registry_file.put(path, entries)


def _runners_up(standings: Sequence[Standing]) -> tuple[RunnerUp, ...]:
    return tuple(RunnerUp(Variant.from_key(s.subject), s.median_s, s.to_chosen) for s in standings)


def entry_of(result: WorkloadResult, decision: Decision, selection: ProfilerSelection) -> Entry:
    """A decision as the registry keeps it."""
    chosen = Variant.from_key(decision.chosen.subject)
    family = families.get(chosen.family)
    config = families.config_of(chosen)
    verdict = result.verdicts.get(decision.chosen.subject)
    replay = not selection.capabilities.measures_anew
    recording = recording_of(decision.chosen.subject, result, selection) if replay else None
    return Entry(
        gpu=Gpu(selection.device.name, selection.device.compute_capability),
        workload=result.workload,
        method=decision.method,
        inputs=result.inputs,
        source="replay" if replay else "measured",
        recording=recording.label if recording else None,
        chosen=chosen,
        traits=family.traits(config, result.workload),
        reason=decision.sentence,
        median_s=decision.chosen.median_s,
        interval_s=decision.chosen.interval_s,
        n=decision.chosen.n,
        tflops=flops.tflops(flops.matmul_flop(result.workload), decision.chosen.median_s),
        default=Variant.from_key(decision.default) if decision.default else None,
        ratio_to_default=decision.to_default,
        ratio_to_references={
            reference_name(name): ratio
            for name, ratio in decision.to_references.items()
            if not is_users(name)
        },
        tie_set=tuple(Variant.from_key(s) for s in decision.tie_set),
        runners_up=_runners_up(decision.runners_up[:MAX_RUNNERS_UP]),
        verdict=VerdictSummary.of(verdict) if verdict is not None else None,
        confirmation=Confirmed.of(result.confirmation) if result.confirmation else None,
        per_inputs={
            found.inputs: InputFigures(
                found.median_s, found.to_default, found.to_own_inputs, found.error
            )
            for found in result.on_inputs.get(decision.chosen.subject, ())
        },
        provenance=_origin(chosen, recording, selection),
        served=result.served,
    )


def recording_of(
    subject: str, result: WorkloadResult, selection: ProfilerSelection
) -> Recording | None:
    """The recording that a replayed measurement came from; several may have been replayed."""
    for attempt in result.attempts:
        if attempt.subject == subject and attempt.measurement is not None:
            label = attempt.measurement.replayed_from
            found = next((r for r in selection.recordings if r.label == label), None)
            return found or selection.recording
    return selection.recording


def recorded_decision(result: WorkloadResult, selection: ProfilerSelection) -> Decided | None:
    """What the recording that the choice was replayed from says of the decision there."""
    if result.decision is None:
        return None
    recording = recording_of(result.decision.chosen.subject, result, selection)
    return None if recording is None else recording.meta.decided.get(result.workload.key)
