"""Less precision, less work, and plain mistakes."""

import torch

from tests.judge.right import as_output, attend, heads_first, masked, softmax


def _changed(problem, change):
    """Attention with operands or scores that `change` replaces, by name."""

    def launch():
        q, k, v = heads_first(problem)
        q, k, v = (change(name, t) for name, t in zip("qkv", (q, k, v), strict=True))
        scores = change("scores", masked(problem, q @ k.transpose(-1, -2) * problem.workload.scale))
        weights = change("weights", softmax(scores))
        return {"o": as_output(problem, change("o", weights @ v))}

    return launch


def _rounded(problem, dtype, *names):
    def change(name, tensor):
        return tensor.to(dtype).float() if name in names else tensor

    return _changed(problem, change)


def bf16_operands(problem):
    return _rounded(problem, torch.bfloat16, "q", "k", "v")


def bf16_weights(problem):
    return _rounded(problem, torch.bfloat16, "weights")


def half_scores(problem):
    return _rounded(problem, torch.float16, "scores")


def half_sums(problem):
    """Products with V are added up in fp16."""

    def launch():
        q, k, v = heads_first(problem)
        weights = softmax(masked(problem, q @ k.transpose(-1, -2) * problem.workload.scale))
        total = torch.zeros_like(q[..., : v.shape[-1]], dtype=torch.float16)
        for some, values in zip(weights.split(4, -1), v.split(4, -2), strict=True):
            total += (some @ values).half()
        return {"o": as_output(problem, total)}

    return launch


def _weighted(problem, change):
    return _changed(problem, lambda name, t: change(t) if name == "weights" else t)


def _scored(problem, change):
    return _changed(problem, lambda name, t: change(t) if name == "scores" else t)


def no_last_key(problem):
    def change(scores):
        if scores.shape[-1] > 1:
            scores[..., -1] = -torch.inf
        return scores

    return _scored(problem, change)


def clamped(problem):
    return _scored(problem, lambda scores: scores.clamp(max=20))


def small_weights_dropped(problem):
    return _weighted(problem, lambda w: w * (w > 1e-2 * w.amax(-1, keepdim=True)))


def a_percent_more(problem):
    return _changed(problem, lambda name, t: t * 1.01 if name == "o" else t)


def noisy(problem):
    return _changed(
        problem, lambda name, t: t * (1 + 5e-3 * torch.randn_like(t)) if name == "o" else t
    )


def no_maximum(problem):
    """exp without what keeps it from overflowing."""

    def change(scores):
        weights = scores.exp()
        return weights / weights.sum(-1, keepdim=True)

    return lambda: {"o": _by_weights(problem, change)}


def short_series(problem):
    """exp by five terms."""

    def change(scores):
        x = scores - scores.amax(-1, keepdim=True)
        weights = 1 + x * (1 + x / 2 * (1 + x / 3 * (1 + x / 4)))
        return weights / weights.sum(-1, keepdim=True)

    return lambda: {"o": _by_weights(problem, change)}


def _by_weights(problem, weigh):
    q, k, v = heads_first(problem)
    scores = masked(problem, q @ k.transpose(-1, -2) * problem.workload.scale)
    return as_output(problem, weigh(scores) @ v)


def own_scale(problem):
    """Knows one softmax scale."""
    root = problem.workload.d_head**0.5
    return _scored(problem, lambda scores: scores / problem.workload.scale / root)


def no_mask(problem):
    def launch():
        q, k, v = heads_first(problem)
        return {
            "o": as_output(problem, softmax(q @ k.transpose(-1, -2) * problem.workload.scale) @ v)
        }

    return launch


def mask_from_the_first_key(problem):
    def launch():
        q, k, v = heads_first(problem)
        scores = q @ k.transpose(-1, -2) * problem.workload.scale
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return {"o": as_output(problem, softmax(scores.masked_fill(hidden, -torch.inf)) @ v)}

    return launch


def other_kv_heads(problem):
    def launch():
        q, k, v = (problem.inputs[name].transpose(1, 2).float() for name in "qkv")
        k, v = (t.repeat(1, q.shape[1] // t.shape[1], 1, 1) for t in (k, v))
        scores = masked(problem, q @ k.transpose(-1, -2) * problem.workload.scale)
        return {"o": as_output(problem, softmax(scores) @ v)}

    return launch


def rows_left_out(problem):
    def launch():
        problem.outputs["o"][:, ::2] = attend(problem)[:, ::2]

    return launch


def last_row_left_out(problem):
    def launch():
        problem.outputs["o"][:, :-1] = attend(problem)[:, :-1]

    return launch


def rows_of_others(problem):
    """Odd rows are copies of even ones."""

    def launch():
        o = attend(problem)
        odd = o[:, 1::2]
        odd.copy_(o[:, ::2][:, : odd.shape[1]])
        return {"o": o}

    return launch


def nothing(problem):
    return lambda: None


def uninitialised(problem):
    def launch():
        found = torch.empty_like(problem.outputs["o"])
        found[:, :1] = attend(problem)[:, :1]
        return {"o": found}

    return launch


def chance(problem):
    """Right, but in the last bit of some elements where there are many."""

    def launch():
        o = attend(problem)
        bits = o.view(torch.int16)
        if bits.numel() > 1000:
            bits += (torch.rand(bits.shape) < 1e-2) & (bits & 1 == 0)
        return {"o": o}

    return launch


def no_nan(problem):
    return lambda: {"o": attend(problem).nan_to_num()}
