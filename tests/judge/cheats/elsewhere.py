"""Work that is done where or when nobody looks."""

import atexit
import gc
import os
import signal
import sys
import threading
import time
from collections import UserDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.judge.right import attend

_POOL = ThreadPoolExecutor(1)
_KEPT = []


def _late(problem):
    time.sleep(0.02)
    problem.outputs["o"].copy_(attend(problem))


def thread(problem):
    return lambda: threading.Thread(target=_late, args=(problem,)).start()


def pool(problem):
    pending = []

    def launch():
        if pending:
            pending.pop().result()
        pending.append(_POOL.submit(_late, problem))

    return launch


def alarm(problem):
    def launch():
        signal.signal(signal.SIGALRM, lambda *_: problem.outputs["o"].copy_(attend(problem)))
        signal.setitimer(signal.ITIMER_REAL, 0.02)

    return launch


def process(problem):
    problem.outputs["o"].share_memory_()

    def launch():
        if os.fork() == 0:
            _late(problem)
            os._exit(0)

    return launch


def at_exit(problem):
    return lambda: atexit.register(_late, problem) and None


class _Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.Tensor.clone:
            return attend(args[0].problem)
        return super().__torch_function__(function, types, args, kwargs or {})


def lazy_tensor(problem):
    def launch():
        found = torch.empty_like(problem.outputs["o"]).as_subclass(_Lazy)
        found.problem = problem
        return {"o": found}

    return launch


class _Asked(UserDict):
    def __getitem__(self, name):
        return attend(self.data["problem"])

    def __iter__(self):
        return iter("o")


def lazy_mapping(problem):
    return lambda: _Asked(problem=problem)


def after_the_clock(problem):
    """A hook that works as soon as the second moment has been taken."""

    def hook(frame, event, argument):
        if event == "c_return" and argument is time.perf_counter:
            sys.setprofile(None)
            problem.outputs["o"].copy_(attend(problem))

    return lambda: sys.setprofile(hook)


def another_clock(problem):
    """Puts a clock of its own in the place of the one that it finds in the stack."""

    class Clock:
        def __init__(self, real):
            self.real = real

        def __getattr__(self, name):
            return getattr(self.real, name)

        def seconds(self):
            return self.real.seconds() / 100

    def launch():
        frame = sys._getframe(1)
        while frame is not None:
            owner = frame.f_locals.get("self")
            if hasattr(owner, "_clock") and type(owner._clock) is not Clock:
                owner._clock = Clock(owner._clock)
            frame = frame.f_back
        return {"o": attend(problem)}

    return launch


class _Mode(TorchDispatchMode):
    def __init__(self, problem):
        super().__init__()
        self.problem = problem

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "clone" in str(function):
            self.problem.outputs["o"].copy_(attend(self.problem))
        return function(*args, **(kwargs or {}))


def a_mode_left_on(problem):
    return lambda: _Mode(problem).__enter__() and None


def an_operator_of_its_own(problem):
    """What copies a tensor computes it first."""
    library = torch.library.Library("aten", "IMPL")
    _KEPT.append(library)

    def clone(tensor, memory_format=None):
        if tensor.data_ptr() == problem.outputs["o"].data_ptr():
            tensor.copy_(attend(problem))
        return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)

    return lambda: _KEPT[1:] or _KEPT.append(library.impl("clone", clone, "CPU"))


def a_method_of_its_own(problem):
    def launch():
        found = torch.full_like(problem.outputs["o"], torch.nan)
        found.detach = lambda: attend(problem)
        found.clone = found.detach
        return {"o": found}

    return launch


def a_method_of_the_judge(problem):
    """A method in an object of the judge computes what was not computed in time."""

    def launch():
        owner = sys._getframe(1).f_locals["self"]
        if "_taken" in vars(owner):
            return
        real = owner._taken

        def taken(given):
            problem.outputs["o"].copy_(attend(problem))
            return real(given)

        owner._taken = taken

    return launch


def at_collection(problem):
    def collected(phase, info):
        gc.callbacks.remove(collected)
        problem.outputs["o"].copy_(attend(problem))

    def launch():
        gc.callbacks.append(collected)
        gc.set_threshold(len(gc.get_objects()), 1, 1)

    return launch


def written_again(problem):
    """A thread puts the result into the file in which another was handed over."""

    def launch():
        folder = sys._getframe(2).f_locals["request"].folder
        o = attend(problem).contiguous()
        number = sys._getframe(2).f_locals["number"]

        def later():
            path = Path(folder) / f"{number}.o"
            while not path.exists():
                time.sleep(1e-3)
            time.sleep(0.01)
            path.write_bytes(o.view(torch.int16).numpy().tobytes())

        if folder:
            threading.Thread(target=later).start()
        problem.outputs["o"].zero_()

    return launch


def a_later_start(problem):
    """Moves the first moment that the judge's clock in this process has noted."""

    def launch():
        o = attend(problem)
        sys._getframe(1).f_locals["self"]._clock._times[0] = time.perf_counter()
        return {"o": o}

    return launch


def a_default_left(problem):
    def launch():
        torch.set_default_device("cpu")
        return {"o": attend(problem)}

    return launch
