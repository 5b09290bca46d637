"""Timing with CUDA events: cold L2, interleaved rounds, more rounds for those that may still win.

A sample is one launch, or a replayed graph of several, divided by their number: the same for
all subjects of a workload, graphs if any of them takes less than `SAMPLE_S`.  Cold: inputs rotate
through so many sets that none survives in L2 until it is used again.  The stream is kept busy
while a sample is enqueued, so that no launch gap is timed.

Sustained, a sample is a second of launches or graphs back to back, so that clocks and power are
those of a GPU that does nothing else.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch

from fa_tune import libraries
from fa_tune.core import codec
from fa_tune.core.errors import first_line
from fa_tune.core.jobs import TimeJob, TimeResult
from fa_tune.core.model import CaseError, Outcome, is_reference, is_users
from fa_tune.core.stopping import StoppingRule
from fa_tune.core.workload import Workload
from fa_tune.gpu import telemetry
from fa_tune.gpu.guard import guarded, use_device
from fa_tune.gpu.runners import Runner, runner_of
from fa_tune.operations.base import CheckCase, Launch, Problem
from fa_tune.operations.flops import input_bytes, read_bytes
from fa_tune.operations.torch_side import Judged, judge, outputs_of, results_of, torch_side_of
from fa_tune.operations.verification import fault
from fa_tune.workers.main import Report

SAMPLE_S = 500e-6  # at least: what a launch by itself takes longer than in a graph is 2 to 4 us
BURST_S = 10e-3  # of a graph that is repeated for a sustained sample
BURSTS_AHEAD = 4  # are enqueued while one runs
MAX_SETS = 64
L2_TIMES = 3  # all input sets together, in multiples of the L2 cache
BUSY_CYCLES = 200_000  # about 0.1 ms of a spinning kernel ahead of each sample, at first
MAX_BUSY_CYCLES = 20_000_000  # about 10 ms: whatever takes longer to enqueue is not ours
MAX_TRIES = 10
WARM_UP_S = 0.3  # from idle, before anything is launched
HELD_OUT_ROUNDS = 10  # after the race, of those that may be chosen, the default and references
IN_QUESTION = 1.01  # times the best median, at most: a choice is nearer to it
SETTLE_S = 1.0  # of rounds that do not count: a power limit takes that long to have its effect


class Subject:
    """Runner with a launch for each problem, which differ in their inputs."""

    def __init__(
        self, runner: Runner, problems: Sequence[Problem], *, busy_cycles: int = BUSY_CYCLES
    ) -> None:
        self.runner = runner
        self.launches = [runner.bind(problem) for problem in problems]
        self._busy_cycles = busy_cycles
        self.samples: list[float] = []
        self.relative: list[float] = []
        self.held_out: list[tuple[float, float | None]] = []  # seconds, ratio to the baseline
        self.clocks_hz: list[float] = []
        self.host_s: list[float] = []
        self._next = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self.launches_per_sample = 1
        self._sustained_s: float | None = None

    def launch(self) -> None:
        """Launch on the next input set, and note the time that this process takes for it."""
        began = time.perf_counter()
        self.launches[self._next % len(self.launches)]()
        self.host_s.append(time.perf_counter() - began)
        self._next += 1

    def estimate(self) -> float:
        """First launches, and about how many seconds one takes."""
        for launch in self.launches[:3]:
            launch()
        return min(self._time(self.launch) for _ in range(3))

    def capture(self, launches: int) -> None:
        """From here on a sample is a graph of so many launches."""
        graph, noted = torch.cuda.CUDAGraph(), len(self.host_s)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.launch()
            with torch.cuda.graph(graph, stream=stream):
                for _ in range(launches):
                    self.launch()
        torch.cuda.current_stream().wait_stream(stream)
        del self.host_s[noted + 1 :]  # a capture launches nothing
        self._graph, self.launches_per_sample = graph, launches

    def launch_singly(self) -> None:
        """From here on a sample is one launch."""
        self._graph, self.launches_per_sample = None, 1

    def sustain(self, seconds: float) -> None:
        """From here on a sample is what it was, back to back for so long."""
        self._sustained_s = seconds

    def sample(self) -> float:
        """Duration of one launch, in seconds."""
        run = self._graph.replay if self._graph is not None else self.launch
        seconds = self._sustained_s
        taken = self._time(run) if seconds is None else self._time_back_to_back(seconds, run)
        return taken / self.launches_per_sample

    def _time_back_to_back(self, seconds: float, run: Callable[[], None]) -> float:
        """Seconds of GPU time that each of many takes, of which a few are always enqueued."""
        start = _event()
        ends: list[torch.cuda.Event] = []
        start.record()
        began = time.monotonic()
        while not ends or time.monotonic() - began < seconds:
            run()
            ends.append(_event())
            ends[-1].record()
            if len(ends) > BURSTS_AHEAD:
                ends[-1 - BURSTS_AHEAD].synchronize()
        ends[-1].synchronize()
        return _seconds(start, ends[-1]) / len(ends)

    def _time(self, run: Callable[[], None]) -> float:
        """Seconds of GPU time.  If the GPU reached the first event before everything was
        enqueued, it may have waited for this process, and that would be timed: then it is kept
        busy for longer, and the sample is taken again."""
        for _ in range(MAX_TRIES):
            start, end = _event(), _event()
            torch.cuda._sleep(self._busy_cycles)
            start.record()
            run()
            end.record()
            late = start.query()
            end.synchronize()
            if not late:
                break
            self._busy_cycles = min(2 * self._busy_cycles, MAX_BUSY_CYCLES)
        return _seconds(start, end)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def _seconds(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    return float(start.elapsed_time(end)) / 1e3


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """See `core.jobs.TimeJob`."""
    job = TimeJob.read(shared, items)
    use_device(job.device)
    workload = Workload.from_key(job.workload)
    problems = problems_of(workload, job.inputs, job.seed)
    warm_up()
    subjects, estimates_s = prepare_subjects(job, problems, report)
    if job.sustained_s:
        launches = burst_launches(estimates_s.values())
        for subject in subjects.values():
            subject.sustain(job.sustained_s)
    else:
        launches = graph_launches(estimates_s.values())
    no_graph = choose_samples(subjects, launches, report)
    rounds = Rounds(job, subjects, report, no_graph=no_graph)
    rounds.run()
    check = FinalCheck(problems[0])
    for name, subject in subjects.items():
        report.begin(name)
        kind = subject.runner.subject
        judged = job.check and (is_users(kind) or not is_reference(kind))
        if judged and not check.passes(name, subject.launches[0], report):
            continue
        report.done(name, codec.dump(rounds.result(name, n_sets=len(problems))))


def prepare_subjects(
    job: TimeJob, problems: Sequence[Problem], report: Report
) -> tuple[dict[str, Subject], dict[str, float]]:
    """Every item ready to be sampled, with the samples of workers before, and about how many
    seconds a launch takes; those that cannot be launched have failed."""
    estimates_s: dict[str, float] = {}

    def prepare(name: str) -> Subject:
        subject = Subject(runner_of(job.items[name]), problems)
        for seconds, ratio in job.partials[name]:
            subject.samples.append(float(seconds))
            if ratio is not None:
                subject.relative.append(float(ratio))
        estimates_s[name] = subject.estimate()
        return subject

    subjects = {}
    for name, item in job.items.items():
        report.begin(name, libraries.first_call_s(item.subject))
        subject = guarded(report, name, partial(prepare, name))
        if subject is not None:
            subjects[name] = subject
    return subjects, {name: estimates_s[name] for name in subjects}


def graph_launches(estimates_s: Iterable[float]) -> int:
    """How many launches each sample of a workload is, by what one takes each subject: as many as
    the fastest needs for `SAMPLE_S`."""
    return math.ceil(SAMPLE_S / min(estimates_s, default=SAMPLE_S))


def burst_launches(estimates_s: Iterable[float]) -> int:
    """How many launches are repeated as one for a sustained sample: as many as the fastest subject
    needs for `BURST_S`, so that no launch is waited for."""
    return max(1, math.ceil(BURST_S / min(estimates_s, default=BURST_S)))


def prepare_alike(*subjects: Subject) -> None:
    """Make the samples of subjects that can all be captured one kind."""
    launches = graph_launches([subject.estimate() for subject in subjects])
    if launches > 1:
        for subject in subjects:
            subject.capture(launches)


def choose_samples(subjects: dict[str, Subject], launches: int, report: Report) -> str:
    """Make the samples of all subjects one kind, graphs of so many launches if that is more than
    one.  Where one cannot be captured none is a graph; returns why, else an empty text."""
    if launches == 1:
        return ""
    for name, subject in list(subjects.items()):
        report.begin(name)
        problem = guarded(report, name, partial(_capture, subject, launches))
        if problem is None:
            del subjects[name]
        elif problem:
            for one in subjects.values():
                one.launch_singly()
            return f"{name} cannot be captured in a graph: {problem}"
    return ""


def _capture(subject: Subject, launches: int) -> str:
    """Why it could not be done; empty if it was.  An error that has cost the CUDA context shows
    when the caller waits for the GPU."""
    try:
        subject.capture(launches)
    except Exception as error:
        return first_line(error)
    return ""


class Rounds:
    """Rounds of samples until the stopping rule has enough.  A subject that fails is taken out of
    `subjects`.

    An adaptive job compares everything by its ratio to the baseline right beside it (`paired`):
    under a power limit the clock changes in steps every few samples, by more than the kernels
    differ.
    """

    def __init__(
        self, job: TimeJob, subjects: dict[str, Subject], report: Report, *, no_graph: str = ""
    ) -> None:
        self._job = job
        self._no_graph = no_graph
        self._subjects = subjects
        self._report = report
        self._dice = random.Random(job.seed)
        self._read = telemetry.watched(job.device)
        self._log = telemetry.Log()
        self._repeats_left = telemetry.Repeats(job.runs)
        complete = all(len(s.relative) == len(s.samples) for s in subjects.values())
        self._paired = job.adaptive and job.baseline in subjects and complete
        # What the rule goes by, which is filled in place.
        self._numbers = {
            n: list(s.relative if self._paired else s.samples) for n, s in subjects.items()
        }
        by_subject = {job.items[name].subject: name for name in subjects}
        self._rule = StoppingRule(
            self._numbers,
            job.runs,
            adaptive=job.adaptive,
            keep={name for name in subjects if job.items[name].subject in job.keep},
            default=job.baseline,
            order=[by_subject[s] for s in job.order if s in by_subject],
            margin=job.margin,
        )

    def run(self) -> None:
        if not self._rule.next_round(time.monotonic())[1]:
            return
        self._settle()
        while (planned := self._rule.next_round(time.monotonic()))[1]:
            self._round(*planned)
        if self._job.adaptive:
            self._hold_out()

    def _hold_out(self) -> None:
        """Rounds of those that may be chosen, the baseline, the references and the best of each
        family, which no choice will be made by: a winner's own samples flatter it."""
        medians = {n: statistics.median(self._numbers[n]) for n in self._subjects}
        best: dict[str, float] = {}
        for name, seconds in medians.items():
            best[self._kind(name)] = min(seconds, best.get(self._kind(name), math.inf))
        left_out = {n for n, s in medians.items() if s > IN_QUESTION * best[self._kind(n)]} - {
            self._job.baseline
        }
        for _ in range(HELD_OUT_ROUNDS):
            names = [n for n in self._subjects if n not in left_out]
            if names:
                self._round(None, names)

    def _kind(self, name: str) -> str:
        """The family of a subject; each reference is one of its own."""
        subject = self._job.items[name].subject
        return subject if is_reference(subject) else subject.partition(":")[0]

    def result(self, name: str, *, n_sets: int) -> TimeResult:
        subject = self._subjects[name]
        clocks = subject.clocks_hz
        return TimeResult(
            samples_s=tuple(subject.samples),
            relative=tuple(subject.relative) if self._paired else (),
            sm_clock_hz=statistics.median(clocks) if clocks else None,
            host_s=statistics.median(subject.host_s),
            sets=n_sets,
            launches_per_sample=subject.launches_per_sample,
            stop_reason=self._rule.stop_reasons[name].value,
            flagged=self._log.flagged,
            rounds=self._log.reported if name == self._job.baseline else (),
            versions=dict(subject.runner.versions),
            held_out_s=tuple(seconds for seconds, _ in subject.held_out),
            held_out_relative=tuple(r for _, r in subject.held_out if r is not None)
            if self._paired
            else (),
            no_graph=self._no_graph,
        )

    def _settle(self) -> None:
        """Rounds that do not count, until clocks and power are as they will be."""
        until = time.monotonic() + SETTLE_S
        while self._subjects:
            for name in self._rule.active:
                self._sample(name)
                if self._job.sustained_s and time.monotonic() > until:
                    return  # a sample is as long as that
            if time.monotonic() > until:
                return

    def _sample(self, name: str) -> float | None:
        """Sample of a subject; None, and the subject is out, if it failed."""
        self._report.begin(name)
        seconds: float | None = guarded(self._report, name, self._subjects[name].sample)
        if seconds is None:
            del self._subjects[name]
            self._rule.drop(name)
            if self._paired and name == self._job.baseline:  # from here on by times
                self._paired = False
                for other, subject in self._subjects.items():
                    self._numbers[other][:] = subject.samples
        return seconds

    def _round(self, number: int | None, names: list[str]) -> None:
        """Take a sample of each, in random order; the baseline opens and closes the round.  One
        without a number is held out."""
        baseline = self._job.baseline
        self._dice.shuffle(names)
        opening = closing = None
        if baseline in names or self._paired:
            names.sort(key=lambda name: name != baseline)  # stable: the others as they are
            # Between rounds the GPU waits for this process, and begins at another clock.  The
            # sample taken then does not count.
            if self._sample(baseline) is None or (opening := self._sample(baseline)) is None:
                return
            closing = opening
        for name in names:
            seconds = opening if name == baseline else self._sample(name)
            if seconds is None:
                continue
            ratio = None
            if self._paired:
                before, closing = closing, closing if name == baseline else self._sample(baseline)
                if before is not None and closing is not None:
                    ratio = 2 * seconds / (before + closing)
            if number is None:
                self._subjects[name].held_out.append((seconds, ratio))
            else:
                self._note(name, seconds, ratio)
        if number is None:
            return
        if len(names) == 1:
            closing = None  # nothing came between
        elif not self._paired and baseline in names and baseline in self._subjects:
            closing = self._sample(baseline)
        flagged = self._log.add(number, opening, closing, self._read())
        if flagged and self._job.adaptive and self._repeats_left.take(number):
            self._rule.repeat()  # all who are active take part in one more; the samples stay

    def _note(self, name: str, seconds: float, ratio: float | None) -> None:
        """Keep a sample, and hand it to the supervisor."""
        subject = self._subjects[name]
        subject.samples.append(seconds)
        if ratio is not None:
            subject.relative.append(ratio)
        self._numbers[name].append(seconds if ratio is None else ratio)
        if (clock_hz := self._read().sm_clock_hz) is not None:
            subject.clocks_hz.append(clock_hz)
        self._report.partial(name, [seconds, ratio])


