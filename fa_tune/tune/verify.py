"""Verification through worker processes, remembered in the journal."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fa_tune import families, operations
from fa_tune.build.compile import BuildRequest
from fa_tune.core import codec, input_files
from fa_tune.core.inputs import InputSpec, Kind
from fa_tune.core.jobs import VerifyJob, WorkloadItem
from fa_tune.core.model import Artifact, Attempt, Outcome, Verdict, user_subject
from fa_tune.core.workload import Workload
from fa_tune.store.journal_records import AttemptRecord, VerdictRecord
from fa_tune.tune.dispatch import Request, run_items_on_gpus
from fa_tune.tune.fleet.gpu import WorkerGpu
from fa_tune.tune.session import Session
from fa_tune.workers.supervisor import ItemResult

NO_WORKLOAD = "verify"  # a verdict is about a kernel, not about one workload


@dataclass(frozen=True)
class Verified:
    """Verdicts by `verdict_key`, and attempts that ended without one (crashed, timed out)."""

    verdicts: Mapping[str, Verdict]
    failures: Mapping[str, Attempt]

    def joined(self, other: Verified) -> Verified:
        return Verified({**self.verdicts, **other.verdicts}, {**self.failures, **other.failures})


class Interrupted(KeyboardInterrupt):
    """Ctrl-C; `found` is what was finished until then."""

    def __init__(self, found: Verified) -> None:
        super().__init__()
        self.found = found


def verdict_key(of: Artifact | BuildRequest) -> str:
    """What a verdict is about: a variant with the traits it was compiled for."""
    return f"{of.variant.key} @ {of.traits}"


def is_verified(session: Session, requests: Iterable[BuildRequest]) -> bool:
    """Whether the journal knows what becomes of every one of these kernels."""
    digests: dict[str, str] = {}
    for request in requests:
        name = request.variant.family
        if name not in digests:
            digests[name] = session.fingerprint(0, (name,)).for_verify().digest
        if not any(_remembered(session, {verdict_key(request): digests[name]})):
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
    kernel.  Several GPUs share the work.
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

    more = {key: workload.key for key, workload in (also_on or {}).items()}
    items = {
        k: WorkloadItem.of(a.variant.key, a, workload=more.get(k, "")) for k, a in left.items()
    }

    def keep(name: str, found: Verdict | Attempt) -> None:
        fingerprint = fingerprints[wanted[name].variant.family]
        if isinstance(found, Verdict):
            session.journal.append(VerdictRecord(fingerprint, name, found))
        else:
            session.journal.append(AttemptRecord(fingerprint, found))

    found = _run(session, items, inputs, keep, thorough=thorough)
    return Verified(verdicts, failures).joined(found)


def verify_users(
    session: Session,
    places: Sequence[str],
    like: Sequence[Workload],
    inputs: Sequence[InputSpec] = (),
    *,
    thorough: bool = False,
) -> Verified:
    """The same of users' kernels, for problems like these, with whole blocks and ragged lengths;
    nothing is remembered.  What they have no call for is told, and no failure."""
    items = {}
    for place, workload in itertools.product(places, like):
        ragged = operations.get(workload.op).traits(workload, (1 << 30, 1 << 30))
        for traits in {replace(ragged, ragged=workload.packed), ragged}:
            subject = user_subject(place)
            name = f"{subject} @ {workload.dtype.name.lower()} d{workload.d_head} {traits}"
            items[name] = WorkloadItem(subject, traits=str(traits), workload=workload.key)
    found = _run(session, items, inputs, lambda *_: None, thorough=thorough)
    failures = {}
    for name, failure in found.failures.items():
        if failure.outcome is Outcome.REJECTED:
            session.progress.note(f"not tried: {name}: {failure.reason}")
        else:
            failures[name] = failure
    return replace(found, failures=failures)


def _run(
    session: Session,
    items: Mapping[str, WorkloadItem],
    inputs: Sequence[InputSpec],
    keep: Callable[[str, Verdict | Attempt], None],
    *,
    thorough: bool,
) -> Verified:
    """The verdicts and failures of all items, each handed to `keep` at once.  Several GPUs share
    the work."""
    verdicts: dict[str, Verdict] = {}
    failures: dict[str, Attempt] = {}

    def job_of(part: dict[str, WorkloadItem], gpu: WorkerGpu) -> Request:
        return VerifyJob(
            items=part,
            device=gpu.worker_device,
            seed=session.measure.seed,
            item_timeout_s=session.measure.item_timeout_s,
            thorough=thorough,
            inputs=tuple(map(str, inputs)),
        ).request()

    def take(ended: ItemResult, *_: object) -> None:
        if ended.outcome is Outcome.OK and isinstance(ended.value, dict):
            verdicts[ended.item] = codec.load(Verdict, ended.value)
            keep(ended.item, verdicts[ended.item])
        else:
            failures[ended.item] = Attempt(ended.item, NO_WORKLOAD, ended.outcome, ended.reason)
            keep(ended.item, failures[ended.item])

    try:
        run_items_on_gpus(session, "verify", items, job_of, take)
    except KeyboardInterrupt:
        raise Interrupted(Verified(verdicts, failures)) from None
    return Verified(verdicts, failures)


def _remembered(
    session: Session, digests: Mapping[str, str]
) -> tuple[dict[str, Verdict], dict[str, Attempt]]:
    """Verdicts and failures of the kernels, by key, that the journal has under these digests."""
    verdicts: dict[str, Verdict] = {}
    failures: dict[str, Attempt] = {}
    for key, digest in digests.items():
        if (known := session.journal.last(VerdictRecord, digest, key, "")) is not None:
            verdicts[key] = known.verdict
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
