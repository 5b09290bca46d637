"""The GPUs of one command: jobs in, results out, each job on one GPU.

A pool has none, one or several GPUs, and whoever uses it need not ask how many.  With fewer than
two, jobs run one after another in the caller's thread.  With several, every GPU has a thread,
which sees one job through: the processes it starts see that GPU alone.  What a thread has to show
goes to the main thread, which shows it; the journal has a lock.

A job's failure is the job's and ends the work on all GPUs.  A GPU that is lost (its workers do not
start any more) costs its running job, which another GPU takes over from what is in the journal;
when no GPU is left, the work ends with one line.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from functools import partial
from typing import Generic, TypeVar

from fa_tune.core.errors import GpusLost
from fa_tune.core.options import Progress
from fa_tune.tune.fleet.gpu import Gpu, Interrupted, NoGpu, is_working
from fa_tune.tune.fleet.lanes import LANES, kept_lanes
from fa_tune.workers.supervisor import CALLED_OFF, CalledOff, WorkerUnusable

MAX_INTERRUPTIONS = 3  # of one job
KEPT = "what was finished is kept, and the same command continues from there"
PUMP_S = 0.05  # how long the main thread waits for something to show

Job = TypeVar("Job")
Result = TypeVar("Result")
Item = TypeVar("Item")
Work = Callable[[Gpu, Progress, Job], Result]


class Pool:
    """The GPUs of one command."""

    def __init__(self, gpus: Sequence[Gpu] = ()) -> None:
        self.gpus = tuple(gpus)
        self.lost: dict[str, str] = {}  # label of a lost GPU -> why

    @property
    def present(self) -> tuple[Gpu, ...]:
        """The GPUs that are not lost."""
        return tuple(g for g in self.gpus if g.label not in self.lost)

    @property
    def has_several(self) -> bool:
        """Whether there is more than one GPU, lost ones included."""
        return len(self.gpus) > 1

    def deal(self, items: Mapping[str, Item]) -> list[dict[str, Item]]:
        """The items in parts of nearly the same size: one per GPU, and none without an item."""
        n_parts = min(max(1, len(self.present)), len(items))
        names = list(items)
        return [{name: items[name] for name in names[i::n_parts]} for i in range(n_parts)]

    def on_each(self, work: Callable[[Gpu], None]) -> None:
        """`work`, which takes no time, on every GPU: what it starts ahead is for the jobs there.
        Nothing where several GPUs have no threads that stay."""
        if not self.has_several:
            for gpu in self.gpus:
                work(gpu)
        elif (lanes := LANES.get()) is not None:
            for end in [lanes.of(g.label).submit(partial(work, g)) for g in self.present]:
                end.result()

    def each(
        self,
        jobs: Sequence[Job],
        work: Work[Job, Result],
        progress: Progress,
        *,
        prefers: Callable[[Job], str] = lambda _: "",
        cost: Callable[[Job], float] = lambda _: 0.0,
    ) -> list[Result]:
        """`work` of every job, each on some GPU; results in the order of the jobs.

        Several GPUs start the jobs of the highest `cost` first; of equals, in their order.  A job
        that `prefers` a GPU, by its UUID, is left to it as long as there are others to take.
        Raises what a job raises, and GpusLost when all GPUs are lost.  Whatever is raised, also by
        Ctrl-C, the processes of several GPUs are gone by then.
        """
        if self.has_several:
            return _Round(self, jobs, work, progress, prefers, cost).run()
        gpu = self.gpus[0] if self.gpus else NoGpu()
        return [_repeated(gpu, work, progress, job) for job in jobs]


def _repeated(gpu: Gpu, work: Work[Job, Result], progress: Progress, job: Job) -> Result:
    """One job on the only GPU, again where it was interrupted; raises GpusLost for a GPU that does
    not recover."""
    for left in reversed(range(MAX_INTERRUPTIONS + 1)):
        try:
            return work(gpu, progress, job)
        except Interrupted as error:
            if not is_working(gpu):
                raise GpusLost(f"{gpu.label} is lost: {error}; {KEPT}") from None
            if not left:
                raise
    raise AssertionError("unreachable")


class _Round(Generic[Job, Result]):
    """One call of `each`."""

    def __init__(
        self,
        pool: Pool,
        jobs: Sequence[Job],
        work: Work[Job, Result],
        progress: Progress,
        prefers: Callable[[Job], str],
        cost: Callable[[Job], float],
    ) -> None:
        self._pool = pool
        self._gpus = pool.present
        self._jobs = jobs
        self._work = work
        self._progress = progress
        self._wanted = [prefers(job) for job in jobs]
        self._state = threading.Condition()
        self._waiting = sorted(range(len(jobs)), key=lambda n: -cost(jobs[n]))
        self._running: set[int] = set()
        self._interrupted: dict[int, int] = {}
        self._results: dict[int, Result] = {}
        self._errors: list[BaseException] = []
        self._called_off = threading.Event()
        self._shown: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def run(self) -> list[Result]:
        with kept_lanes() as lanes:
            ends = [lanes.of(g.label).submit(partial(self._see_through, g)) for g in self._gpus]
            try:
                while not all(end.done() for end in ends):
                    self._show(PUMP_S)
            finally:  # also on Ctrl-C, which reaches this thread alone
                self._called_off.set()
                with self._state:
                    self._state.notify_all()
                wait(ends)
        self._show(0.0)
        if self._errors:
            raise self._errors[0]
        if len(self._results) < len(self._jobs):
            label, why = list(self._pool.lost.items())[-1]
            raise GpusLost(
                f"all {len(self._pool.gpus)} GPUs are lost, the last one {label}: {why}; {KEPT}"
            )
        return [self._results[i] for i in range(len(self._jobs))]

    def _show(self, wait_s: float) -> None:
        """What the GPUs' threads had to show, until there is nothing for `wait_s`."""
        try:
            while True:
                self._shown.get(timeout=wait_s)() if wait_s else self._shown.get_nowait()()
        except queue.Empty:
            pass

    def _see_through(self, gpu: Gpu) -> None:
        """One GPU's thread."""
        CALLED_OFF.set(self._called_off)
        try:
            self._job_after_job(gpu)
        except CalledOff:
            pass  # whoever called it off knows why
        except BaseException as error:
            self._fail(error)

    def _job_after_job(self, gpu: Gpu) -> None:
        shown = _Relay(self._progress.lane(gpu.label), self._shown.put, self._called_off)
        while (number := self._next(gpu)) is not None:
            try:
                result = self._work(gpu, shown, self._jobs[number])
            except WorkerUnusable as error:
                if self._called_off.is_set():
                    return
                if not is_working(gpu):
                    self._lose(gpu, number, error)
                    return
                if not isinstance(error, Interrupted) or not self._give_back(number):
                    raise  # the job's own doing, as it would be with one GPU
                continue
            with self._state:
                self._results[number] = result
                self._running.discard(number)
                self._state.notify_all()

    def _next(self, gpu: Gpu) -> int | None:
        """The next job of a GPU, waiting as long as another GPU's may come back; None when
        there is nothing more to do."""
        with self._state:
            while not self._called_off.is_set():
                if self._waiting:
                    mine = gpu.device.uuid
                    own = [n for n in self._waiting if self._wanted[n] == mine]
                    free = [n for n in self._waiting if not self._wanted[n]]
                    number = (own or free or self._waiting)[0]
                    self._waiting.remove(number)
                    self._running.add(number)
                    return number
                if not self._running:
                    break
                self._state.wait()
        return None

    def _give_back(self, number: int) -> bool:
        """Let a job be done again; False for one that was interrupted too often."""
        with self._state:
            self._interrupted[number] = self._interrupted.get(number, 0) + 1
            if self._interrupted[number] > MAX_INTERRUPTIONS:
                return False
            self._running.discard(number)
            self._waiting.insert(0, number)
            self._state.notify_all()
        return True

    def _lose(self, gpu: Gpu, number: int, error: WorkerUnusable) -> None:
        with self._state:
            self._pool.lost[gpu.label] = str(error)
            self._running.discard(number)
            self._waiting.insert(0, number)
            text = f"{gpu.label} is lost: {error}"
            if self._pool.present:
                text += "; another GPU takes over its job"
            self._shown.put(lambda: self._progress.warn(text))
            self._state.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._state:
            self._errors.append(error)
            self._called_off.set()
            self._state.notify_all()


class _Relay:
    """Progress from another thread: `put` hands each call to the thread that shows it.  What
    takes long tells its steps, so this is also where work that was called off ends."""

    def __init__(
        self,
        lane: Progress,
        put: Callable[[Callable[[], None]], None],
        called_off: threading.Event,
    ) -> None:
        self._lane = lane
        self._put = put
        self._called_off = called_off

    def stage(self, name: str, total: int) -> None:
        self._hand_over(lambda: self._lane.stage(name, total))

    def advance(self, text: str = "") -> None:
        self._hand_over(lambda: self._lane.advance(text))

    def leader(self, text: str) -> None:
        self._hand_over(lambda: self._lane.leader(text))

    def note(self, text: str) -> None:
        self._hand_over(lambda: self._lane.note(text))

    def warn(self, text: str) -> None:
        self._hand_over(lambda: self._lane.warn(text))

    def lane(self, name: str) -> Progress:
        return self

    def _hand_over(self, call: Callable[[], None]) -> None:
        if self._called_off.is_set():
            raise CalledOff
        self._put(call)
