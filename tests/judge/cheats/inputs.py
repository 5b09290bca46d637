"""Inputs changed, or handed back as outputs."""

from tests.judge.right import attend


def scaled(problem):
    def launch():
        o = attend(problem)
        problem.inputs["q"].mul_(2)
        return {"o": o}

    return launch


def centred(problem):
    """Moving all keys changes no weight."""

    def launch():
        k = problem.inputs["k"]
        k.sub_(k.mean(1, keepdim=True))
        return {"o": attend(problem)}

    return launch


def emptied(problem):
    def launch():
        o = attend(problem)
        problem.inputs["v"].zero_()
        return {"o": o}

    return launch


def one_bit(problem):
    def launch():
        o = attend(problem)
        problem.inputs["v"][0, 0, 0, 0].add_(1)
        return {"o": o}

    return launch


def in_place_of_q(problem):
    return lambda: {"o": problem.inputs["q"].copy_(attend(problem))}


def a_view_of_q(problem):
    return lambda: {"o": problem.inputs["q"]}


def in_the_storage_of_k(problem):
    def launch():
        o, memory = attend(problem), problem.inputs["k"].untyped_storage()
        found = o.new_empty(0).set_(memory, 0, o.shape, o.stride())
        return {"o": found.copy_(o)} if o.numel() * 2 <= memory.nbytes() else {"o": o}

    return launch
