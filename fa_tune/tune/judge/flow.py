"""Judging a target: verification, determinism, timing, and what is refused.

The target runs in a process of its own.  It never has the expected results, nor the seeds of calls
to come.  A second, trusted process compares the bytes that the target's process hands over; this
one decides.
"""

from __future__ import annotations

import hashlib
import platform
import random
import shutil
import statistics
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import fa_tune
from fa_tune.core.devices import pinned_to
from fa_tune.core.errors import InvalidConfig, ToolMissing
from fa_tune.core.judged import JudgedCase, JudgeReport
from fa_tune.core.options import Progress
from fa_tune.core.workload import Workload
from fa_tune.libraries.user import UserRunner, locate
from fa_tune.tune.judge import rules
from fa_tune.tune.judge.draws import Ordeal, ordeals
from fa_tune.tune.judge.process import Ended, Limits, Process, started
from fa_tune.tune.judge.timing import take_times
from fa_tune.tune.judge.trial import JudgeOptions, Refused, Trial, digest
from fa_tune.tune.session import Machine

CPU = -1
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # on a CPU, so that other work disturbs times less
WITHIN = 0.02  # of a report's times, on the same device, judged again


def judge(place: str, options: JudgeOptions, machine: Machine, progress: Progress) -> JudgeReport:
    """The report about a target, on the machine's GPU, or without one on its CPU.  Raises
    InvalidConfig for no target, and ToolMissing for a `.cu` without a GPU or a process that does
    not start."""
    target = locate(place)
    if machine.device is None and any(file.suffix == ".cu" for file in target.files):
        raise ToolMissing("no GPU found: a CUDA file runs on one; functions are judged without")
    if find_spec("torch") is None:
        raise ToolMissing("judging needs torch: pip install '.[reference]' in a clone of fa-tune")
    with processes(options, machine) as (ours, theirs):
        return report(Trial(target, options, machine, ours, theirs), progress)


@contextmanager
def processes(options: JudgeOptions, machine: Machine) -> Iterator[tuple[Process, Process]]:
    """The trusted process and the target's."""
    gpu = machine.pool.gpus[0] if machine.pool.gpus else None
    env = ONE_THREAD if gpu is None else pinned_to(gpu.device.uuid)
    device = CPU if gpu is None else gpu.worker_device
    with ExitStack() as stack:
        ours, theirs = (
            stack.enter_context(started(device, env, options.limits, trusted=trusted))
            for trusted in (True, False)
        )
        yield ours, theirs


def report(trial: Trial, progress: Progress) -> JudgeReport:
    """Judge a target: what is found until nothing more can be asked of it."""
    files, tool = file_digests(trial.target), tool_digest()
    rng = random.Random(trial.options.seed)
    try:
        for workload in trial.options.workloads:
            drawn = ordeals(workload, rng)
            progress.stage("judge", len(drawn))
            for ordeal in drawn:
                _verify(trial, ordeal)
                progress.advance(ordeal.case.workload)
                if trial.refusals:
                    raise Refused
            _check_calls_taken(trial, workload)
            trial.require()
            if trial.refusals:
                raise Refused
            take_times(trial, workload, rng)
    except Refused:
        pass
    except Ended as ended:
        trial.refuse(ended.kind, str(ended))
    if file_digests(trial.target) != files:
        trial.refuse("patched", "its files changed while it was judged")
    if tool_digest() != tool:
        trial.refuse("patched", "files of fa-tune changed while it was judged")
    return _sealed(trial, files, {"version": fa_tune.__version__, "sha256": tool})


def _verify(trial: Trial, ordeal: Ordeal) -> None:
    called, digests, folder = trial.call(ordeal.case, ordeal.bound, ordeal.contents)
    if called.no_call:
        case = ordeal.case
        trial.cases.append(
            JudgedCase(case.workload, case.inputs, ordeal.drawn, 0, no_call=called.no_call)
        )
        return
    errors = [
        trial.judged(ordeal.case, ordeal.contents, number, folder, digests)
        for number in range(len(digests))
        if (ordeal.contents[number], digests[number])
        not in zip(ordeal.contents[:number], digests, strict=False)
    ]
    shutil.rmtree(folder)
    trial.cases.append(
        JudgedCase(
            *(ordeal.case.workload, ordeal.case.inputs, ordeal.drawn, len(called.calls)),
            max(filter(None, errors), key=lambda e: (not e.ok, e.share), default=None),
        )
    )
    trial.note_same(digests[0] == digests[1])
    if ordeal.watched:
        _watch(trial, ordeal)


