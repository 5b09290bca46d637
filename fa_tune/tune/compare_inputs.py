"""After the decision: the choice, those that may take its place, and the default on all built-in
inputs.  A choice that is behind the default on any of them is not taken.  Beside them the default
runs on the inputs of the search, so that what inputs cost is of paired samples as well.

One process takes all workloads of a search, or of several GPUs each has one that takes its share.
Each sample is compared with the default's right beside it; what comes out is in the journal.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fa_tune.core import codec, input_files
from fa_tune.core.comparison import OnInputs
from fa_tune.core.errors import InvalidConfig, ToolMissing
from fa_tune.core.inputs import BUILT_IN, NORMAL, InputSpec
from fa_tune.core.jobs import CompareInputsJob, InputsItem, InputsResult, KernelItem
from fa_tune.core.model import Artifact, Attempt, Measurement, Outcome
from fa_tune.core.options import Progress
from fa_tune.core.stats import Ratio, median, median_interval
from fa_tune.search.data_dependence import paired_with_own
from fa_tune.search.decide import contenders, sound_choice
from fa_tune.store.fingerprint import Fingerprint
from fa_tune.store.journal_records import AttemptRecord
from fa_tune.tune.dispatch import Request, run_items_on_gpus
from fa_tune.tune.fleet.gpu import WorkerGpu
from fa_tune.tune.outputs import recorded_decision
from fa_tune.tune.results import WorkloadResult
from fa_tune.tune.session import ProfilerSelection, Session
from fa_tune.workers.supervisor import ItemResult

METHOD = "inputs"
MAX_CONTENDERS = 4

Figures = Mapping[str, tuple[OnInputs, ...]]  # by subject


def compare_all(session: Session, results: Sequence[WorkloadResult]) -> list[WorkloadResult]:
    """The results with what the choices do on all inputs, a choice that is behind the default on
    any of them replaced by the next that is not, or the default.  A replay has no GPU to ask, and
    takes what its recording holds.

    What cannot be compared is a warning: the choice then stands.
    """
    if not session.capabilities.measures_anew:
        return [_as_recorded(r, session.selection, session.progress) for r in results]
    requested = _requested(session, results)
    found: dict[str, dict[str, Attempt]] = {}
    try:
        _compare(session, requested, found)
    except ToolMissing as error:
        session.progress.warn(f"the choices were not compared on other inputs: {error}")
    figures = _figures(requested, found, str(session.measure.inputs))
    return [_judged(r, figures.get(r.workload.key, {}), session.progress) for r in results]


@dataclass(frozen=True)
class _InputsRequest:
    """A workload on some inputs: `artifacts` by subject, the one first that the others are
    compared with; `own` are the inputs of the search."""

    workload: str
    spec: InputSpec
    own: InputSpec
    artifacts: Mapping[str, Artifact]

    @property
    def name(self) -> str:
        return f"{self.workload} {self.spec}"

    @property
    def base(self) -> str:
        """The subject that the others are compared with."""
        return next(iter(self.artifacts))

    @property
    def inputs_identity(self) -> str:
        """What a sample depends on, for a fingerprint; of files, by what they hold."""
        if self.spec == self.own:
            return "" if self.spec == NORMAL else input_files.identity(self.spec)
        return " beside ".join(map(input_files.identity, (self.spec, self.own)))

    def subject(self, subject: str) -> str:
        """What the journal calls a comparison."""
        return f"{METHOD}:{subject} / {self.base}"

    def item(self) -> InputsItem:
        kernels = tuple(KernelItem.of(s, a) for s, a in self.artifacts.items())
        own = "" if self.spec == self.own else str(self.own)
        return InputsItem(self.workload, str(self.spec), kernels, own)


def _requested(session: Session, results: Sequence[WorkloadResult]) -> list[_InputsRequest]:
    """Every workload with a decision, on each kind of inputs that it can have."""
    found, own = [], session.measure.inputs
    for result in results:
        known = result.artifacts
        compared = {s: known[s] for s in _compared(result) if s in known}
        for spec in dict.fromkeys([own, *BUILT_IN]) if compared else ():
            with contextlib.suppress(InvalidConfig):  # there are none for this softmax scale
                input_files.check(spec, result.workload)
                found.append(_InputsRequest(result.workload.key, spec, own, compared))
    return found


def _compared(result: WorkloadResult) -> list[str]:
    """The default, if there is one, and who may be chosen."""
    if (decision := result.decision) is None:
        return []
    measurements = [a.measurement for a in result.attempts if a.measurement is not None]
    own = contenders(decision, measurements, result.margin)[:MAX_CONTENDERS]
    return list(dict.fromkeys(own if decision.default is None else (decision.default, *own)))


def _compare(
    session: Session,
    requested: Sequence[_InputsRequest],
    found: dict[str, dict[str, Attempt]],
) -> None:
    """Put the attempts of all requests into `found`, by the worker's item and subject, from the
    journal or new; raises ToolMissing."""
    by_name = {one.name: one for one in requested}
    fingerprints = {one.name: _fingerprint(one, session) for one in requested}
    for name, one in by_name.items() if session.reuse else ():
        digest = fingerprints[name].digest
        known = {
            subject: attempt
            for subject in one.artifacts
            if (attempt := session.journal.find(digest, one.subject(subject), one.workload))
        }
        if len(known) == len(one.artifacts):
            found[name] = known

    def job_of(part: dict[str, InputsItem], gpu: WorkerGpu) -> Request:
        seed = session.measure.seed
        return CompareInputsJob(items=part, device=gpu.worker_device, seed=seed).request()

    def keep(ended: ItemResult, gpu: WorkerGpu, shown: Progress) -> None:
        found[ended.item] = _attempts(by_name[ended.item], ended, gpu.device.uuid)
        for attempt in found[ended.item].values():
            session.journal.append(AttemptRecord(fingerprints[ended.item], attempt))
        if ended.outcome is not Outcome.OK:
            shown.warn(f"{ended.item} inputs: not compared: {ended.outcome}: {ended.reason}")

    items = {one.name: one.item() for one in requested if one.name not in found}
    run_items_on_gpus(session, "other inputs", items, job_of, keep)


def _figures(
    requested: Sequence[_InputsRequest], found: Mapping[str, Mapping[str, Attempt]], own: str
) -> dict[str, Figures]:
    """What is known of each subject, by workload key; `own` are the inputs of the search."""
    figures: dict[str, dict[str, list[OnInputs]]] = {}
    base_to_own: dict[str, dict[str, float]] = {}
    for one in requested:
        inputs = str(one.spec)
        for subject, attempt in found.get(one.name, {}).items():
            if (measurement := attempt.measurement) is None:
                continue
            ratios = measurement.relative
            ratio = Ratio(median(ratios), median_interval(ratios)) if subject != one.base else None
            taken = OnInputs(inputs, median(measurement.samples_s), ratio, error=measurement.error)
            figures.setdefault(one.workload, {}).setdefault(subject, []).append(taken)
            if measurement.to_own_inputs:
                to_own = median(measurement.to_own_inputs)
                base_to_own.setdefault(one.workload, {})[inputs] = to_own
    return {
        key: {s: paired_with_own(f, base_to_own.get(key, {}), own) for s, f in by_subject.items()}
        for key, by_subject in figures.items()
    }


def _fingerprint(one: _InputsRequest, session: Session) -> Fingerprint:
    known = session.fingerprint_without_profiler(METHOD, one.artifacts)
    return dataclasses.replace(known, inputs=one.inputs_identity)


def _attempts(one: _InputsRequest, ended: ItemResult, uuid: str) -> dict[str, Attempt]:
    """An attempt per subject, as the journal keeps it."""
    key, value = one.workload, ended.value
    if ended.outcome is not Outcome.OK or not isinstance(value, dict):
        return {s: Attempt(one.subject(s), key, ended.outcome, ended.reason) for s in one.artifacts}
    found = codec.load(InputsResult, value)
    errors = found.errors or (None,) * len(one.artifacts)
    return {
        subject: Attempt(
            one.subject(subject),
            key,
            Outcome.OK,
            "",
            Measurement(
                one.subject(subject),
                key,
                METHOD,
                samples_s,
                relative=_rounded(relative),
                gpu_uuid=uuid,
                inputs=str(one.spec),
                to_own_inputs=_rounded(found.to_own_inputs) if subject == one.base else (),
                error=error,
            ),
        )
        for subject, samples_s, relative, error in zip(
            one.artifacts, found.samples_s, found.relative, errors, strict=True
        )
    }


def _rounded(ratios: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(ratio, 6) for ratio in ratios)


def _as_recorded(
    result: WorkloadResult, selection: ProfilerSelection, progress: Progress
) -> WorkloadResult:
    """The result with the figures that its recording holds, of those that were replayed."""
    if result.decision is None:
        return result
    decided = recorded_decision(result, selection)
    taken = {a.subject for a in result.attempts if a.measurement is not None}
    figures = _against(result.decision.default, decided.on_inputs if decided is not None else {})
    return _judged(result, {s: found for s, found in figures.items() if s in taken}, progress)


def _against(default: str | None, figures: Figures) -> Figures:
    """Recorded figures beside today's default, where the recording's was another: ratios of
    medians then, which have no interval; none where today's was not compared."""
    base = next((s for s, all_of in figures.items() if not any(f.to_default for f in all_of)), None)
    if base is None or default is None or default == base:
        return figures
    todays = {f.inputs: f.to_default.value for f in figures.get(default, ()) if f.to_default}

    def again(subject: str, found: OnInputs) -> OnInputs:
        own = 1.0 if found.to_default is None else found.to_default.value
        known = subject != default and found.inputs in todays
        ratio = Ratio(own / todays[found.inputs], None) if known else None
        return dataclasses.replace(found, to_default=ratio)

    return {s: tuple(again(s, found) for found in all_of) for s, all_of in figures.items()}


def _judged(result: WorkloadResult, figures: Figures, progress: Progress) -> WorkloadResult:
    """The result with its figures per inputs, and perhaps another choice."""
    decision = result.decision
    if decision is None:
        return result
    measurements = [a.measurement for a in result.attempts if a.measurement is not None]
    sound = sound_choice(decision, measurements, figures, result.margin)
    if sound is not decision:
        progress.warn(f"{result.workload.key}: {sound.sentence}")
    return dataclasses.replace(result, decision=sound, on_inputs=figures)
