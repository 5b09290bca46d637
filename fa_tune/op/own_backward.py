"""Gradients by the kernels of the operation `backward`, where there are any for a problem."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fa_tune.build.native.call import problem_of, tensors_of
from fa_tune.build.native.core import CoreKernel
from fa_tune.core.errors import InvalidConfig, NoUsableVariant
from fa_tune.core.hooks import hook_of
from fa_tune.core.tensors import is_expanded, score_tensors
from fa_tune.core.workload import BACKWARD, Workload
from fa_tune.op.backward import Three
from fa_tune.op.operands import Done, Lengths, with_whole_rows
from fa_tune.op.python_op import asked_workload, launch
from fa_tune.op.refusals import Asked, Refusals, why_not_ours
from fa_tune.op.traits import Traits

# A kernel for a workload on a device; `repeatable`: one that gives the same bits always.
Kernels = Callable[[Workload, int, bool], CoreKernel]
# Blocks of 128 keys, of all heads of K and V: with fewer torch's passes are faster, or nobody has
# measured (benchmarks/backward_few_tiles_h200.txt).  Above d_head 128 no clusters divide a block,
# so that most multiprocessors have none (benchmarks/backward_h200.md, "In a training step").
FEWEST_TILES, FEWEST_WIDE_TILES, TILE_KEYS = 8, 64, 128
WIDEST_CLUSTERED = 128  # d_head
_own_bwd = torch.ops.fa_tune.own_bwd.default
_packed_own_bwd = torch.ops.fa_tune.packed_own_bwd.default


class OwnBackward:
    """Those passes that there are kernels for: by the operator in C++ if it is there, else, and
    where torch asks for the same bits always, by `kernels`."""

    def __init__(self, kernels: Kernels, *, native: bool) -> None:
        self._kernels = kernels
        self._native = native
        self._refusals = Refusals()

    def gradients(self, done: Done, traits: Traits, lengths: Lengths | None = None) -> Three | None:
        """dQ, dK and dV, contiguous, of a packed batch with `lengths`; None where torch's passes
        serve: of small problems, of tensors or traits that no kernel takes, and in a graph's
        capture of what was not run before."""
        q, k, v = done.q, done.k, done.v
        hook = traits.score_hook
        if why_not_ours(q, k, traits.scale):
            return None
        if hook is not None and not hook_of(hook).has_derivative:
            return None
        batch = k.shape[0] if lengths is None else 1
        tiles = batch * k.shape[-2] * -(-k.shape[-3] // TILE_KEYS)
        d_head, d_head_v = q.shape[-1], v.shape[-1]
        fewest = FEWEST_TILES if d_head <= WIDEST_CLUSTERED else FEWEST_WIDE_TILES
        if traits.masks_only and tiles < fewest:
            return None
        if not _are_served(torch.cuda.get_device_capability(q.device), d_head, d_head_v):
            return None
        repeatable = torch.are_deterministic_algorithms_enabled()
        made, _ = self._refusals.attempt(
            lambda: (
                _by_native(done, traits, lengths)
                if self._native and not repeatable and hook is None
                else self._by_python(done, traits, lengths, repeatable)
            ),
            Asked(q, k, v, traits, lse=True, of="dense" if lengths is None else "packed"),
            reasons=(NoUsableVariant, InvalidConfig),
        )
        return made  # type: ignore[no-any-return]

    def _by_python(
        self, done: Done, traits: Traits, lengths: Lengths | None, repeatable: bool
    ) -> Three:
        grad_out, out = (t.contiguous() if is_expanded(t) else t for t in (done.grad_out, done.out))
        five = (grad_out, done.q, done.k, done.v, out)
        do, q, k, v, o = (with_whole_rows(t) for t in five)
        # Rows of no sequence are zeros.
        room = torch.empty_like if lengths is None else torch.zeros_like
        dq, dk, dv = (room(t, memory_format=torch.contiguous_format) for t in (q, k, v))
        d_lse = done.grad_lse
        workload = asked_workload(*(q, k, v, lengths, traits), op=BACKWARD, lse=d_lse is not None)
        device = q.device.index
        given = {"q": q, "k": k, "v": v, "o": o, "do": do, "dq": dq, "dk": dk, "dv": dv}
        given |= {"lse": done.lse.contiguous()}
        if lengths is not None:
            given = {name: tensor[None] for name, tensor in given.items()}
            given |= {"cu_seqlens_q": lengths.cum_q, "cu_seqlens_kv": lengths.cum_kv}
        # Kept until the launch: they may be copies.
        _, slopes = score_tensors(workload, q.device, None, traits.alibi_slopes)
        more = {"dlse": None if d_lse is None else d_lse.contiguous(), "alibi_slopes": slopes}
        given |= {name: tensor for name, tensor in more.items() if tensor is not None}
        tensors = tensors_of(given)
        kernel = self._kernels(workload, device, repeatable)
        launch(kernel, problem_of(workload), tensors, device)
        return dq, dk, dv


def _are_served(capability: tuple[int, int], d_head: int, d_head_v: int) -> bool:
    """Whether kernels were measured to be faster there than torch's passes
    (benchmarks/head_dims_h200.txt)."""
    alike = d_head == d_head_v and d_head in range(32, 257, 8)
    return capability == (9, 0) and (alike or (d_head, d_head_v) == (192, 128))


def _by_native(done: Done, traits: Traits, lengths: Lengths | None) -> Three:
    grad_lse = None if done.grad_lse is None else done.grad_lse.float().contiguous()
    given = (*done[:5], done.lse.contiguous(), grad_lse)
    if lengths is None:
        return _own_bwd(*given, *traits.scored)  # type: ignore[no-any-return]
    return _packed_own_bwd(*given, *lengths, *traits.scored)  # type: ignore[no-any-return]
