"""Results of earlier calls."""

import gc
import hashlib

import numpy as np
import torch

from tests.judge.right import attend

_KNOWN = {}


def _by(problem, key):
    def launch():
        known = key(*(problem.inputs[name] for name in "qkv"))
        if known not in _KNOWN:
            _KNOWN[known] = attend(problem)
        return {"o": _KNOWN[known]}

    return launch


def once(problem):
    return _by(problem, lambda *_: id(problem))


def by_pointer(problem):
    return _by(problem, lambda *tensors: tuple(t.data_ptr() for t in tensors))


def by_sum(problem):
    return _by(problem, lambda *tensors: tuple(float(t.double().sum()) for t in tensors))


def by_some_keys(problem):
    return _by(problem, lambda *ts: tuple(t[:, :2].double().sum().item() for t in ts))


def by_contents(problem):
    def digest(*tensors):
        return b"".join(
            hashlib.sha256(t.view(torch.int16).contiguous().numpy()).digest() for t in tensors
        )

    return _by(problem, digest)


def by_contents_without_torch(problem):
    """Torch runs nothing here, so that only time tells."""
    q, k, v = (problem.inputs[name].view(torch.int16).numpy().view(np.float16) for name in "qkv")
    o = problem.outputs["o"].numpy()
    known = {}

    def launch():
        key = hash((q.tobytes(), k.tobytes(), v.tobytes()))
        if key not in known:
            wide = [a.astype(np.float32).swapaxes(1, 2) for a in (q, k, v)]
            group = q.shape[2] // k.shape[2]
            wide[1:] = [a.repeat(group, 1) for a in wide[1:]]
            scores = wide[0] @ wide[1].swapaxes(-1, -2) * problem.workload.scale
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            known[key] = (weights @ wide[2]).swapaxes(1, 2)
        o[:] = known[key]

    return launch


def when_bound(problem):
    o = attend(problem)
    return lambda: {"o": o.clone()}


def cast_when_bound(problem):
    q, k, v = (problem.inputs[name].transpose(1, 2).float() for name in "qkv")
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)

    def launch():
        weights = (q @ k.transpose(-1, -2) * problem.workload.scale).softmax(-1)
        problem.outputs["o"].copy_((weights @ v).transpose(1, 2))

    return launch


def keys_when_bound(problem):
    right = {**problem.inputs, "k": problem.inputs["k"].clone()}
    same = type(problem)(problem.workload, right, problem.outputs)
    return lambda: {"o": attend(same)}


def one_behind(problem):
    before = [attend(problem)]

    def launch():
        before.append(attend(problem))
        return {"o": before.pop(0)}

    return launch


def found_in_memory(problem):
    """Takes whatever tensor in the process looks like a result."""
    room = problem.outputs["o"]

    def launch():
        for found in gc.get_objects():
            if type(found) is torch.Tensor and found.shape == room.shape and found is not room:
                same = found.dtype == room.dtype and not found.isnan().any()
                if same and all(found is not given for given in problem.inputs.values()):
                    room.copy_(found)
                    return
        room.copy_(attend(problem))

    return launch


def tired(problem):
    """Right for the first calls."""

    def launch():
        _KNOWN["calls"] = _KNOWN.get("calls", 0) + 1
        o = attend(problem)
        return {"o": o if _KNOWN["calls"] < 20 else torch.zeros_like(o)}

    return launch


def by_version(problem):
    """Nothing is done where nobody wrote to the inputs since the last launch."""
    last = []

    def launch():
        now = [problem.inputs[name]._version for name in "qkv"]
        if now != last:
            last[:] = now
            problem.outputs["o"].copy_(attend(problem))

    return launch
