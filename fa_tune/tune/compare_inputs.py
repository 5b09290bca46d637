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
from fa_tune.search.decide import Decision, contenders, sound_choice
from fa_tune.store.journal import AttemptRecord, Fingerprint
from fa_tune.tune.fleet.gpu import Gpu
from fa_tune.tune.outputs import recording_of
from fa_tune.tune.results import WorkloadResult
from fa_tune.tune.session import ProfilerSelection, Session
from fa_tune.workers.supervisor import ItemResult

METHOD = "inputs"
START_TIMEOUT_S = 180.0
MAX_CONTENDERS = 4

Artifacts = Mapping[str, Mapping[str, Artifact]]  # by workload key and subject
Figures = Mapping[str, tuple[OnInputs, ...]]  # by subject


def compare_all(
    session: Session, results: Sequence[WorkloadResult], artifacts: Artifacts
) -> list[WorkloadResult]:
    """The results with what the choices do on all inputs, a choice that is behind the default on
    any of them replaced by the next that is not, or the default.  A replay has no GPU to ask, and
    takes what its recording holds.

    What cannot be compared is a warning: the choice then stands.
    """
    if not session.capabilities.measures_anew:
        return [_as_recorded(r, session.selection, session.progress) for r in results]
    comparisons = _Comparisons(session, _requested(session, results, artifacts))
    try:
        comparisons.run()
    except ToolMissing as error:
        session.progress.warn(f"the choices were not compared on other inputs: {error}")
    found = ((result, comparisons.of(result.workload.key)) for result in results)
    return [_judged(result, figures, session.progress) for result, figures in found]


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
        """What the worker calls it."""
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
        """The worker's item."""
        kernels = tuple(KernelItem.of(s, a) for s, a in self.artifacts.items())
        own = "" if self.spec == self.own else str(self.own)
        return InputsItem(self.workload, str(self.spec), kernels, own)


def _requested(
    session: Session, results: Sequence[WorkloadResult], artifacts: Artifacts
) -> list[_InputsRequest]:
    """Every workload with a decision, on each kind of inputs that it can have."""
    found, own = [], session.measure.inputs
    for result in results:
        known = artifacts.get(result.workload.key, {})
        compared = {s: known[s] for s in _compared(result) if s in known}
        for spec in dict.fromkeys([own, *BUILT_IN]) if compared else ():
            with contextlib.suppress(InvalidConfig):  # there are none for this softmax scale
                input_files.check(spec, result.workload)
                found.append(_InputsRequest(result.workload.key, spec, own, compared))
    return found


def _compared(result: WorkloadResult) -> list[str]:
    """The default, if there is one, and who may be chosen."""
    if result.decision is None:
        return []
    default = result.decision.default
    own = _contenders(result, result.decision)
    return list(dict.fromkeys(own if default is None else (default, *own)))


def _contenders(result: WorkloadResult, decision: Decision) -> tuple[str, ...]:
    measurements = [a.measurement for a in result.attempts if a.measurement is not None]
    return contenders(decision, measurements, result.margin)[:MAX_CONTENDERS]


class _Comparisons:
    """All comparisons of one search.  `found` are attempts by the worker's item and subject, from
    the journal or new."""

    def __init__(self, session: Session, requested: Sequence[_InputsRequest]) -> None:
        self.found: dict[str, dict[str, Attempt]] = {}
        self._session = session
        self._requested = {one.name: one for one in requested}
        self._fingerprints = {one.name: _fingerprint(one, session) for one in requested}
        for name, one in self._requested.items() if session.reuse else ():
            digest = self._fingerprints[name].digest
            known = {
                subject: attempt
                for subject in one.artifacts
                if (attempt := session.journal.find(digest, one.subject(subject), one.workload))
            }
            if len(known) == len(one.artifacts):
                self.found[name] = known

    def run(self) -> None:
        """Make the comparisons that the journal does not hold; raises ToolMissing."""
        items = {n: one.item() for n, one in self._requested.items() if n not in self.found}
        pool = self._session.pool
        pool.each(pool.deal(items), self._on_gpu, self._session.progress)

    def of(self, workload: str) -> Figures:
        """What is known of each subject on a workload."""
        figures: dict[str, list[OnInputs]] = {}
        base_to_own: dict[str, float] = {}
        for one in self._requested.values():
            for subject, attempt in self.found.get(one.name, {}).items():
                measurement = attempt.measurement
                if one.workload != workload or measurement is None:
                    continue
                inputs = str(one.spec)
                is_base = subject == one.base
                figures.setdefault(subject, []).append(
                    _figures(inputs, measurement, is_base=is_base)
                )
                if measurement.to_own_inputs:
                    base_to_own[inputs] = median(measurement.to_own_inputs)
        own = str(self._session.measure.inputs)
        return {s: paired_with_own(found, base_to_own, own) for s, found in figures.items()}

    def _on_gpu(self, gpu: Gpu, shown: Progress, part: dict[str, InputsItem]) -> None:
        """A GPU's share.  What has its result is removed from the part, so that another GPU can do
        the rest."""
        shown.stage("other inputs", len(part))
        measure = self._session.measure
        job = CompareInputsJob(items=dict(part), device=gpu.worker_device, seed=measure.seed)
        results = gpu.run_items(
            *job.request(),
            item_timeout_s=measure.item_timeout_s,
            start_timeout_s=START_TIMEOUT_S,
        )
        for result in results:
            one = self._requested[result.item]
            attempts = _attempts(one, result, gpu.device.uuid)
            self.found[result.item] = attempts
            for attempt in attempts.values():
                fingerprint = self._fingerprints[result.item]
                self._session.journal.append(AttemptRecord(fingerprint, attempt))
            if result.outcome is not Outcome.OK:
                shown.warn(f"{one.name} inputs: not compared: {result.outcome}: {result.reason}")
            shown.advance(result.item)
            del part[result.item]


def _fingerprint(one: _InputsRequest, session: Session) -> Fingerprint:
    known = session.fingerprint_without_profiler(METHOD, one.artifacts)
    return dataclasses.replace(known, inputs=one.inputs_identity)


def _attempts(one: _InputsRequest, ended: ItemResult, uuid: str) -> dict[str, Attempt]:
    """An attempt per subject, as the journal keeps it."""
    key, value = one.workload, ended.value
    if ended.outcome is not Outcome.OK or not isinstance(value, dict):
        return {s: Attempt(one.subject(s), key, ended.outcome, ended.reason) for s in one.artifacts}
    found = codec.load(InputsResult, value)
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
                relative=tuple(round(ratio, 6) for ratio in relative),
                gpu_uuid=uuid,
                inputs=str(one.spec),
                to_own_inputs=(
                    tuple(round(ratio, 6) for ratio in found.to_own_inputs)
                    if subject == one.base
                    else ()
                ),
            ),
        )
        for subject, samples_s, relative in zip(
            one.artifacts, found.samples_s, found.relative, strict=True
        )
    }


def _figures(inputs: str, measurement: Measurement, *, is_base: bool) -> OnInputs:
    ratios = measurement.relative
    ratio = None if is_base else Ratio(median(ratios), median_interval(ratios))
    return OnInputs(inputs, median(measurement.samples_s), ratio)


def _as_recorded(
    result: WorkloadResult, selection: ProfilerSelection, progress: Progress
) -> WorkloadResult:
    """The result with the figures that its recording holds, of those that were replayed."""
    if result.decision is None:
        return result
    recording = recording_of(result.decision.chosen.subject, result, selection)
    decided = recording.meta.decided.get(result.workload.key) if recording is not None else None
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
