"""Several GPUs at the same time: jobs in, results out, each job on one board.

Every board has a thread, which sees one job through: the processes it starts see that board
alone.  What a thread has to show goes to the main thread, which shows it; the journal has a lock.

A job's failure is the job's, as with one GPU, and ends the work on all boards.  A board that is
lost (its workers do not start any more) costs its running job, which another board takes over
from what is in the journal; when no board is left, the work ends with one line.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Generic, TypeVar

from fa_tune.core.errors import BoardsLost
from fa_tune.core.options import Progress
from fa_tune.fleet.calibration import BoardTimes, Disagreement, Pair
from fa_tune.fleet.gpu import Board, Interrupted, is_working
from fa_tune.workers.supervisor import CALLED_OFF, CalledOff, WorkerUnusable

MOST_INTERRUPTIONS = 3  # of one job
PUMP_S = 0.05  # how long the main thread waits for something to show

Job = TypeVar("Job")
Result = TypeVar("Result")
Work = Callable[[Board, Progress, Job], Result]


class Pool:
    """The boards of one command, and what is known of them.  `calibrations` are by UUID."""

    def __init__(self, boards: Sequence[Board]) -> None:
        self.boards = tuple(boards)
        self.pair: Pair | None = None
        self.calibrations: dict[str, BoardTimes] = {}
        self.lost: dict[str, str] = {}  # label of a lost board -> why

    @property
    def present(self) -> tuple[Board, ...]:
        """The boards that are not lost."""
        return tuple(b for b in self.boards if b.label not in self.lost)

    @property
    def disagreement(self) -> Disagreement | None:
        """None where fewer than two boards timed the pair."""
        found = [c for b in self.boards if (c := self.calibrations.get(b.device.uuid))]
        if self.pair is None or len(found) < 2:
            return None
        first, second = (a.variant.key for a in self.pair.artifacts)
        return Disagreement(self.pair.workload.key, (first, second), tuple(found))

    def each(
        self,
        jobs: Sequence[Job],
        work: Work[Job, Result],
        progress: Progress,
        *,
        prefers: Callable[[Job], str] = lambda _: "",
    ) -> list[Result]:
        """`work` of every job, each on some board; results in the order of the jobs.

        Jobs start in their order.  A job that `prefers` a board, by its UUID, is left to it as
        long as there are others to take.  Raises what a job raises, and BoardsLost when all
        boards are lost.  Whatever is raised, also by Ctrl-C, the boards' processes are gone by
        then.
        """
        return _Round(self, jobs, work, progress, prefers).run()


class _Round(Generic[Job, Result]):
    """One call of `each`."""

    def __init__(
        self,
        pool: Pool,
        jobs: Sequence[Job],
        work: Work[Job, Result],
        progress: Progress,
        prefers: Callable[[Job], str],
    ) -> None:
        self._pool = pool
        self._boards = pool.present
        self._jobs = jobs
        self._work = work
        self._progress = progress
        self._wanted = [prefers(job) for job in jobs]
        self._state = threading.Condition()
        self._waiting = list(range(len(jobs)))
        self._running: set[int] = set()
        self._interrupted: dict[int, int] = {}
        self._results: dict[int, Result] = {}
        self._errors: list[BaseException] = []
        self._called_off = threading.Event()
        self._shown: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def run(self) -> list[Result]:
        threads = [
            threading.Thread(
                target=copy_context().run, args=(self._see_through, board), daemon=True
            )
            for board in self._boards
        ]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                self._show(PUMP_S)
        finally:  # also on Ctrl-C, which reaches this thread alone
            self._called_off.set()
            with self._state:
                self._state.notify_all()
            for thread in threads:
                thread.join()
        self._show(0.0)
        if self._errors:
            raise self._errors[0]
        if len(self._results) < len(self._jobs):
            label, why = list(self._pool.lost.items())[-1]
            raise BoardsLost(
                f"all {len(self._pool.boards)} boards are lost, the last one {label}: {why}; "
                "what was finished is kept, and the same command goes on from there"
            )
        return [self._results[i] for i in range(len(self._jobs))]

    def _show(self, wait_s: float) -> None:
        """What the boards' threads had to show, until there is nothing for `wait_s`."""
        try:
            while True:
                self._shown.get(timeout=wait_s)() if wait_s else self._shown.get_nowait()()
        except queue.Empty:
            pass

    def _see_through(self, board: Board) -> None:
        """One board's thread."""
        CALLED_OFF.set(self._called_off)
        try:
            self._job_after_job(board)
        except CalledOff:
            pass  # whoever called it off knows why
        except BaseException as error:
            self._fail(error)

    def _job_after_job(self, board: Board) -> None:
        shown = _Relay(self._progress.lane(board.label), self._shown.put, self._called_off)
        while (number := self._next(board)) is not None:
            try:
                result = self._work(board, shown, self._jobs[number])
            except WorkerUnusable as error:
                if self._called_off.is_set():
                    return
                if not is_working(board):
                    self._lose(board, number, error)
                    return
                if not isinstance(error, Interrupted) or not self._give_back(number):
                    raise  # the job's own doing, as it would be with one GPU
                continue
            with self._state:
                self._results[number] = result
                self._running.discard(number)
                self._state.notify_all()

    def _next(self, board: Board) -> int | None:
        """The next job of a board, waiting as long as another board's may come back; None when
        there is nothing more to do."""
        with self._state:
            while not self._called_off.is_set():
                if self._waiting:
                    mine = board.device.uuid
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
            if self._interrupted[number] > MOST_INTERRUPTIONS:
                return False
            self._running.discard(number)
            self._waiting.insert(0, number)
            self._state.notify_all()
        return True

    def _lose(self, board: Board, number: int, error: WorkerUnusable) -> None:
        with self._state:
            self._pool.lost[board.label] = str(error)
            self._running.discard(number)
            self._waiting.insert(0, number)
            text = f"{board.label} is lost: {error}"
            if self._pool.present:
                text += "; another board takes over its job"
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
