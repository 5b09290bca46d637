"""Attention to a cache of keys and values whose lengths and places the GPU alone knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fa_tune.build.native.call import problem_of, tensors_of
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.tensors import check_columns, dtype_of, is_expanded, score_tensors
from fa_tune.core.workload import PAGE_KEYS, Workload
from fa_tune.op import python_op, state
from fa_tune.op.cache_launches import Prepared
from fa_tune.op.operands import note_written
from fa_tune.op.traits import Traits

E4M3 = torch.float8_e4m3fn
PLAIN = Traits()


@dataclass(frozen=True)
class Cache:
    """Keys and values whose lengths and places the GPU alone knows.

    `k` and `v` are [batch, capacity, kv_heads, d_head] or, with `block_table` [batch, pages of a
    sequence], [pages, page_size, kv_heads, d_head]; that of V may have another last dimension.
    Sequence b has lengths[b] keys.  `new` keys and values, [batch, some, kv_heads, d_head], come
    behind them.  `scales` are what K and V of torch.float8_e4m3fn are multiplied with, fp32 that
    expand to [batch, kv_heads].
    """

    k: Tensor
    v: Tensor
    lengths: Tensor
    new: tuple[Tensor, Tensor] | None = None
    block_table: Tensor | None = None
    scales: tuple[Tensor, Tensor] | None = None

    @property
    def capacity(self) -> int:
        """How many keys of a sequence there is room for."""
        pages = 1 if self.block_table is None else self.block_table.shape[1]
        return int(self.k.shape[1] * pages)

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
        return replace(
            self,
            lengths=self.lengths.to(torch.int32).contiguous(),
            block_table=None if table is None else table.to(torch.int32).contiguous(),
            scales=scales and _expanded(scales, (q.shape[0], self.k.shape[2]), q.device),
        )

    def has_places_of(self, other: Cache) -> bool:
        """Whether no tensor of what the GPU alone knows is a copy of the other's."""

        def places(cache: Cache) -> list[int | None]:
            read = (cache.lengths, cache.block_table, *(cache.scales or ()))
            return [None if t is None else t.data_ptr() for t in read]

        return places(self) == places(other)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors of a launch, by their roles, of a cache `as_read`."""
        found = {"k": self.k, "v": self.v, "cache_seqlens": self.lengths}
        if self.block_table is not None:
            found["page_table"] = self.block_table
        if self.new is not None:
            found["new_k"], found["new_v"] = self.new
        if self.scales is not None:
            found["k_scale"], found["v_scale"] = self.scales
        return found


def attend(
    q: Tensor,
    cache: Cache,
    traits: Traits = PLAIN,
    *,
    return_lse: bool = False,
    remember: Callable[[Prepared], None] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """softmax(scale · Q Kᵀ) V of q [batch, seq_len_q, heads, d_head], on the current stream, like q
    but for V's last dimension; with `return_lse` fp32 [batch, heads, seq_len_q] beside it.

    Masks and windows are aligned bottom-right.  The launch writes new keys and values to their
    places in the cache.  Nothing waits for the GPU, and what is captured in a graph reads lengths
    and table anew in every replay.  `remember` is given the launch if the next one differs in
    nothing but addresses: where all was read as it was given.

    Raises InvalidConfig for tensors that make no such problem, NoUsableVariant where nothing runs
    it.
    """
    cache.check_places(q)
    cache.check_types(q)
    workload = _workload(q, cache, traits, return_lse)
    out = q.new_empty((*q.shape[:3], cache.v.shape[3]))
    rows = (workload.batch, workload.heads, workload.seq_len_q)
    lse = q.new_empty(rows, dtype=torch.float32) if return_lse else None
    given, cache = cache, cache.as_read(q)  # kept until the launch: it may have copies
    sink, _ = score_tensors(workload, q.device, traits.sink, None)
    more = {"lse": lse, "sink": sink}
    named = {"q": q, "o": out, **cache.tensors}
    named |= {name: tensor for name, tensor in more.items() if tensor is not None}
    problem, tensors = problem_of(workload), tensors_of(named, added=cache.added)
    device = q.device.index
    kernel = state.operators().kernel_with_cache(workload, device)
    python_op.launch(kernel, problem, tensors, device)
    if cache.new is not None:
        note_written(cache.k, cache.v)
    if remember is not None and cache.has_places_of(given):
        remember(Prepared.of(kernel, problem, tensors, device))
    return out, lse


def _workload(q: Tensor, cache: Cache, traits: Traits, lse: bool) -> Workload:
    check_columns(cache.v)
    batch, n_q, heads, d_head = q.shape
    windowed = (traits.window_left, traits.window_right) != (None, None)
    return Workload(
        *(batch, heads, cache.k.shape[2], n_q, cache.capacity, d_head, dtype_of(q)),
        d_head_v=cache.v.shape[3],
        lse=lse,
        kv_e4m3=cache.k.dtype == E4M3,
        **traits.of_workload | {"bottom_right": traits.causal or windowed},
    )


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