def _watch(trial: Trial, ordeal: Ordeal) -> None:
    """What runs in its calls; those with equal contents must do the same."""
    called, _, folder = trial.call(ordeal.case, ordeal.bound, ordeal.watched, traced=True)
    shutil.rmtree(folder)
    first, again = (call.ran for call in called.calls)
    trial.ran.update(first)
    trial.ran.update(again)
    for found in (
        rules.remembered(first, again),
        rules.borrowed(trial.options.claim, trial.ran, trial.target.name),
    ):
        if found is not None:
            trial.refuse(*found, ordeal.case.workload)


def _check_calls_taken(trial: Trial, workload: Workload) -> None:
    taken = [case for case in trial.cases if not case.no_call]
    if not any(case.drawn for case in taken):
        why = next((case.no_call for case in trial.cases if case.no_call), "")
        trial.refuse("shapes", f"it takes no shape that was drawn: {why}", workload.key)
    if all(case.workload != workload.key for case in taken):
        trial.refuse("shapes", "it takes no problem that is timed", workload.key)


def _sealed(trial: Trial, files: Mapping[str, str], tool: Mapping[str, str]) -> JudgeReport:
    device, options = trial.machine.device, trial.options
    return JudgeReport(
        target=trial.target.place,
        files=files,
        claim=options.claim,
        required=options.required,
        workloads=tuple(workload.key for workload in options.workloads),
        references=options.references,
        runs=options.runs,
        seed=options.seed,
        accepted=not trial.refusals,
        refusals=tuple(trial.refusals),
        cases=tuple(trial.cases),
        timings=tuple(trial.timings),
        deterministic=trial.deterministic,
        passes_nan_on=trial.passes_nan_on,
        ran=tuple(sorted(trial.ran)),
        device=device.name if device else f"CPU, {platform.machine()}",
        driver=device.driver if device else "",
        versions=trial.versions,
        tool=tool,
        taken_at=datetime.now(UTC).isoformat(timespec="seconds"),
    ).sealed()


def file_digests(target: UserRunner) -> dict[str, str]:
    """SHA-256 of a target's files, or the version of the package that offers it."""
    if not target.files:
        return {target.place: target.identity}
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in target.files}


def tool_digest() -> str:
    """SHA-256 of this package's Python files."""
    return digest(sorted(Path(fa_tune.__file__).parent.rglob("*.py")))


def retake(
    report: JudgeReport, limits: Limits, machine: Machine, progress: Progress
) -> tuple[JudgeReport, list[str]]:
    """Judge the target of a report as then, with the same draws, and say what differs.  Raises
    InvalidConfig where its files are others."""
    target = locate(report.target)
    if file_digests(target) != report.files:
        raise InvalidConfig(f"{report.target} is not what the report is about: its files differ")
    options = JudgeOptions(
        workloads=tuple(Workload.from_key(key) for key in report.workloads),
        claim=report.claim,
        seed=report.seed,
        required=report.required,
        references=report.references,
        runs=report.runs,
        limits=limits,
    )
    again = judge(report.target, options, machine, progress)
    return again, differences(report, again)


def differences(then: JudgeReport, now: JudgeReport) -> list[str]:
    """In words: the verdicts, the conditions, and how times compare."""
    found = []
    if now.accepted != then.accepted:
        words = {True: "accepted", False: "refused"}
        found.append(f"{words[then.accepted]} then, {words[now.accepted]} now")
    kinds = [{refusal.kind for refusal in one.refusals} for one in (then, now)]
    if kinds[0] != kinds[1] and now.accepted == then.accepted:
        found.append(
            f"refused for {', '.join(sorted(kinds[0]))} then, for {', '.join(sorted(kinds[1]))} now"
        )
    for name in ("device", "driver", "tool"):
        if getattr(then, name) != getattr(now, name):
            found.append(f"another {name}: {getattr(then, name)} then, {getattr(now, name)} now")
    for a, b in zip(then.timings, now.timings, strict=False):
        ratio = statistics.median(b.samples_s) / statistics.median(a.samples_s)
        found.append(f"{ratio:.3f} of the time then, on {a.workload}")
    return found


def confirms(then: JudgeReport, now: JudgeReport) -> bool:
    """Whether the verdict is the same and, on the same device, times are within WITHIN."""
    if then.accepted != now.accepted or then.device != now.device:
        return then.accepted == now.accepted
    return all(
        abs(statistics.median(b.samples_s) / statistics.median(a.samples_s) - 1) <= WITHIN
        for a, b in zip(then.timings, now.timings, strict=True)
    )
