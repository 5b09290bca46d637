"""Launches with a cache, prepared once for tensors of the same form: a program that decodes makes
the same call again and again, with other addresses."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from fa_tune.build.native import abi
from fa_tune.build.native.call import CHUNK_BYTES
from fa_tune.build.native.core import CoreKernel
from fa_tune.families.plan import TensorRole
from fa_tune.op.library import room_for_lse, room_for_out
from fa_tune.op.operands import CACHE_ROLES, Cache, note_written

MOST_KNOWN = 4096
_READ = tuple(TensorRole[name.upper()] for name in ("q", *CACHE_ROLES))
_N_IN_ROWS = 5  # of these, the first


def form_of(q: Tensor, cache: Cache, options: Sequence[Hashable]) -> Hashable | None:
    """All of a call but addresses; None where calls are not remembered: anything but plain tensors,
    on a GPU, with lengths in one of them, and options that can change in their place."""
    if not (isinstance(q, Tensor) and isinstance(cache.lengths, Tensor)):
        return None
    if any(isinstance(option, Tensor) for option in options):
        return None
    form: list[Hashable] = [*options]
    for tensor in (q, *cache.parts):
        if tensor is None:
            form.append(None)
        elif type(tensor) is Tensor:
            form.append((tensor.shape, tensor.stride(), tensor.dtype, tensor.device))
        else:
            return None
    return tuple(form) if is_on_gpu(q) else None


def is_on_gpu(tensor: Tensor) -> bool:
    """Whether our kernels may run."""
    return bool(tensor.is_cuda)


@dataclass(frozen=True)
class Prepared:
    """A launch that was checked: `tensors` as it was made the first time."""

    kernel: CoreKernel
    problem: abi.Problem
    tensors: abi.Tensors
    workspace_bytes: int
    device: int

    def launch(self, q: Tensor, cache: Cache) -> tuple[Tensor, Tensor | None] | None:
        """out and the log-sum-exp if it is wanted, on the current stream; None for addresses that
        rows of 16 bytes do not begin at."""
        addresses = [0 if t is None else t.data_ptr() for t in (q, *cache.parts)]
        if any(address % CHUNK_BYTES for address in addresses[:_N_IN_ROWS]):
            return None
        out = room_for_out(q, cache.v)
        # A copy, since other threads may launch the same.
        tensors = abi.Tensors.from_buffer_copy(self.tensors)
        of = tensors.of
        for role, address in zip(_READ, addresses, strict=True):
            of[role].address = address
        of[TensorRole.O].address = out.data_ptr()
        lse = None
        if self.problem.lse:
            lse = room_for_lse(q)
            of[TensorRole.LSE].address = lse.data_ptr()
        if self.workspace_bytes:
            # torch gives its memory to later work of this stream alone.
            room = q.new_empty(self.workspace_bytes, dtype=torch.uint8)
            tensors.workspace = room.data_ptr()
        stream = torch.cuda.current_stream(self.device).cuda_stream
        self.kernel.launch(self.problem, tensors, stream, self.device)
        if cache.new is not None:
            note_written(cache.k, cache.v)
        return out, lse


class CacheLaunches:
    """The prepared launches of a process, by the form of the call."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Prepared] = {}

    def launch(
        self, form: Hashable, q: Tensor, cache: Cache
    ) -> tuple[Tensor, Tensor | None] | None:
        """What a call of this form gives; None if none is known, or if it has to be checked."""
        try:
            known = self._known.get(form)
        except TypeError:  # options that cannot be hashed
            return None
        return None if known is None else known.launch(q, cache)

    def remember(self, form: Hashable, prepared: Prepared) -> None:
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        with suppress(TypeError):
            self._known[form] = prepared
