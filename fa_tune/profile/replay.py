"""The `replay` profiler: recorded attempts through the ordinary interface, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from fa_tune.model import Attempt, Outcome
from fa_tune.profile.base import MeasurePlan, OnStep, failed


class ReplayProfiler:
    """Answers from `recorded`, attempts by (workload key, subject), all taken with `method`.

    The attempts come out as they were measured, under the method they were measured with:
    a replay is not a method of its own.
    """

    metrics: tuple[str, ...] = ()
    default_runs = 1

    def __init__(
        self,
        recorded: Mapping[tuple[str, str], Attempt],
        *,
        method: str,
        version: str,
        arguments: tuple[str, ...],
        clock_policy: str,
        cache_policy: str,
        source: str,
    ) -> None:
        self.method = method
        self.version = version
        self.arguments = arguments
        self.clock_policy = clock_policy
        self.cache_policy = cache_policy
        self.source = source
        self._recorded = recorded

    def measure(self, plan: MeasurePlan, on_step: OnStep) -> Iterator[Attempt]:
        """See `profile.base.Profiler`; a subject without a recording is NOT_RECORDED."""
        for subject in plan.subjects:
            on_step(subject)
            attempt = self._recorded.get((plan.workload.key, subject))
            if attempt is None:
                text = f"{self.source} has no {self.method} measurement of it"
                yield failed(subject, plan.workload, Outcome.NOT_RECORDED, text)
                continue
            measured = attempt.measurement
            if measured is not None:
                conditions = {**measured.conditions, "replayed_from": self.source}
                attempt = replace(attempt, measurement=replace(measured, conditions=conditions))
            yield attempt
