"""From configs to compiled and verified kernels, workload by workload.

Compilations that took too long are remembered: waiting for them again would gain nothing.  What
the compiler refused is in the artifact store.  A timeout is no property of the kernel, so it is in
the journal, and holds for the same limit only: with another one it is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fa_tune import families
from fa_tune.build import nvrtc
from fa_tune.build.compile import BuildRequest, BuildResult, build, kernel_source_identity
from fa_tune.build.pool import ended_under
from fa_tune.core.devices import pinned_to
from fa_tune.core.jobs import MAKE_CONTEXT
from fa_tune.core.model import Artifact, Attempt, Outcome, Resources, Verdict
from fa_tune.core.options import Progress
from fa_tune.core.workload import Workload
from fa_tune.families.base import Config
from fa_tune.store.fingerprint import Fingerprint
from fa_tune.store.journal import Journal
from fa_tune.store.journal_records import BuildFailureRecord
from fa_tune.store.table.columns import REGISTERS
from fa_tune.tune.fleet.gpu import WorkerGpu
from fa_tune.tune.session import Machine, ProfilerSelection, Session
from fa_tune.tune.unrecorded import not_recorded
from fa_tune.tune.verify import Verified, is_verified, verdict_key, verify_all
from fa_tune.workers.prefork import get_ready, warm_up

Key = tuple[str, str]  # variant key and traits
Build = tuple[Key, BuildResult]
# What of a kernel's resources only a compiler knows, and no choice hangs on.
_SPILLS = ("spill_store_bytes", "spill_load_bytes", "stack_bytes")
_UNKNOWN = (*_SPILLS, "static_smem_bytes", "ctas_per_sm")


@dataclass(frozen=True)
class PreparedWorkload:
    """Compiled (and, on a GPU, verified) variants of one workload; `failures` are attempts
    that ended before measuring."""

    workload: Workload
    artifacts: Mapping[str, Artifact]  # by variant key
    failures: tuple[Attempt, ...]
    verdicts: Mapping[str, Verdict]  # by variant key


def build_request(config: Config, traits: str, machine: Machine) -> BuildRequest:
    """What to compile for a config on the machine: families may want an architecture of their
    own there (`sm_90a`)."""
    family = families.of(config)
    arch = family.compile_arch(machine.limits)
    return BuildRequest(families.variant_of(family, config), traits, arch)


def build_all(
    requests: Sequence[BuildRequest],
    machine: Machine,
    progress: Progress,
    meanwhile: Callable[[Sequence[BuildResult]], None] | None = None,
) -> list[BuildResult]:
    """Compile with progress; results in the order of the requests.  `meanwhile` gets those there
    are when the rest turns out to take much longer, and is waited for."""
    progress.stage("compile", len(requests))
    warm_up()
    done: list[BuildResult] = []

    def on_result(result: BuildResult) -> None:
        done.append(result)
        progress.advance(result.request.variant.config)

    def on_idle() -> None:
        if meanwhile is not None:
            meanwhile(done)
            progress.stage("compile", len(requests) - len(done))

    return build(
        requests,
        machine.store,
        jobs=machine.options.jobs,
        timeout_s=machine.options.compile_timeout_s,
        on_result=on_result,
        on_idle=on_idle,
    )


def prepare(
    session: Session,
    workloads: Sequence[Workload],
    configs: Sequence[Config],
    *,
    verify: bool = True,
    facts: bool = False,
) -> list[PreparedWorkload]:
    """Compile every config for every workload's traits, and `verify` what compiled.  What takes
    minutes to compile is waited for while the others are verified.

    For a replay these are the recorded configs, and of them those that the recording says too
    little of to choose by; all, if the user named an architecture or the caller needs `facts`."""
    wanted, unrecorded = [], []
    for workload in workloads:
        of_one = _requests(workload, configs, session.machine)
        failures = not_recorded((subject for subject, _ in of_one), workload, session.selection)
        failed = {attempt.subject for attempt in failures}
        wanted.append({key: request for key, request in of_one.items() if key[0] not in failed})
        unrecorded.append(failures)
    requests = {key: request for of_one in wanted for key, request in of_one.items()}
    has_device = session.capabilities.needs_device
    if has_device and not is_verified(session, requests.values()):
        session.pool.on_each(lambda gpu: _get_ready(session.on(gpu, session.progress), gpu))
    built = {}
    if not has_device and not facts and "arch" not in session.machine.options.typed:
        built = _recorded_builds(session.selection, workloads, wanted)
    left = {key: request for key, request in requests.items() if key not in built}
    if session.reuse and left:
        built |= _known_timeouts(left, session)
        left = {key: request for key, request in left.items() if key not in built}
    checks = _Checks(session, verify and has_device)
    fresh = []
    if left or has_device:
        fresh = build_all(list(left.values()), session.machine, session.progress, checks.add)
    _remember_timeouts(fresh, session.journal)
    built |= dict(zip(left, fresh, strict=True))
    checks.add(list(built.values()))
    return [
        _prepared(workload, [(key, built[key]) for key in of_one], checks.found, failures)
        for workload, of_one, failures in zip(workloads, wanted, unrecorded, strict=True)
    ]


def _recorded_builds(
    selection: ProfilerSelection,
    workloads: Sequence[Workload],
    wanted: Sequence[Mapping[Key, BuildRequest]],
) -> dict[Key, BuildResult]:
    """Builds of what a replay can choose among without compiling it: its registers were counted
    when it was measured, and its shared memory is planned.  There are no cubins."""
    registers = {
        (attempt.workload, attempt.subject): round(attempt.measurement.counters[REGISTERS].value)
        for recording in reversed(selection.recordings)  # the newest one's count
        for attempt in recording.attempts
        if attempt.measurement is not None and REGISTERS in attempt.measurement.counters
    }
    found = {}
    for workload, of_one in zip(workloads, wanted, strict=True):
        for key, request in of_one.items():
            if (workload.key, key[0]) not in registers:
                continue
            config, family = families.config_of(request.variant), request.variant.family
            launches = families.get(family).plan(config, request.traits, request.arch).launches
            used = Resources(
                registers=registers[workload.key, key[0]],
                **dict.fromkeys(_UNKNOWN, 0),
                dynamic_smem_bytes=max(launch.dynamic_smem_bytes for launch in launches),
                threads=max(launch.threads for launch in launches),
            )
            artifact = Artifact(request.variant, request.traits, request.arch, "", "", used)
            found[key] = BuildResult(request, Outcome.OK, artifact, "", cached=True)
    return found


def _get_ready(session: Session, gpu: WorkerGpu) -> None:
    """What will be needed on a GPU once all is compiled begins to load."""
    get_ready(MAKE_CONTEXT, pinned_to(gpu.device.uuid), gpu.worker_device)
    session.selection.profiler.warm_up()
    session.selection.profiler.get_ready(gpu.device.uuid, gpu.worker_device)


def _requests(
    workload: Workload, configs: Sequence[Config], machine: Machine
) -> dict[Key, BuildRequest]:
    found = {}
    for config in families.worth_trying(configs, workload):
        traits = families.of(config).traits(config, workload)
        request = build_request(config, traits, machine)
        found[request.variant.key, request.traits] = request
    return found


class _Checks:
    """Verifies what compiled, each kernel once, and keeps what was `found`."""

    def __init__(self, session: Session, verify: bool) -> None:
        self.found = Verified({}, {})
        self._session = session
        self._verify = verify
        self._requested: set[str] = set()

    def add(self, results: Iterable[BuildResult]) -> None:
        artifacts = [r.artifact for r in results if r.artifact is not None]
        left = [a for a in artifacts if verdict_key(a) not in self._requested]
        self._requested.update(map(verdict_key, left))
        if self._verify:
            self.found = self.found.joined(verify_all(self._session, left))


def _prepared(
    workload: Workload, built: Sequence[Build], found: Verified, failed: Sequence[Attempt]
) -> PreparedWorkload:
    """`failed` are attempts that ended before compiling."""
    artifacts: dict[str, Artifact] = {}
    failures = list(failed)
    verdicts: dict[str, Verdict] = {}
    for (subject, _), result in built:
        artifact = result.artifact
        if artifact is None:
            failures.append(Attempt(subject, workload.key, result.outcome, result.reason))
            continue
        key = verdict_key(artifact)
        verdict, failure = found.verdicts.get(key), found.failures.get(key)
        if failure is not None:
            failures.append(Attempt(subject, workload.key, failure.outcome, failure.reason))
        elif verdict is not None and not verdict.correct:
            failures.append(Attempt(subject, workload.key, Outcome.WRONG_RESULT, verdict.reason))
        else:
            artifacts[subject] = artifact
            if verdict is not None:
                verdicts[subject] = verdict
    return PreparedWorkload(workload, artifacts, tuple(failures), verdicts)


# Timeouts in the journal ------------------------------------------------------------------------


def _known_timeouts(
    requests: Mapping[Key, BuildRequest], session: Session
) -> dict[Key, BuildResult]:
    """The results of requests that took too long before, under the same limit."""
    limit_s = session.machine.options.compile_timeout_s
    fingerprints: dict[str, Fingerprint] = {}
    known = {}
    for key, request in requests.items():
        digest = _fingerprint(request, fingerprints).digest
        about = request.variant.key, request.traits
        found = session.journal.last(BuildFailureRecord, digest, *about)
        if found is not None and ended_under(found.reason, limit_s):
            known[key] = BuildResult(request, found.outcome, None, found.reason, True)
    return known


def _remember_timeouts(results: Sequence[BuildResult], journal: Journal) -> None:
    """Note those of the results that took too long now."""
    fingerprints: dict[str, Fingerprint] = {}
    for result in results:
        if result.outcome is Outcome.TIMED_OUT and not result.cached:
            request = result.request
            journal.append(
                BuildFailureRecord(
                    _fingerprint(request, fingerprints),
                    request.variant.key,
                    request.traits,
                    result.outcome,
                    result.reason,
                )
            )


def _fingerprint(request: BuildRequest, known: dict[str, Fingerprint]) -> Fingerprint:
    """What a timeout depends on besides its limit; `known` are those of other requests."""
    key = f"{request.variant.family} {request.arch}"
    if key not in known:
        sources = kernel_source_identity(request.variant.family)
        known[key] = Fingerprint(sources, nvrtc.version(), request.arch).for_build()
    return known[key]
