"""What only a GPU makes possible."""

import threading
import time

import torch
from torch.nn.functional import scaled_dot_product_attention


def _attend(problem):
    q, k, v = (problem.inputs[name].transpose(1, 2) for name in "qkv")
    w = problem.workload
    o = scaled_dot_product_attention(
        q, k, v, is_causal=w.causal, scale=w.scale, enable_gqa=w.heads != w.kv_heads
    )
    return o.transpose(1, 2)


def _on(stream, problem):
    with torch.cuda.stream(stream):
        problem.outputs["o"].copy_(_attend(problem))


def another_stream(problem):
    stream = torch.cuda.Stream()
    return lambda: _on(stream, problem)


def another_stream_that_waits(problem):
    """The work begins in time, and nobody waits for its end."""
    stream = torch.cuda.Stream()

    def launch():
        stream.wait_stream(torch.cuda.current_stream())
        _on(stream, problem)

    return launch


def the_default_stream(problem):
    return lambda: _on(torch.cuda.default_stream(), problem)


def a_stream_left_current(problem):
    stream = torch.cuda.Stream()

    def launch():
        stream.wait_stream(torch.cuda.current_stream())
        torch.cuda.set_stream(stream)
        problem.outputs["o"].copy_(_attend(problem))

    return launch


def a_thread_behind_the_event(problem):
    stream = torch.cuda.current_stream()

    def late():
        time.sleep(0.002)
        _on(stream, problem)

    return lambda: threading.Thread(target=late).start()


def a_graph_of_another_moment(problem):
    """A graph that copies what was computed when it was bound."""
    o, graph = _attend(problem), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        problem.outputs["o"].copy_(o)
    return graph.replay


def kept_by_pointer(problem):
    known = {}

    def launch():
        key = tuple(tensor.data_ptr() for tensor in problem.inputs.values())
        if key not in known:
            known[key] = _attend(problem)
        return {"o": known[key]}

    return launch


def kept_by_contents(problem):
    known = {}

    def launch():
        key = tuple(float(tensor.double().square().sum()) for tensor in problem.inputs.values())
        if key not in known:
            known[key] = _attend(problem)
        return {"o": known[key]}

    return launch


def events_replaced(problem):
    def launch():
        torch.cuda.Event.elapsed_time = lambda self, end: 1e-3
        return {"o": _attend(problem)}

    return launch


def inputs_changed(problem):
    def launch():
        o = _attend(problem)
        problem.inputs["k"].zero_()
        return {"o": o}

    return launch


def a_librarys_kernel(problem):
    """Does not say so."""
    return lambda: {"o": _attend(problem)}


def an_illegal_address(problem):
    def launch():
        everything = torch.arange(1 << 20, device="cuda")
        return {"o": problem.outputs["o"].flatten()[everything * (1 << 30)]}

    return launch
