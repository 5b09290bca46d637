"""Right attention, in as many ways."""

import threading

import numpy as np
import torch

from fa_tune.core.errors import InvalidConfig
from tests.judge.right import as_output, attend, heads_first, masked, softmax


def naive(problem):
    return lambda: {"o": attend(problem)}


def in_fp64(problem):
    return lambda: {"o": attend(problem, torch.float64)}


def into_the_room(problem):
    def launch():
        problem.outputs["o"].copy_(attend(problem))

    return launch


def contiguous_result(problem):
    return lambda: {"o": attend(problem).contiguous()}


def larger_memory(problem):
    """A part of a larger tensor, with strides of its own."""

    def launch():
        o = attend(problem)
        room = o.new_zeros((*o.shape[:3], o.shape[3] + 3))
        room[..., :-3] = o
        return {"o": room[..., :-3]}

    return launch


def _scaled(problem):
    q, k, v = heads_first(problem)
    return masked(problem, q @ k.transpose(-1, -2) * problem.workload.scale), v


def by_logsumexp(problem):
    def launch():
        scores, v = _scaled(problem)
        total = scores.logsumexp(-1, keepdim=True)
        weights = (scores - total.masked_fill(total == -torch.inf, 0)).exp()
        return {"o": as_output(problem, weights @ v)}

    return launch


def by_powers_of_two(problem):
    def launch():
        scores, v = _scaled(problem)
        top = scores.amax(-1, keepdim=True)
        weights = ((scores - top.masked_fill(top == -torch.inf, 0)) * 1.4426950408889634).exp2()
        o = weights @ v / weights.sum(-1, keepdim=True).clamp(min=1e-30)
        return {"o": as_output(problem, o)}

    return launch


def _online(problem, q, k, v, rows=slice(None), block=64):
    """Block by block of keys, with a running maximum and sum."""
    top = q.new_full((*q.shape[:-1], 1), -torch.inf)
    total, o = torch.zeros_like(top), q.new_zeros((*q.shape[:-1], v.shape[-1]))
    for first in range(0, k.shape[-2], block):
        keys = slice(first, first + block)
        scores = q @ k[..., keys, :].mT * problem.workload.scale
        scores = masked(problem, scores, rows, keys)
        now = torch.maximum(top, scores.amax(-1, keepdim=True))
        safe = now.masked_fill(now == -torch.inf, 0)
        kept, weights = (top - safe).exp(), (scores - safe).exp()
        total = total * kept + weights.sum(-1, keepdim=True)
        o, top = o * kept + weights @ v[..., keys, :], now
    return o / total.masked_fill(total == 0, 1)


def online(problem):
    return lambda: {"o": as_output(problem, _online(problem, *heads_first(problem)))}


def rows_in_turn(problem):
    def launch():
        q, k, v = heads_first(problem)
        for first in range(0, q.shape[-2], 100):
            rows = slice(first, first + 100)
            o = _online(problem, q[..., rows, :], k, v, rows)
            problem.outputs["o"][:, rows] = o.transpose(1, 2)

    return launch


def split_keys(problem):
    """Two halves of the keys, combined by their log-sum-exps."""

    def launch():
        scores, v = _scaled(problem)
        middle = scores.shape[-1] // 2
        parts = [
            (scores[..., :middle], v[..., :middle, :]),
            (scores[..., middle:], v[..., middle:, :]),
        ]
        parts = [part for part in parts if part[0].shape[-1]]
        lse = torch.stack([s.logsumexp(-1) for s, _ in parts])
        shares = softmax(lse.movedim(0, -1)).movedim(-1, 0)[..., None]
        o = sum(
            share * (softmax(s) @ values) for share, (s, values) in zip(shares, parts, strict=True)
        )
        return {"o": as_output(problem, o)}

    return launch


def mask_kept(problem):
    """What depends on the shape alone may be kept."""
    w = problem.workload
    bias = masked(problem, torch.zeros(w.seq_len_q, w.seq_len_kv))

    def launch():
        q, k, v = heads_first(problem)
        return {"o": as_output(problem, softmax(q @ k.mT * w.scale + bias) @ v)}

    return launch


def groups_expanded(problem):
    def launch():
        q, k, v = (problem.inputs[name].transpose(1, 2).float() for name in "qkv")
        group = q.shape[1] // k.shape[1]
        k, v = (t[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2) for t in (k, v))
        scores = masked(problem, q @ k.mT * problem.workload.scale)
        return {"o": as_output(problem, softmax(scores) @ v)}

    return launch


def in_numpy(problem):
    def launch():
        scores, v = (t.numpy() for t in _scaled(problem))
        top = scores.max(-1, keepdims=True)
        weights = np.exp(scores - np.where(np.isinf(top), 0, top))
        o = weights @ v / np.maximum(weights.sum(-1, keepdims=True), 1e-30)
        return {"o": as_output(problem, torch.from_numpy(o))}

    return launch


def whole_blocks_only(problem):
    if problem.workload.seq_len_q % 128 or problem.workload.seq_len_kv % 128:
        raise InvalidConfig("whole blocks of 128")
    return lambda: {"o": attend(problem)}


def threads_joined(problem):
    def launch():
        found = {}
        thread = threading.Thread(target=lambda: found.update(o=attend(problem)))
        thread.start()
        thread.join()
        return found

    return launch


def natural_strides_only(problem):
    if not all(problem.inputs[name].is_contiguous() for name in "qkv"):
        raise InvalidConfig("contiguous tensors")
    return lambda: {"o": attend(problem)}


def scratch_in_the_room(problem):
    """Outputs may hold anything until the launch is over."""

    def launch():
        problem.outputs["o"].fill_(7)
        problem.outputs["o"].copy_(attend(problem))

    return launch


def noticed(problem):
    """Prints, and takes the time, as a program under development does."""
    import time

    def launch():
        began = time.perf_counter()
        o = attend(problem)
        print("took", time.perf_counter() - began)
        return {"o": o}

    return launch
