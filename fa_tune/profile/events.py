"""The `events` profiler: CUDA events in a worker process, cold L2, interleaved rounds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence

from fa_tune.core import codec
from fa_tune.core.jobs import KernelItem, TimeJob, TimeResult
from fa_tune.core.model import Attempt, Measurement, Outcome, Quantity
from fa_tune.core.stats import median
from fa_tune.profile.base import (
    Capabilities,
    MeasurePlan,
    OneByOne,
    OnStep,
    ProfilerNotes,
)
from fa_tune.profile.ncu.metrics import SM_CLOCK
from fa_tune.workers.supervisor import Event, EventKind, run_items

PREPARE_TIMEOUT_S = 180.0
RUN_DRIFT = 0.01  # of the baseline between the beginning and the end of a run
SUSTAINED_S = 1.0  # of each subject in every round


class EventsProfiler(OneByOne):
    """Times launches with CUDA events.  `check` compares every output with the fp32 result
    after timing, on the very buffers that were timed."""

    method = "events"
    version = ""
    arguments: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    clock_policy = "unlocked"
    cache_policy = "cold-rotate"
    default_runs = 5
    capabilities = Capabilities(checks_results=True, adaptive=True)
    warnings = property(lambda self: tuple(self.notes.warnings))
    sustained_s = 0.0  # of launches back to back in each sample; 0: isolated launches

    def __init__(self, *, check: bool = True) -> None:
        self._check = check
        self.notes = ProfilerNotes()

    def warm_up(self) -> None:
        """Its workers are those of everybody (`workers.prefork.warm_up`)."""

    def measure(self, plan: MeasurePlan, on_step: OnStep) -> Iterator[Attempt]:
        job = TimeJob(
            items={s: KernelItem.of(s, plan.artifacts.get(s)) for s in plan.subjects},
            device=plan.worker_device,
            workload=plan.workload.key,
            runs=plan.runs,
            seed=plan.seed,
            keep=plan.keep,
            baseline="" if self.sustained_s else plan.baseline,
            adaptive=plan.adaptive,
            order=plan.order,
            margin=plan.margin,
            check=self._check,
            inputs=str(plan.inputs),
            sustained_s=self.sustained_s,
        )

        def on_event(event: Event) -> None:
            if event.kind is EventKind.PARTIAL:
                on_step(event.item)

        results = run_items(
            *job.request(),
            item_timeout_s=plan.item_timeout_s,
            start_timeout_s=PREPARE_TIMEOUT_S,
            env=plan.worker_env,
            retry_after_sigkill=True,
            on_event=on_event,
        )
        for result in results:
            if result.outcome is not Outcome.OK:
                yield Attempt(result.item, plan.workload.key, result.outcome, result.reason)
                continue
            assert isinstance(result.value, dict)
            taken = self._measurement(result.item, codec.load(TimeResult, result.value), plan)
            yield Attempt(result.item, plan.workload.key, Outcome.OK, "", taken)

    def _measurement(self, subject: str, result: TimeResult, plan: MeasurePlan) -> Measurement:
        clock_hz = result.sm_clock_hz
        counters = {}
        if clock_hz is not None and not math.isnan(clock_hz):
            counters[SM_CLOCK] = Quantity(float(clock_hz), "hz")
        return Measurement(
            subject=subject,
            workload=plan.workload.key,
            method=self.method,
            samples_s=tuple(float(s) for s in result.samples_s),
            counters=counters,
            conditions={
                "l2": self.cache_policy,
                "clocks": self.clock_policy,
                "input_sets": str(result.sets),
                "launches_per_sample": str(result.launches_per_sample),
                "seed": str(plan.seed),
                **self._conditions(result, plan),
            },
            relative=tuple(round(float(v), 6) for v in result.relative),
            host_launch_s=float(f"{result.host_s:.3g}"),
            held_out_s=result.held_out_s,
            held_out_relative=tuple(round(v, 6) for v in result.held_out_relative),
            versions=result.versions,
            baseline=plan.baseline if result.relative else "",
        )

    def _conditions(self, result: TimeResult, plan: MeasurePlan) -> dict[str, str]:
        """The conditions of the rounds; the baseline's holds the rounds themselves."""
        found = {"stop_reason": result.stop_reason} if result.stop_reason else {}
        if result.no_graph:
            found["no_graph"] = result.no_graph
            self.notes.warn(
                f"{plan.workload.key}: timed as single launches, whose start counts, where graphs "
                f"were due: {result.no_graph}"
            )
        if flagged := result.flagged:
            found["flagged_rounds"] = "; ".join(f"{n}: {why}" for n, why in flagged.items())
        if not (rounds := result.rounds):
            return found
        found["rounds"] = json.dumps(codec.dump(rounds), separators=(",", ":"))
        n_rounds = 1 + max(r.number for r in rounds)  # of very many, not all are kept
        if flagged:
            self.notes.warn(
                f"{plan.workload.key}: {len(flagged)} of {n_rounds} rounds are flagged "
                f"({next(iter(flagged.values()))}); their samples were kept"
            )
        drift = run_drift([r.opening_s for r in rounds if r.opening_s])
        if drift is not None and abs(drift) > RUN_DRIFT:
            found["drift"] = f"{drift:+.4f}"
            self.notes.warn(
                f"{plan.workload.key}: the run drifted, {plan.baseline} took "
                f"{100 * drift:+.1f} % at its end; ratios are of the same rounds and stand, "
                "times do not"
            )
        return found


class SustainedProfiler(EventsProfiler):
    """Times launches back to back, for at least a second of each subject in every round: at the
    power limit, where there is one.  A method of its own, so that nothing ranks, joins or replays
    its times with those of isolated launches."""

    method = "sustained"
    cache_policy = "rotate"
    capabilities = Capabilities(checks_results=True)
    sustained_s = SUSTAINED_S


def of_regime(regime: str) -> EventsProfiler:
    """The profiler of a regime of `core.options.REGIMES`."""
    return SustainedProfiler() if regime == SustainedProfiler.method else EventsProfiler()


def run_drift(opening_s: Sequence[float]) -> float | None:
    """The fraction by which the baseline took longer in the last third of the rounds than in the
    first; None for fewer than six rounds."""
    third = len(opening_s) // 3
    if third < 2:
        return None
    return median(opening_s[-third:]) / median(opening_s[:third]) - 1.0