class FinalCheck:
    """Compares outputs with what must come out, on the buffers that were timed; in fp32, since
    workloads are large and fp64 is slow on many GPUs."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    @cached_property
    def _expected(self) -> Mapping[str, Judged]:
        p = self._problem
        side = torch_side_of(p.workload)
        return side.expected(p.workload, p.inputs, precise=torch.float32)

    def passes(self, name: str, launch: Launch, report: Report) -> bool:
        """Whether the outputs are right; a failure is reported."""
        p, expected = self._problem, self._expected

        def found() -> CaseError:
            for out in p.outputs.values():
                out.fill_(float("nan"))
            return judge(CheckCase(p.workload), expected, results_of(p, launch))

        case = guarded(report, name, found)
        if case is None:
            return False
        if not case.ok:
            report.failed(name, Outcome.WRONG_RESULT, f"on these inputs: {fault(case)}")
        return bool(case.ok)


def input_sets(workload: Workload, kinds: int) -> int:
    """How many input sets of each of some kinds make up L2_TIMES the cache by what is read of them,
    all of them within a quarter of the free memory."""
    set_bytes = input_bytes(workload)
    l2_bytes = torch.cuda.get_device_properties().L2_cache_size
    needed = math.ceil(L2_TIMES * int(l2_bytes) / read_bytes(workload))
    fitting = int(torch.cuda.mem_get_info()[0]) // 4 // (kinds * set_bytes)
    return max(1, min(needed, MAX_SETS, fitting))


def problems_of(workload: Workload, inputs: str, seed: int) -> list[Problem]:
    """Problems to rotate through, which share their outputs; `inputs` is an InputSpec's text."""
    (found,) = problems_of_each(workload, (inputs,), seed)
    return found


def problems_of_each(workload: Workload, inputs: Sequence[str], seed: int) -> list[list[Problem]]:
    """Problems to rotate through for each of several kinds of inputs, equally many of each."""
    n, outputs = input_sets(workload, len(inputs)), outputs_of(workload)
    draw = partial(torch_side_of(workload).inputs, workload)
    return [
        [Problem(workload, draw(text, seed=seed + i), outputs) for i in range(n)] for text in inputs
    ]


def warm_up() -> None:
    """Bring the clocks up from idle before the first sample."""
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    start, end = _event(), _event()
    start.record()
    while True:
        for _ in range(50):
            torch.mm(a, a)
        end.record()
        end.synchronize()
        if _seconds(start, end) > WARM_UP_S:
            return
