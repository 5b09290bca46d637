"""dQ, dK and dV by kernels of our own, or where tensors are fp64 by torch."""

from __future__ import annotations

import torch
from fa_tune.operations.toy import torch_side

from fa_tune.build.native.call import problem_of, tensors_of
from fa_tune.core.tensors import workload_of
from fa_tune.op.products import _recording
from fa_tune.op.python_op import launch
from fa_tune.operations.torch_side import outputs_of


def kernel_of(workload, device):
    """A kernel to launch."""
    from fa_tune.op import state

    return state.operators().plans.kernel(workload, device)


def suits(done, mask):
    """Whether there are kernels for such a pass."""
    return mask.is_full and done.q.shape[2] == done.k.shape[2]


def gradients(done, mask):
    """In the order of Q, K and V."""
    given = {"q": done.q, "k": done.k, "v": done.v, "do": done.grad_out}
    if done.q.dtype is torch.float64:
        scale = mask.scale or done.q.shape[-1] ** -0.5
        with _recording():
            return tuple(torch_side.gradients(scale, given, torch.float64).values())
    workload = workload_of(*done[1:4], op="toy", softmax_scale=mask.scale)
    found, device = outputs_of(workload, device=done.q.device), done.q.device.index
    tensors = tensors_of({**given, **found})
    launch(kernel_of(workload, device), problem_of(workload), tensors, device)
    return tuple(found.values())
