"""The GPUs of one command: jobs in, results out, each job on one GPU.

A pool has none, one or several GPUs, and whoever uses it need not ask how many.  With fewer than
two, jobs run one after another in the caller's thread.  With several, every GPU has a thread,
which sees one job through: the processes it starts see that GPU alone.  The caller's thread deals
the jobs out and shows what the others have to show; the journal has a lock.

A job's failure is the job's and ends the work on all GPUs.  A GPU that is lost (its workers do not
start any more) costs its running job, which another GPU takes over from what is in the journal;
when no GPU is left, the work ends with one line.

A thread lasts as long as the command: a worker that waits is tied to the thread that started it
(`workers.prefork`), so that what is started ahead for a GPU has to be started, given its job and
ended by one and the same.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TypeVar, cast

from fa_tune.core.errors import GpusLost
from fa_tune.core.options import Progress
from fa_tune.tune.fleet.gpu import Interrupted, NoGpu, WorkerGpu, is_working
from fa_tune.workers.prefork import PREFORK, Prefork
from fa_tune.workers.supervisor import CALLED_OFF, CalledOff, WorkerUnusable

MAX_INTERRUPTIONS = 3  # of one job
KEPT = "what was finished is kept, and the same command continues from there"
PUMP_S = 0.05  # between two looks at what there is to show

Job = TypeVar("Job")
Result = TypeVar("Result")
Item = TypeVar("Item")
Work = Callable[[WorkerGpu, Progress, Job], Result]


class Pool:
    """The GPUs of one command."""

    def __init__(self, gpus: Sequence[WorkerGpu] = ()) -> None:
        self.gpus = tuple(gpus)
        self.lost: dict[str, str] = {}  # label of a lost GPU -> why

    @property
    def present(self) -> tuple[WorkerGpu, ...]:
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

    def on_each(self, work: Callable[[WorkerGpu], None]) -> None:
        """`work`, which takes no time, on every GPU: what it starts ahead is for the jobs there.
        Nothing where several GPUs have no threads that stay."""
        if not self.has_several:
            for gpu in self.gpus:
                work(gpu)
        elif (lanes := LANES.get()) is not None:
            for end in [lanes[g.label].submit(partial(work, g)) for g in self.present]:
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
            return _spread(self, jobs, work, progress, prefers, cost)
        gpu = self.gpus[0] if self.gpus else NoGpu()
        return [_repeated(gpu, work, progress, job) for job in jobs]


def _repeated(gpu: WorkerGpu, work: Work[Job, Result], progress: Progress, job: Job) -> Result:
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


class _Lost(Exception):
    """A GPU on which workers do not start any more."""


def _spread(
    pool: Pool,
    jobs: Sequence[Job],
    work: Work[Job, Result],
    progress: Progress,
    prefers: Callable[[Job], str],
    cost: Callable[[Job], float],
) -> list[Result]:
    """The results of jobs on several GPUs; see `Pool.each`."""
    shown: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    called_off = threading.Event()

    def in_thread(gpu: WorkerGpu, job: Job) -> Result:
        """One job in its GPU's thread."""
        CALLED_OFF.set(called_off)
        try:
            return work(gpu, cast(Progress, relays[gpu.label]), job)
        except WorkerUnusable as error:
            if not called_off.is_set() and not is_working(gpu):
                raise _Lost(str(error)) from None
            raise  # the job's own doing, as it would be with one GPU

    wanted = [prefers(job) for job in jobs]
    waiting = sorted(range(len(jobs)), key=lambda n: -cost(jobs[n]))
    results: dict[int, Result] = {}
    interruptions = Counter[int]()
    idle = list(pool.present)
    relays = {g.label: _Relay(progress.lane(g.label), shown.put, called_off) for g in idle}
    running: dict[Future[Result], tuple[WorkerGpu, int]] = {}
    with kept_lanes() as lanes:
        try:
            while running or (waiting and idle):
                while waiting and idle:
                    gpu = idle.pop(0)
                    number = _next(waiting, wanted, gpu.device.uuid)
                    begun = lanes[gpu.label].submit(partial(in_thread, gpu, jobs[number]))
                    running[begun] = gpu, number
                ended = wait(running, timeout=PUMP_S, return_when=FIRST_COMPLETED).done
                _show(shown)
                for end in ended:
                    gpu, number = running.pop(end)
                    try:
                        results[number] = end.result()
                    except _Lost as error:
                        waiting.insert(0, number)
                        pool.lost[gpu.label] = str(error)
                        others = "; another GPU takes over its job" if pool.present else ""
                        progress.warn(f"{gpu.label} is lost: {error}{others}")
                        continue
                    except Interrupted:
                        interruptions[number] += 1
                        if interruptions[number] > MAX_INTERRUPTIONS:
                            raise
                        waiting.insert(0, number)
                    idle.append(gpu)
        finally:  # also on Ctrl-C, which reaches this thread alone
            called_off.set()
            wait(running)
    _show(shown)
    if waiting:
        label, why = list(pool.lost.items())[-1]
        raise GpusLost(f"all {len(pool.gpus)} GPUs are lost, the last one {label}: {why}; {KEPT}")
    return [results[number] for number in range(len(jobs))]


def _next(waiting: list[int], wanted: Sequence[str], uuid: str) -> int:
    """The number of the next job of a GPU, which is not waiting any more: its own, or one that is
    anybody's, or another's."""
    own = next((n for n in waiting if wanted[n] == uuid), None)
    free = next((n for n in waiting if not wanted[n]), waiting[0])
    return waiting.pop(waiting.index(free if own is None else own))


def _show(shown: queue.SimpleQueue[Callable[[], None]]) -> None:
    """What the GPUs' threads had to show."""
    with contextlib.suppress(queue.Empty):
        while True:
            shown.get_nowait()()


class _Relay:
    """A Progress for another thread: `put` hands each call to the thread that shows it.  What
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

    def lane(self, name: str) -> _Relay:
        return self

    def __getattr__(self, method: str) -> Callable[..., None]:
        if self._called_off.is_set():
            raise CalledOff
        return lambda *said: self._put(partial(getattr(self._lane, method), *said))


# The threads -------------------------------------------------------------------------------------


class Lane:
    """The thread of one GPU, in which workers are processes that wait with `modules` imported."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._prefork = Prefork(modules)

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        """Have `work` done in the thread, after what it has to do already, in the caller's
        context."""
        return self._thread.submit(copy_context().run, self._within, work)

    def close(self) -> None:
        """End the thread, and what waits there."""
        self._thread.submit(self._prefork.end)
        self._thread.shutdown()

    def _within(self, work: Callable[[], Result]) -> Result:
        PREFORK.set(self._prefork)
        return work()


class Lanes(dict[str, Lane]):
    """The threads of all GPUs, by their labels; each begins when it is first asked for."""

    def __init__(self, modules: Sequence[str] = ()) -> None:
        super().__init__()
        self._modules = tuple(modules)

    def __missing__(self, label: str) -> Lane:
        return self.setdefault(label, Lane(self._modules))


LANES: ContextVar[Lanes | None] = ContextVar("LANES", default=None)


@contextlib.contextmanager
def kept_lanes(modules: Sequence[str] = ()) -> Iterator[Lanes]:
    """Within it, the GPUs' threads stay, and the workers that wait there; `modules` are what these
    import."""
    if (outside := LANES.get()) is not None:
        yield outside
        return
    lanes = Lanes(modules)
    token = LANES.set(lanes)
    try:
        yield lanes
    finally:
        LANES.reset(token)
        for lane in lanes.values():
            lane.close()
