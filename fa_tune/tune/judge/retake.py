"""Judging the target of a report again."""

from __future__ import annotations

import statistics

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.judged import JudgeReport
from fa_tune.core.options import Progress
from fa_tune.core.workload import Workload
from fa_tune.libraries.user import locate
from fa_tune.tune.judge.flow import file_digests, judge
from fa_tune.tune.judge.process import Limits
from fa_tune.tune.judge.trial import JudgeOptions
from fa_tune.tune.session import Machine

WITHIN = 0.02  # of a report's times, on the same device


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
