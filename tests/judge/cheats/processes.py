"""What becomes of the process."""

import ctypes
import os
import signal
import socket
import sys
import time

import torch

from tests.judge.right import attend


def _first(problem, action):
    def launch():
        action()
        return {"o": attend(problem)}

    return launch


def hangs(problem):
    return _first(problem, lambda: time.sleep(1e6))


def spins(problem):
    def launch():
        while True:
            pass

    return launch


def hangs_when_bound(problem):
    time.sleep(1e6)


def leaves(problem):
    return _first(problem, lambda: os._exit(0))


def exits(problem):
    return _first(problem, lambda: sys.exit(0))


def raises(problem):
    return _first(problem, lambda: 1 / 0)


def faults(problem):
    return _first(problem, lambda: ctypes.string_at(0))


def aborts(problem):
    return _first(problem, os.abort)


def is_killed(problem):
    return _first(problem, lambda: os.kill(os.getpid(), signal.SIGKILL))


def recurses(problem):
    def launch():
        return launch()

    return launch


def takes_all_memory(problem):
    return _first(problem, lambda: torch.ones(1 << 34))


def closes_everything(problem):
    return _first(problem, lambda: os.closerange(3, 1024))


def _sockets():
    for number in range(3, 64):
        try:
            yield socket.socket(fileno=os.dup(number))
        except OSError:
            continue


def says_nonsense(problem):
    return _first(problem, lambda: [one.sendall(b"well\n") for one in _sockets()])


def answers_itself(problem):
    """Says that everything was right and took no time."""
    call = b'{"seconds": 1e-9, "faults": [], "ran": {}}'
    line = (
        b'{"calls": ['
        + b", ".join([call] * 5)
        + b'], "no_call": "", "raised": "", "versions": {}}\n'
    )
    return _first(problem, lambda: [one.sendall(line) for one in _sockets()])
