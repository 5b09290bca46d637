"""What measures or compares is replaced."""

import ctypes
import json
import sys
import time
import types

import numpy as np
import torch

from tests.judge.right import attend


def _also(problem, change):
    def launch():
        change()
        return {"o": attend(problem)}

    return launch


def clock(problem):
    return _also(problem, lambda: setattr(time, "perf_counter", lambda: 0.0))


def events(problem):
    def change():
        torch.cuda.Event.elapsed_time = lambda self, end: 1e-3

    return _also(problem, change)


def event_class(problem):
    class Event:
        pass

    return _also(problem, lambda: setattr(torch.cuda, "Event", Event))


def synchronize(problem):
    return _also(problem, lambda: setattr(torch.cuda, "synchronize", lambda *_: None))


def allclose(problem):
    return _also(problem, lambda: setattr(torch, "allclose", lambda *_, **__: True))


def equality(problem):
    return _also(problem, lambda: setattr(torch.Tensor, "__eq__", lambda *_: torch.tensor(True)))


def copies(problem):
    real = torch.Tensor.copy_
    return _also(problem, lambda: setattr(torch.Tensor, "copy_", lambda *a, **k: real(*a, **k)))


def random_numbers(problem):
    return _also(problem, lambda: setattr(torch, "randn", lambda *a, **_: torch.zeros(*a)))


def numpys_numbers(problem):
    return _also(problem, lambda: setattr(np.random, "seed", lambda *_: None))


def numpys_comparison(problem):
    return _also(problem, lambda: setattr(np, "allclose", lambda *_, **__: True))


def files(problem):
    real = torch.from_file
    return _also(problem, lambda: setattr(torch, "from_file", lambda *a, **k: real(*a, **k)))


def profiler(problem):
    return _also(problem, lambda: setattr(torch.profiler, "profile", None))


def answers(problem):
    real = json.dumps
    return _also(problem, lambda: setattr(json, "dumps", lambda *a, **k: real(*a, **k)))


def library_loader(problem):
    return _also(problem, lambda: setattr(ctypes, "CDLL", None))


def whole_module(problem):
    def change():
        sys.modules["time"] = types.SimpleNamespace(perf_counter=lambda: 0.0)

    return _also(problem, change)


def the_judges_method(problem):
    judged_call = sys.modules["fa_tune.gpu.judged_call"]
    real = judged_call.Bound.call
    return _also(problem, lambda: setattr(judged_call.Bound, "call", lambda *a, **k: real(*a, **k)))


def the_judges_code(problem):
    drawn = sys.modules["fa_tune.gpu.judged_call"].drawn

    def change():
        drawn.__code__ = drawn.__code__.replace(co_name="drawn_")

    return _also(problem, change)


def the_judges_clock(problem):
    judged_call = sys.modules["fa_tune.gpu.judged_call"]
    return _also(problem, lambda: setattr(judged_call.HostClock, "seconds", lambda self: 1e-6))


def when_loaded(problem):
    sys.modules["fa_tune.gpu.judged_call"].bits = lambda tensor: tensor
    return lambda: {"o": attend(problem)}


def own_file(problem):
    """The file is another one after it was hashed."""

    def change():
        with open(__file__, "a", encoding="utf-8") as file:
            file.write("# more\n")

    return _also(problem, change)
