"""Timing with CUDA events: cold L2, interleaved rounds, more rounds for whoever may still win.

A sample is one launch, or below `SHORT_S` a replayed graph of several, divided by their
number.  Cold: inputs rotate through so many sets that none survives in L2 until it is used
again.  The stream is kept busy while a sample is enqueued, so that no launch gap is timed.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from fa_tune.core.model import Outcome, Workload, is_reference
from fa_tune.gpu import telemetry as rounds
from fa_tune.gpu.kernels import (
    Launch,
    guarded,
    launch_args,
    launcher,
    load,
    lse_for,
    use_device,
)
from fa_tune.gpu.reference import attention, make_inputs
from fa_tune.ops.flops import input_bytes
from fa_tune.ops.verification import case_error
from fa_tune.profile.stopping import Race
from fa_tune.workers.main import Report

SHORT_S = 50e-6
GRAPH_SAMPLE_S = 200e-6
MAX_SETS = 64
L2_TIMES = 3  # all input sets together, in multiples of the L2 cache
BUSY_CYCLES = 200_000  # about 0.1 ms of a spinning kernel ahead of each sample, at first
MOST_BUSY_CYCLES = 20_000_000  # about 10 ms: whatever takes longer to enqueue is not ours
MOST_TRIES = 10
WARM_UP_S = 0.3  # from idle, before anything is launched
SETTLE_S = 1.0  # of rounds that count for nobody: a power limit takes that long to be felt


class Subject:
    """One kernel with a launch per input set."""

    def __init__(
        self, launches: list[Launch], samples: list[float], *, busy_cycles: int = BUSY_CYCLES
    ) -> None:
        self.launches = launches
        self._busy_cycles = busy_cycles
        self.samples = samples
        self.relative: list[float] = []
        self.clocks_hz: list[float] = []
        self.host_s: list[float] = []
        self._next = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._per_sample = 1

    def launch(self) -> None:
        """One launch on the next input set; what it takes this process is noted."""
        began = time.perf_counter()
        self.launches[self._next % len(self.launches)]()
        self.host_s.append(time.perf_counter() - began)
        self._next += 1

    def prepare(self) -> None:
        """First launches, and a graph if one launch is too short to be timed alone."""
        for launch in self.launches[:3]:
            launch()
        estimate = min(self._time(self.launch) for _ in range(3))
        if estimate < SHORT_S:
            self._per_sample = max(2, math.ceil(GRAPH_SAMPLE_S / estimate))
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self.launch()
                self._graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self._graph, stream=stream):
                    noted = len(self.host_s)
                    for _ in range(self._per_sample):
                        self.launch()
                    del self.host_s[noted:]  # a capture launches nothing
            torch.cuda.current_stream().wait_stream(stream)

    def sample(self) -> float:
        """One duration in seconds."""
        run = self._graph.replay if self._graph is not None else self.launch
        return self._time(run) / self._per_sample

    def _time(self, run: Any) -> float:
        """Seconds of GPU time.  If the GPU reached the first event before everything was
        enqueued, it may have waited for this process, and that would be timed: then it is kept
        busy for longer, and the sample is taken again."""
        for _ in range(MOST_TRIES):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(self._busy_cycles)
            start.record()
            run()
            end.record()
            late = start.query()
            end.synchronize()
            if not late:
                break
            self._busy_cycles = min(2 * self._busy_cycles, MOST_BUSY_CYCLES)
        return float(start.elapsed_time(end)) / 1e3


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """`shared`: device, workload key, runs, seed, keep (subjects measured to the
    end), baseline (the item measured first and last in every round, or none of them), adaptive,
    order (subjects as a tie prefers them), margin (what the baseline has to be beaten by), check.
    Items: subject and, for variants, cubin and symbol.  Partials: seconds of each sample, and its
    ratio to the baseline's right before and after it (or None).
    Value: samples_s, relative (these ratios, or none), sm_clock_hz (median), sets,
    launches_per_sample, ended (why there are no more samples), flagged (rounds and why), rounds
    (of the baseline: what each was taken under)."""
    use_device(int(shared["device"]))
    workload = Workload.from_key(shared["workload"])
    seed = int(shared["seed"])
    inputs = [make_inputs(workload, seed=seed + i) for i in range(input_sets(workload))]
    out, lse = torch.empty_like(inputs[0].q), lse_for(workload)
    warm_up()
    subjects: dict[str, Subject] = {}

    def prepare(item: Mapping[str, Any]) -> Subject:
        launches = [launcher(item, workload, one, out, lse) for one in inputs]
        subject = Subject(launches, [float(seconds) for seconds, _ in item["_partials"]])
        subject.relative = [float(r) for _, r in item["_partials"] if r is not None]
        subject.prepare()
        return subject

    for name, item in items.items():
        report.begin(name)
        subject = guarded(report, name, partial(prepare, item))
        if subject is not None:
            subjects[name] = subject
    read = rounds.watched(int(shared["device"]))
    log = rounds.Log()
    baseline = str(shared["baseline"])
    adaptive = bool(shared["adaptive"])
    # In a race everything is compared by its ratio to the baseline right beside it: under a power
    # limit the clock changes in steps every few samples, by more than the kernels differ.
    beside = adaptive and baseline in subjects
    for subject in subjects.values():
        beside = beside and len(subject.relative) == len(subject.samples)
    numbers = {n: list(s.relative if beside else s.samples) for n, s in subjects.items()}
    kept = {name for name in subjects if items[name]["subject"] in shared["keep"]}
    by_subject = {str(items[name]["subject"]): name for name in subjects}
    race = Race(
        numbers,
        int(shared["runs"]),
        adaptive=adaptive,
        keep=kept,
        default=baseline,
        order=[by_subject[s] for s in shared["order"] if s in by_subject],
        margin=float(shared["margin"]),
    )

    def sample(name: str) -> float | None:
        """One sample of a subject; None, and the subject is out, if it failed."""
        nonlocal beside
        report.begin(name)
        seconds: float | None = guarded(report, name, subjects[name].sample)
        if seconds is None:
            del subjects[name]
            race.drop(name)
            if beside and name == baseline:  # from here on times have to do
                beside = False
                for other, subject in subjects.items():
                    numbers[other][:] = subject.samples
        return seconds

    def settle() -> None:
        """Rounds that count for nobody, until the GPU is as it will be."""
        until = time.monotonic() + SETTLE_S
        while subjects:
            for name in race.live:
                sample(name)
            if time.monotonic() > until:
                return

    settled = False
    repeats_left = rounds.Repeats(int(shared["runs"]))
    while True:
        round_, active = race.next_round(time.monotonic())
        if not active:
            break
        if not settled:
            settle()
            settled = True
            continue
        random.Random(f"{seed}:{round_}").shuffle(active)
        opening = closing = None
        if baseline in active or beside:
            active.sort(key=lambda name: name != baseline)  # stable: the others as they are
            # Between rounds the GPU waits for this process, and begins at another clock.  The
            # sample that finds it so counts for nobody.
            if sample(baseline) is None or (opening := sample(baseline)) is None:
                continue
            closing = opening
        for name in active:
            seconds = opening if name == baseline else sample(name)
            if seconds is None:
                continue
            ratio = None
            if beside:
                before, closing = closing, closing if name == baseline else sample(baseline)
                if before is not None and closing is not None:
                    ratio = 2 * seconds / (before + closing)
            taken = subjects[name]
            taken.samples.append(seconds)
            taken.relative += [ratio] if ratio is not None else []
            numbers[name].append(seconds if ratio is None else ratio)
            if (clock_hz := read().sm_clock_hz) is not None:
                taken.clocks_hz.append(clock_hz)
            report.partial(name, [seconds, ratio])
        if not beside and baseline in active and baseline in subjects and len(active) > 1:
            closing = sample(baseline)
        if len(active) == 1:
            closing = None  # nothing came between
        flagged = log.add(round_, opening, closing, read())
        if flagged and adaptive and repeats_left.take(round_):
            race.repeat()  # everyone in it takes part in one more; its samples stay
    expected = None
    for name, subject in subjects.items():
        report.begin(name)
        item = items[name]
        if shared["check"] and not is_reference(item["subject"]):
            if expected is None:
                exact = attention(inputs[0], workload, dtype=torch.float32)
                same = attention(inputs[0], workload)
                expected = exact, float((same - exact).abs().max())
            out.fill_(float("nan"))
            args = launch_args(inputs[0], out, lse)
            load(item).launch(workload, args, torch.cuda.current_stream().cuda_stream)
            error = guarded(report, name, partial(_largest_difference, out, expected[0]))
            if error is None:
                continue
            case = case_error(workload, error, expected[1])
            if not case.ok:
                text = f"after timing: error {error:.3g} exceeds {case.limit:.3g}"
                report.failed(name, Outcome.WRONG_RESULT, text)
                continue
        report.done(
            name,
            {
                "samples_s": subject.samples,
                "relative": subject.relative if beside else [],
                "sm_clock_hz": statistics.median(subject.clocks_hz) if subject.clocks_hz else None,
                "host_s": statistics.median(subject.host_s),
                "sets": len(inputs),
                "launches_per_sample": subject._per_sample,
                "ended": race.ended[name].value if name in race.ended else "",
                "flagged": {str(r.number): ", ".join(r.flags) for r in log.rounds if r.flags},
                "rounds": log.as_json() if name == baseline else [],
            },
        )


def _largest_difference(out: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest |out − exact|; NaN if an element is."""
    return float((out.float() - exact).abs().max())


def input_sets(workload: Workload) -> int:
    """How many input sets make up L2_TIMES the cache, within a quarter of the free memory."""
    set_bytes = input_bytes(workload)
    l2_bytes = torch.cuda.get_device_properties().L2_cache_size
    fitting = int(torch.cuda.mem_get_info()[0]) // 4 // set_bytes
    return max(1, min(math.ceil(L2_TIMES * int(l2_bytes) / set_bytes), MAX_SETS, fitting))


def warm_up() -> None:
    """Bring the clocks up from idle before the first sample."""
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    while True:
        for _ in range(50):
            torch.mm(a, a)
        end.record()
        end.synchronize()
        if start.elapsed_time(end) / 1e3 > WARM_UP_S:
            return
