"""Outputs that are not what was asked for."""

import torch

from tests.judge.right import attend


def _given(problem, change):
    return lambda: {"o": change(attend(problem))}


def wider(problem):
    return _given(problem, torch.Tensor.float)


def other_half(problem):
    """bf16 for fp16."""
    return _given(problem, torch.Tensor.bfloat16)


def heads_first(problem):
    return _given(problem, lambda o: o.transpose(1, 2))


def one_row_more(problem):
    return _given(problem, lambda o: torch.cat((o, o[:, :1]), 1))


def elsewhere(problem):
    return _given(problem, lambda o: o.to("meta"))


def one_memory(problem):
    return _given(problem, lambda o: o[:, :1].expand_as(o))


def sparse(problem):
    return _given(problem, torch.Tensor.to_sparse)


def parameter(problem):
    return _given(problem, lambda o: torch.nn.Parameter(o, requires_grad=False))


def array(problem):
    return _given(problem, lambda o: o.numpy())


def other_name(problem):
    return lambda: {"out": attend(problem)}


def bare(problem):
    return lambda: attend(problem)


def no_launch(problem):
    return attend(problem)
