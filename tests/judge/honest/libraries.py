"""Calls of libraries, and says so."""

import torch
from torch.nn import functional

from tests.judge.right import as_output, heads_first, masked


def sdpa(problem):
    w = problem.workload
    mask = masked(problem, torch.zeros(w.seq_len_q, w.seq_len_kv))

    def launch():
        q, k, v = heads_first(problem)
        o = functional.scaled_dot_product_attention(q, k, v, mask, scale=w.scale)
        return {"o": as_output(problem, o.nan_to_num())}

    return launch


def flex(problem):
    from torch.nn.attention.flex_attention import flex_attention

    def score(scores, b, h, query, key):
        return torch.where(key <= query + problem.workload.diagonal, scores, -torch.inf)

    def launch():
        changed = score if problem.workload.causal else None
        o = flex_attention(*heads_first(problem), score_mod=changed, scale=problem.workload.scale)
        return {"o": as_output(problem, o)}

    return launch


def compiled(problem):
    @torch.compile(dynamic=True)
    def attention(q, k, v, scale):
        return (q @ k.mT * scale).softmax(-1) @ v

    def launch():
        return {"o": as_output(problem, attention(*heads_first(problem), problem.workload.scale))}

    return launch
