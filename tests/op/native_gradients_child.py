"""All checks of the operators in C++, those of backward passes among them: run by test_native.

Arguments: the stub's folder, one for compiled libraries.
"""

from __future__ import annotations

import os
import random
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fa_tune.build.native.call import problem_of, tensors_of
from fa_tune.core.workload import DType, Workload
from fa_tune.op.state import Operators
from fa_tune.op.traits import Traits
from tests.csrc.stub import Stub
from tests.op import native_child
from tests.op.native_child import ROOM, draw, given_ones

Check = Callable[[Operators], None]

# Bytes of parameters that may differ: addresses in the workspace, strides of single rows and heads.
FREE = 3 * 8 + 10 * 2


def own_gradients(operators: Operators) -> None:
    """All launches of a backward pass are those of the core with the same tensors; what shares a
    place is copied, and another head dimension is refused."""
    stub, dice, own_bwd = Stub(), random.Random(2), torch.ops.fa_tune.own_bwd
    for number in range(40):
        kv_heads, n_q, n_kv = dice.choice((1, 3)), dice.choice((1, 700)), dice.choice((128, 1031))
        q, grad_out, out = (draw(2, n_q, 3).transpose(1, 2) for _ in range(3))
        q = q.contiguous().transpose(1, 2)
        if number % 4:
            grad_out = grad_out.transpose(1, 2)
        else:
            grad_out = grad_out.transpose(1, 2)[:, :, :1].expand(-1, -1, 3, -1)
        k, v = draw(2, n_kv, 2 * kv_heads).chunk(2, 2)
        lse, sink = torch.zeros(2, 3, n_q), dice.choice((None, torch.zeros(3)))
        side, cap, d_lse = (dice.choice((None, one)) for one in (100, 20.0, torch.zeros(2, 3, n_q)))
        slopes = dice.choice((None, torch.zeros(3), torch.zeros(2, 3)))
        traits = Traits(bool(number % 2), False, 0.5, side, None, sink, cap, slopes)
        stub.launched()
        given = (grad_out, q, k, v, out.transpose(1, 2), lse)
        made = dict(zip(("dq", "dk", "dv"), own_bwd(*given, d_lse, *traits.scored), strict=True))
        found = stub.launched()
        workload = Workload(
            *(2, 3, kv_heads, n_q, n_kv, 128, DType.FP16),
            op="backward",
            lse=d_lse is not None,
            **traits.of_workload,
        )
        named = dict(zip(("do", "q", "k", "v", "o", "lse"), given, strict=True))
        named["do"] = grad_out if number % 4 else grad_out.contiguous()
        args = tensors_of(named | made | given_ones(sink=sink, alibi_slopes=slopes, dlse=d_lse))
        args.workspace = ROOM
        kernel = operators.plans.kernel(workload, -1)
        kernel.launch(problem_of(workload), args, 0, -1)
        expected = stub.launched()
        assert len(found) == len(expected) >= 2
        for one, other in zip(found, expected, strict=True):
            assert replace(one, params=b"") == replace(other, params=b"")
            same = sum(a == b for a, b in zip(one.params, other.params, strict=True))
            assert number % 4 == 0 or len(one.params) - same <= FREE
        assert all(t.is_contiguous() for t in made.values())
    five, rows = [draw(1, 128, 1, 24) for _ in range(5)], torch.zeros(1, 1, 128)
    with pytest.raises(RuntimeError, match=r"^NoUsableVariant: .*backward"):
        own_bwd(*five, rows, None, *Traits().scored)
    with pytest.raises(RuntimeError, match=r"^InvalidConfig: grad_out must be like q"):
        own_bwd(draw(1, 64, 1), *(draw(1, 128, 1) for _ in range(4)), rows, None)
    with pytest.raises(RuntimeError, match=r"^InvalidConfig: grad_lse must be"):
        own_bwd(*(draw(1, 128, 1) for _ in range(5)), rows, rows.half())


def own_packed_gradients(operators: Operators) -> None:
    """The same of packed batches; what no kernel writes is 0."""
    stub, dice, own_bwd = Stub(), random.Random(4), torch.ops.fa_tune.packed_own_bwd
    for number in range(20):
        batch, kv_heads = dice.choice((1, 3)), dice.choice((1, 3))
        q, out = (draw(1, 300 * batch, 3)[0] for _ in range(2))
        k, v = draw(1, 500 * batch, 2 * kv_heads)[0].chunk(2, 1)
        grad_out = out if number % 4 else out[:, :1].expand(-1, 3, -1)
        starts = {f"cu_seqlens_{n}": torch.zeros(batch + 1, dtype=torch.int32) for n in ("q", "kv")}
        lse, traits = torch.zeros(3, len(q)), Traits(bool(number % 2), scale=0.5)
        given = (grad_out, q, k, v, out, lse)
        for tensor in (q, k, v):
            torch.empty_like(tensor).fill_(torch.nan)  # whose memory may come next
        stub.launched()
        made = dict(
            zip(
                *(
                    ("dq", "dk", "dv"),
                    own_bwd(*given, None, *starts.values(), 300, 500, *traits.scored),
                ),
                strict=True,
            )
        )
        found = stub.launched()
        assert not any(t.any() for t in made.values())
        workload = Workload(
            *(batch, 3, kv_heads, 300, 500, 128, DType.FP16),
            op="backward",
            packed=True,
            total_q=len(q),
            total_kv=len(k),
            **traits.of_workload,
        )
        named = dict(zip(("do", "q", "k", "v", "o", "lse"), given, strict=True)) | made
        named["do"] = grad_out.contiguous()
        args = tensors_of({name: t[None] for name, t in named.items()} | starts)
        args.workspace = ROOM
        operators.plans.kernel(workload, -1).launch(problem_of(workload), args, 0, -1)
        for one, other in zip(found, stub.launched(), strict=True):
            assert replace(one, params=b"") == replace(other, params=b"")
            same = sum(a == b for a, b in zip(one.params, other.params, strict=True))
            assert number % 4 == 0 or len(one.params) - same <= FREE


# Each in a process of its own: some count choices.
APART: dict[str, tuple[tuple[Check, ...], ...]] = {
    "fast": (
        (native_child.views, native_child.packed, native_child.results, native_child.refused),
        (native_child.buckets,),
        (native_child.partition,),
        (native_child.threads,),
        (native_child.fork,),
        (own_gradients, own_packed_gradients),
    ),
    "exact": ((native_child.accuracies,),),
}


def passes(checks: tuple[Check, ...], folder: str) -> bool:
    child = os.fork()
    if child == 0:
        try:
            operators = native_child.started(folder)
            for check in checks:
                check(operators)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    apart = APART[os.environ["FA_TUNE_ACCURACY"]]
    sys.exit(not all(passes(checks, sys.argv[2]) for checks in apart))
