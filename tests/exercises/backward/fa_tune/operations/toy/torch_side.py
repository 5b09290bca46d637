"""dQ, dK and dV by torch's autograd."""

import dataclasses

import torch

from fa_tune.operations.base import NORMAL
from fa_tune.operations.forward import torch_side as forward
from fa_tune.operations.torch_side import Judged


def inputs(workload, text=NORMAL, *, seed, **how):
    found = dict(forward.inputs(workload, text, seed=seed, **how))
    generator = torch.Generator().manual_seed(seed)
    shape = (*found["q"].shape[:3], workload.d_v)
    found["do"] = torch.randn(shape, generator=generator).to(found["q"])
    return found


def gradients(scale, inputs, dtype):
    leaves = [inputs[name].detach().to(dtype).requires_grad_() for name in "qkv"]
    q, k, v = (leaf.transpose(1, 2) for leaf in leaves)
    out = ((q @ k.transpose(-1, -2)) * scale).softmax(-1) @ v
    grads = torch.autograd.grad(out.transpose(1, 2), leaves, inputs["do"].to(dtype))
    return dict(zip(("dq", "dk", "dv"), grads, strict=True))


def expected(workload, inputs, *, precise=None):
    exact = gradients(workload.scale, inputs, precise or torch.float64)
    reference = gradients(workload.scale, inputs, inputs["q"].dtype)
    found = {}
    for name, grad in exact.items():
        judged = Judged(grad.double(), torch.zeros((), dtype=torch.float64))
        found[name] = dataclasses.replace(judged, reference=judged.errors(reference[name]))
    return found
