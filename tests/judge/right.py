"""Attention by the definition, which targets begin with."""

import torch


def masked(problem, scores, rows=slice(None), keys=slice(None)):
    """Scores [..., rows, keys] with -inf where a causal mask hides a key."""
    w = problem.workload
    if not w.causal:
        return scores
    query = torch.arange(w.seq_len_q)[rows, None] + w.diagonal
    return scores.masked_fill(torch.arange(w.seq_len_kv)[keys] > query, -torch.inf)


def heads_first(problem, dtype=torch.float32):
    """Q, K and V [batch, heads, seq, d], K and V once for each query head."""
    q, k, v = (problem.inputs[name].transpose(1, 2).to(dtype) for name in "qkv")
    group = q.shape[1] // k.shape[1]
    return q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)


def softmax(scores):
    """Of the last dimension; rows without keys are 0."""
    return scores.softmax(-1).masked_fill(scores.amax(-1, keepdim=True) == -torch.inf, 0)


def as_output(problem, o):
    """[batch, heads, seq, d] as O."""
    return o.transpose(1, 2).to(problem.outputs["o"].dtype)


def attend(problem, dtype=torch.float32):
    """O."""
    q, k, v = heads_first(problem, dtype)
    scores = masked(problem, q @ k.transpose(-1, -2) * problem.workload.scale)
    return as_output(problem, softmax(scores) @ v)
