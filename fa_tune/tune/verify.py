"""Verification through worker processes, remembered in the journal; and the pair of kernels by
which several GPUs are compared, which is timed in the same processes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fa_tune import families
from fa_tune.build.compile import BuildRequest
from fa_tune.core import input_files
from fa_tune.core.arch import ArchLimits
from fa_tune.core.inputs import InputSpec, Kind
from fa_tune.core.jobs import CALIBRATION, CalibrateJob, PairItem, PairTimes, VerifyItem, VerifyJob
from fa_tune.core.model import Artifact, Attempt, Outcome, Verdict
from fa_tune.core.options import Progress
from fa_tune.core.workload import Workload
from fa_tune.operations import flops
from fa_tune.operations.verification import verdict_from_json
from fa_tune.store.journal import AttemptRecord, VerdictRecord
from fa_tune.tune.fleet.calibration import Pair, gpu_times
from fa_tune.tune.fleet.gpu import Gpu
from fa_tune.tune.session import Session
from fa_tune.workers.supervisor import ItemResult

NO_WORKLOAD = "verify"  # a verdict is about a kernel, not about one workload
PAIR_FLOP = 1e12  # a kernel of milliseconds, which shows what a GPU's power limit does

Items = Mapping[str, VerifyItem]


@dataclass(frozen=True)
class Verified:
    """Verdicts by `verdict_key`, and attempts that ended without one (crashed, timed out)."""

    verdicts: Mapping[str, Verdict]
    failures: Mapping[str, Attempt]

    def joined(self, other: Verified) -> Verified:
        """Both."""
        return Verified({**self.verdicts, **other.verdicts}, {**self.failures, **other.failures})


def verdict_key(artifact: Artifact) -> str:
    """What a verdict is about: a variant with the traits it was compiled for."""
    return _verdict_key(artifact)


def _verdict_key(of: Artifact | BuildRequest) -> str:
    return f"{of.variant.key} @ {of.traits}"


def is_verified(session: Session, requests: Iterable[BuildRequest]) -> bool:
    """Whether the journal knows what becomes of every one of these kernels."""
    digests: dict[str, str] = {}
    for request in requests:
        name = request.variant.family
        if name not in digests:
            digests[name] = session.fingerprint(0, (name,)).for_verify().digest
        key, digest, journal = _verdict_key(request), digests[name], session.journal
        known = journal.find_verdict(digest, key) or journal.find(digest, key, NO_WORKLOAD)
        if known is None:
            return False
    return session.reuse


def verify_all(
    session: Session,
    artifacts: Sequence[Artifact],
    inputs: Sequence[InputSpec] = (),
    *,
    thorough: bool = False,
    also_on: Mapping[str, Workload] | None = None,
) -> Verified:
    """Whether each kernel's results are right, on the verification's own inputs and on `inputs`,
    `thorough` on more cases, and on the workload that `also_on` has for its `verdict_key`.  Raises
    InvalidConfig for a file that does not fit the cases.

    Verdicts and failures are remembered, so that a resumed search does not die twice of the same
    kernel.  Several GPUs share the work, and each that has some times the pool's calibration pair
    besides.
    """
    _check_files(artifacts, inputs, thorough=thorough)
    also = ", ".join(map(input_files.identity, inputs))
    fingerprints = {
        name: replace(session.fingerprint(0, (name,)).for_verify(), inputs=also)
        for name in {a.variant.family for a in artifacts}
    }
    wanted = {verdict_key(artifact): artifact for artifact in artifacts}
    digests = {k: fingerprints[a.variant.family].digest for k, a in wanted.items()}
    verdicts, failures = _remembered(session, digests) if session.reuse else ({}, {})
    left = {k: a for k, a in wanted.items() if k not in verdicts and k not in failures}

    def verify(gpu: Gpu, shown: Progress, part: dict[str, Artifact]) -> None:
        """What has its result is removed from the part, so that the rest can be done elsewhere."""
        shown.stage("verify", len(part))
        more = {key: workload.key for key, workload in (also_on or {}).items()}
        items = {
            key: VerifyItem.of_artifact(artifact, more.get(key, ""))
            for key, artifact in part.items()
        }
        texts = tuple(map(str, inputs))
        for result in _run(session, gpu, shown, items, texts, thorough=thorough):
            variant = part.pop(result.item).variant
            shown.advance(variant.config)
            fingerprint = fingerprints[variant.family]
            if result.outcome is Outcome.OK and isinstance(result.value, dict):
                verdict = verdict_from_json(result.value)
                verdicts[result.item] = verdict
                session.journal.append(VerdictRecord(fingerprint, result.item, verdict))
            else:
                failure = Attempt(result.item, NO_WORKLOAD, result.outcome, result.reason)
                failures[result.item] = failure
                session.journal.append(AttemptRecord(fingerprint, failure))

    session.pool.each(session.pool.deal(left), verify, session.progress)
    return Verified(verdicts, failures)


def _remembered(
    session: Session, digests: Mapping[str, str]
) -> tuple[dict[str, Verdict], dict[str, Attempt]]:
    """Verdicts and failures of the kernels, by key, that the journal has under these digests."""
    verdicts: dict[str, Verdict] = {}
    failures: dict[str, Attempt] = {}
    for key, digest in digests.items():
        if (known := session.journal.find_verdict(digest, key)) is not None:
            verdicts[key] = known
        elif (failure := session.journal.find(digest, key, NO_WORKLOAD)) is not None:
            failures[key] = failure
    return verdicts, failures


def _check_files(
    artifacts: Sequence[Artifact], inputs: Sequence[InputSpec], *, thorough: bool
) -> None:
    """Raise InvalidConfig for a file among the inputs that does not fit the cases."""
    files = [spec for spec in inputs if spec.kind is Kind.FILE]
    if not files:
        return
    cases = (families.verification_cases(a.variant, a.traits, thorough=thorough) for a in artifacts)
    for workload in dict.fromkeys(case.workload for some in cases for case in some):
        for spec in files:
            input_files.check(spec, workload)


def _run(
    session: Session,
    gpu: Gpu,
    shown: Progress,
    items: Items,
    inputs: tuple[str, ...] = (),
    *,
    thorough: bool = False,
) -> Iterator[ItemResult]:
    """The results of verifying `items` on a GPU, which times the pool's pair at the end if it has
    not yet."""
    pool, measure = session.pool, session.measure
    device, limit_s = gpu.worker_device, measure.item_timeout_s
    job: VerifyJob | CalibrateJob
    if pool.pair is not None and gpu.device.uuid not in pool.calibrations:
        with_pair: dict[str, VerifyItem | PairItem] = {**items}
        with_pair[CALIBRATION] = pool.pair.item()
        job = CalibrateJob(
            items=with_pair,
            device=device,
            seed=measure.seed,
            inputs=str(measure.inputs),
            item_timeout_s=limit_s,
            thorough=thorough,
            verify_inputs=inputs,
        )
    else:
        job = VerifyJob(
            items=items,
            device=device,
            seed=measure.seed,
            item_timeout_s=limit_s,
            thorough=thorough,
            inputs=inputs,
        )
    for result in gpu.run_items(*job.request(), item_timeout_s=limit_s):
        if result.item != CALIBRATION:
            yield result
        elif result.outcome is Outcome.OK and isinstance(result.value, dict):
            found = gpu_times(gpu.label, gpu.device.uuid, PairTimes.from_json(result.value))
            pool.calibrations[gpu.device.uuid] = found
        else:
            shown.warn(f"{gpu.label} did not time the calibration pair: {result.reason}")


def calibrate(session: Session) -> None:
    """Time the pool's pair on every GPU that has not yet; nothing without a pair, or where nothing
    was measured."""
    pool = session.pool
    left = [g.device.uuid for g in pool.present if g.device.uuid not in pool.calibrations]
    if pool.pair is None or not left or not session.tally.measured:
        return
    session.progress.stage("calibrate", len(left))

    def on_gpu(gpu: Gpu, shown: Progress, _: str) -> None:
        if gpu.device.uuid not in pool.calibrations:
            list(_run(session, gpu, shown, {}))

    pool.each(left, on_gpu, session.progress, prefers=str)


def choose_pair(
    workloads: Sequence[Workload],
    artifacts: Mapping[tuple[str, str], Artifact],
    limits: ArchLimits,
) -> Pair | None:
    """The default and another kernel, on the workload nearest to PAIR_FLOP for which both were
    compiled; `artifacts` by variant key and traits.  Another family's default comes before any
    other."""
    for workload in sorted(workloads, key=_far_from_the_pairs):
        defaults = [
            families.variant(config).key for config in families.defaults_for(workload, limits)
        ]
        fitting = {
            subject: artifact
            for (subject, traits), artifact in artifacts.items()
            if traits == _traits(artifact, workload)
        }
        order = [s for s in defaults if s in fitting]
        order += [s for s in fitting if s not in order]
        if len(order) >= 2:
            return Pair(workload, (fitting[order[0]], fitting[order[1]]))
    return None


def _far_from_the_pairs(workload: Workload) -> float:
    return abs(math.log(flops.matmul_flop(workload) / PAIR_FLOP))


def _traits(artifact: Artifact, workload: Workload) -> str | None:
    """What a variant is compiled for on a workload; None where it is not for that at all."""
    family = families.get(artifact.variant.family)
    config = families.config_of(artifact.variant)
    if not families.fits(config, workload):
        return None
    return family.traits(config, workload)
