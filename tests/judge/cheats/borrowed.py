"""Attention that somebody else computes."""

import torch
from torch.nn import functional

from tests.judge.right import as_output, attend, heads_first, masked


def _sdpa(problem, function):
    def launch():
        q, k, v = heads_first(problem, problem.inputs["q"].dtype)
        w = problem.workload
        mask = masked(problem, torch.zeros(w.seq_len_q, w.seq_len_kv)).to(q.dtype)
        return {"o": as_output(problem, function(q, k, v, mask, scale=w.scale).nan_to_num())}

    return launch


def sdpa(problem):
    return _sdpa(problem, functional.scaled_dot_product_attention)


def sdpa_by_another_name(problem):
    return _sdpa(problem, getattr(torch._C._nn, "_".join(("scaled", "dot_product", "attention"))))


def sdpa_by_its_operator(problem):
    def function(q, k, v, mask, scale):
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return flash(q, k, v, 0.0, False, attn_mask=mask, scale=scale)[0]

    return _sdpa(problem, function)


def sdpa_for_some(problem):
    own = problem.workload.seq_len_q < 200
    return (lambda: {"o": attend(problem)}) if own else sdpa(problem)


def operators_for_a_kernel(problem):
    """Claims to be a kernel."""
    return lambda: {"o": attend(problem)}


def the_judges_reference(problem):
    from fa_tune.operations.forward import torch_side

    def launch():
        found = torch_side.expected(problem.workload, problem.inputs)
        return {"o": found["o"].exact.to(problem.outputs["o"].dtype)}

    return launch
