"""Results of an exported example beside those of `fa_tune.op`: a program of its own.

FA_TUNE_REGISTRY names the registry.  Arguments: for each problem its key and the file
that the example wrote.  Prints `right`.
"""

import sys
from math import prod
from pathlib import Path

import numpy as np
import torch

from fa_tune.core.workload import BACKWARD, Workload
from fa_tune.op import attention


def tensors(workload: Workload, path: Path) -> list[torch.Tensor]:
    """Q, K, V and O; of a backward pass Q, K, V, dO, dQ, dK and dV."""
    w = workload
    of_queries = (w.batch, w.seq_len_q, w.heads, w.d_head)
    of_keys = (w.batch, w.seq_len_kv, w.kv_heads, w.d_head)
    shapes = [of_queries, of_keys, of_keys, of_queries]
    if w.op == BACKWARD:
        shapes += shapes[:3]
    left, found = np.fromfile(path, dtype=np.int16), []
    for shape in shapes:
        one, left = left[: prod(shape)], left[prod(shape) :]
        dtype = w.dtype.to_torch_dtype()
        found.append(torch.from_numpy(one.copy()).view(dtype).reshape(shape).cuda())
    assert not len(left)
    return found


def expected(workload: Workload, given: list[torch.Tensor]) -> list[torch.Tensor]:
    """O, or dQ, dK and dV."""
    w, qkv = workload, [tensor.requires_grad_(workload.op == BACKWARD) for tensor in given[:3]]
    o = attention(*qkv, causal=w.causal, bottom_right=w.bottom_right)
    return [o] if w.op != BACKWARD else [*torch.autograd.grad(o, qkv, given[3])]


def main(*problems: str) -> None:
    for key, path in zip(problems[::2], problems[1::2], strict=True):
        w = Workload.from_key(key)
        given = tensors(w, Path(path))
        results = expected(w, given)
        for found, wanted in zip(given[-len(results) :], results, strict=True):
            assert torch.equal(found.view(torch.int16), wanted.view(torch.int16)), key
            assert found.float().abs().max() > 0.01, key
    print("right")


if __name__ == "__main__":
    main(*sys.argv[1:])
