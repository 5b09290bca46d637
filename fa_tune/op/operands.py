"""What forward and backward passes are given."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.tensors import is_expanded
from fa_tune.core.workload import PAGE_KEYS
from fa_tune.op.fallback_warning import tell_of_copies

E4M3 = torch.float8_e4m3fn
HALF = (torch.float16, torch.bfloat16)
WHOLE_D_HEAD = 32  # of which head dimensions are multiples that every GPU has kernels for
_ROW_BYTES = 16
# Of q, k, v and the slopes.
Gradients = tuple[Tensor, Tensor, Tensor, Tensor]


class Done(NamedTuple):
    """A forward pass that is done, and the gradients of its result and, if it has one, of its
    log-sum-exp."""

    grad_out: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor
    grad_lse: Tensor | None = None


class Lengths(NamedTuple):
    """Sequence i of a packed batch is rows cum_q[i] to cum_q[i + 1] of Q and cum_kv[i] to
    cum_kv[i + 1] of K, int32 [batch + 1] on the device; none is longer than `longest_q` and
    `longest_kv`."""

    cum_q: Tensor
    cum_kv: Tensor
    longest_q: int
    longest_kv: int


CACHE_ROLES = ("k", "v", "new_k", "new_v", "cache_seqlens", "page_table", "k_scale", "v_scale")


class Cache(NamedTuple):
    """Keys and values whose lengths and places the GPU alone knows.

    `k` and `v` are [batch, capacity, kv_heads, d_head] or, with `block_table` [batch, pages of a
    sequence], [pages, page_size, kv_heads, d_head]; that of V may have another last dimension.
    Sequence b has lengths[b] keys.  `new` keys and values, [batch, some, kv_heads, d_head], come
    behind them.  `scales` are what K and V of torch.float8_e4m3fn are multiplied with, fp32 that
    expand to [batch, kv_heads].
    """

    k: Tensor
    v: Tensor
    lengths: Any
    new: tuple[Tensor, Tensor] | None = None
    block_table: Tensor | None = None
    scales: tuple[Tensor, Tensor] | None = None

    @property
    def parts(self) -> tuple[Tensor | None, ...]:
        """Its tensors in the order of their roles."""
        new, scales = self.new or (None, None), self.scales or (None, None)
        return (self.k, self.v, *new, self.lengths, self.block_table, *scales)

    @property
    def capacity(self) -> int:
        """How many keys of a sequence there is room for."""
        pages = 1 if self.block_table is None else self.block_table.shape[1]
        return int(min(self.k.shape[1], self.v.shape[1]) * pages)

    @property
    def added(self) -> int:
        """How many keys of each sequence are new."""
        return 0 if self.new is None else int(self.new[0].shape[1])

    def check_places(self, q: Tensor) -> None:
        """Raise InvalidConfig for lengths, caches and pages that are not those of the queries."""
        batch, table = q.shape[0], self.block_table
        if tuple(self.lengths.shape) != (batch,):
            raise InvalidConfig(
                f"lengths must be [{batch}], one a sequence, not {[*self.lengths.shape]}"
            )
        if self.k.shape[:3] != self.v.shape[:3] or self.k.shape[3] != q.shape[3]:
            raise InvalidConfig(
                f"the caches must be alike, that of K with d_head {q.shape[3]}; they are "
                f"{[*self.k.shape]} and {[*self.v.shape]}"
            )
        if table is None:
            if self.k.shape[0] != batch:
                raise InvalidConfig(f"the caches have {self.k.shape[0]} sequences, Q has {batch}")
        elif table.ndim != 2 or table.shape[0] != batch:
            raise InvalidConfig(f"a block table must be [{batch}, pages], not {[*table.shape]}")
        others = (self.k, self.v, self.lengths, *(() if table is None else (table,)))
        if any(t.device != q.device for t in others):
            raise InvalidConfig(f"caches, lengths and block table must be on {q.device}, as Q")
        if self.new is not None:
            check_new_places(self.new, q, (self.k, self.v))

    def check_types(self, q: Tensor) -> None:
        """Raise InvalidConfig for caches and new keys of types that no kernel takes beside Q's."""
        kind = self.k.dtype
        if kind != self.v.dtype or kind not in (q.dtype, E4M3):
            raise InvalidConfig(
                f"the caches must both be {q.dtype} as Q, or {E4M3}; they are {kind} and "
                f"{self.v.dtype}"
            )
        if self.new is not None and any(t.dtype != kind for t in self.new):
            raise InvalidConfig(
                f"k and v must be {kind}, as their caches; they are {self.new[0].dtype} and "
                f"{self.new[1].dtype}"
            )

    def as_read(self, q: Tensor) -> Cache:
        """The same as kernels read it: lengths and pages int32 and contiguous, scales fp32 with
        equal strides.  Raises InvalidConfig for scales that do not expand, or elsewhere."""
        table, scales = self.block_table, self.scales
        return self._replace(
            lengths=self.lengths.to(torch.int32).contiguous(),
            block_table=None if table is None else table.to(torch.int32).contiguous(),
            scales=scales and _expanded(scales, (q.shape[0], self.k.shape[2]), q.device),
        )

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors of a launch, by their roles, of a cache `as_read`."""
        named = zip(CACHE_ROLES, self.parts, strict=True)
        return {role: tensor for role, tensor in named if tensor is not None}


def check_new_places(new: tuple[Tensor, Tensor], q: Tensor, caches: tuple[Tensor, Tensor]) -> None:
    """Raise InvalidConfig for new keys and values that have no place in the caches."""
    for tensor, cache, name in zip(new, caches, "kv", strict=True):
        shape = (q.shape[0], *new[0].shape[1:2], *cache.shape[2:])
        if tuple(tensor.shape) != shape or tensor.device != q.device:
            raise InvalidConfig(
                f"{name} must be {[*shape]} on {q.device}, as its cache; it is "
                f"{[*tensor.shape]} on {tensor.device}"
            )
        if is_expanded(cache):
            raise InvalidConfig(
                f"{name} has no place of its own in an expanded cache: clone the cache"
            )


def _expanded(
    scales: tuple[Tensor, Tensor], shape: tuple[int, int], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Both with the same strides."""
    if any(s.device != device for s in scales):
        raise InvalidConfig(f"scales must be on {device}, as Q")
    try:
        both = [s.to(torch.float32).expand(shape) for s in scales]
    except RuntimeError:
        text = " and ".join(str([*s.shape]) for s in scales)
        raise InvalidConfig(f"scales must expand to {[*shape]}; they are {text}") from None
    if both[0].stride() != both[1].stride():
        both = [s.contiguous() for s in both]
    return both[0], both[1]


def pages_suit(k_cache: Tensor) -> bool:
    """Whether kernels take the second dimension of the caches as a page."""
    return bool(k_cache.shape[1] % PAGE_KEYS == 0)


def has_whole_rows(tensor: Tensor) -> bool:
    """Whether each row is in one piece and begins at a multiple of 16 bytes, as kernels read it."""
    *outer, last = tensor.stride()
    size, addresses = tensor.element_size(), [tensor.data_ptr()]
    addresses += (s * size for s, n in zip(outer, tensor.shape, strict=False) if n > 1)
    return last == 1 and not any(address % _ROW_BYTES for address in addresses)


def with_whole_rows(tensor: Tensor) -> Tensor:
    """The same, or a copy that has whole rows, with a warning."""
    if has_whole_rows(tensor):
        return tensor
    tell_of_copies()
    return tensor.clone(memory_format=torch.contiguous_format)


def note_written(*tensors: Tensor | None) -> None:
    """Tell autograd that a kernel has written to tensors, as torch's own operators do: a backward
    pass that needs what was there raises RuntimeError.  A compiled graph does so itself."""
    if torch.compiler.is_compiling():
        return
    for tensor in tensors:
        if tensor is not None and not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)
