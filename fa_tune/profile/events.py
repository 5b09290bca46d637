"""The `events` profiler: CUDA events in a worker process, cold L2, interleaved rounds."""

from __future__ import annotations

from collections.abc import Iterator

from fa_tune.jobs import Event, Kind, run_items
from fa_tune.model import Attempt, Measurement, Outcome, Quantity
from fa_tune.profile.base import MeasurePlan, OnStep, failed
from fa_tune.profile.metrics import SM_CLOCK

HANDLER = "fa_tune.handlers.timed:handle"
PREPARE_TIMEOUT_S = 180.0


class EventsProfiler:
    """Times launches with CUDA events.  `check` compares every output with the fp32 result
    after timing, on the very buffers that were timed."""

    method = "events"
    version = ""
    arguments: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    clock_policy = "unlocked"
    cache_policy = "cold-rotate"
    default_runs = 5

    def __init__(self, *, check: bool = True) -> None:
        self._check = check

    def measure(self, plan: MeasurePlan, on_step: OnStep) -> Iterator[Attempt]:
        """See `profile.base.Profiler`."""
        shared = {
            "device": plan.device,
            "workload": plan.workload.key,
            "runs": plan.runs,
            "seed": plan.seed,
            "keep": list(plan.keep),
            "adaptive": plan.adaptive,
            "check": self._check,
        }

        def on_event(event: Event) -> None:
            if event.kind is Kind.PARTIAL:
                on_step(event.item)

        results = run_items(
            HANDLER,
            shared,
            plan.items(),
            item_timeout_s=plan.item_timeout_s,
            start_timeout_s=PREPARE_TIMEOUT_S,
            on_event=on_event,
        )
        for result in results:
            if result.outcome is not Outcome.OK:
                yield failed(result.item, plan.workload, result.outcome, result.reason)
                continue
            value = result.value
            assert isinstance(value, dict)
            clock_hz = value["sm_clock_hz"]
            counters = {}
            if clock_hz is not None and clock_hz == clock_hz:  # not NaN
                counters[SM_CLOCK] = Quantity(float(clock_hz), "hz")
            yield Attempt(
                result.item,
                plan.workload.key,
                Outcome.OK,
                "",
                Measurement(
                    subject=result.item,
                    workload=plan.workload.key,
                    method=self.method,
                    samples_s=tuple(float(s) for s in value["samples_s"]),
                    counters=counters,
                    conditions={
                        "l2": self.cache_policy,
                        "clocks": self.clock_policy,
                        "input_sets": str(value["sets"]),
                        "launches_per_sample": str(value["launches_per_sample"]),
                    },
                ),
            )
