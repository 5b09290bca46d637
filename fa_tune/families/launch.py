"""What a launch is given, and what it consists of: tensors, scalars, geometry, parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fa_tune import operations
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import PAGE_KEYS, Workload

if TYPE_CHECKING:
    import numpy as np
    import torch

CHUNK_BYTES = 16  # the unit of every copy between global and shared memory
ELEMENT_BYTES = 2
MANY_PAGES = 2  # as many as make a stride matter: a launch is not told how many a cache has


@dataclass(frozen=True)
class TensorArg:
    """A device tensor as a launch sees it: address and element strides.

    Q, K, V, O: strides of (batch, seq, head), d_head contiguous.  Address 0 = not given.
    """

    address: int
    strides: tuple[int, int, int] = (0, 0, 0)

    @classmethod
    def of(cls, tensor: torch.Tensor, name: str = "a tensor") -> TensorArg:
        """A [batch, seq, heads, d_head] tensor on the device, a view with any strides.

        Rows are copied in chunks of 16 bytes: raises InvalidConfig, naming `name`, if d_head
        is not contiguous or if a row does not start at a multiple of 16 bytes.
        """
        *outer, last = tensor.stride()
        if tensor.ndim != 4 or (last != 1 and tensor.shape[-1] > 1):
            raise InvalidConfig(
                f"{name} must be [batch, seq, heads, d_head] with d_head contiguous; it has "
                f"shape {tuple(tensor.shape)} and strides {tuple(tensor.stride())}"
            )
        # The stride of an extent of 1 is never used, and torch lets it be anything.
        used = [s if n > 1 else 0 for s, n in zip(outer, tensor.shape, strict=False)]
        strides = (used[0], used[1], used[2])
        if any(v % CHUNK_BYTES for v in (tensor.data_ptr(), *(s * ELEMENT_BYTES for s in used))):
            raise InvalidConfig(
                f"{name} must have every row at a multiple of {CHUNK_BYTES} bytes; it starts at "
                f"address {tensor.data_ptr():#x} and has strides {strides} of 2-byte elements"
            )
        return cls(tensor.data_ptr(), strides)


NOT_GIVEN = TensorArg(0)


@dataclass(frozen=True)
class CacheArgs:
    """What is known of K and V on the device alone, all of it int32 there.

    `lengths`, the address of [batch]: sequence b has lengths[b] + `added` keys, and seq_len_kv of
    the workload at most, or none if the sum is negative or beyond 32 bits; its causal mask is
    aligned bottom-right.  0: all have seq_len_kv.
    `pages`, the address of [batch, page_stride]: the page of each `page_size` keys of a sequence,
    where K and V are [pages, page_size, kv_heads, d_head].  0: a sequence lies in one piece.
    `new_k` and `new_v` [batch, added, kv_heads, d_head], with `lengths` only: the last keys and
    values of every sequence, which the launch writes to their places in K and V.
    """

    lengths: int = 0
    added: int = 0
    pages: int = 0
    page_size: int = 0
    page_stride: int = 0
    new_k: TensorArg = NOT_GIVEN
    new_v: TensorArg = NOT_GIVEN


@dataclass(frozen=True)
class LaunchArgs:
    """The tensors and scalars of one call.

    `tensors` are by the names that the operation gives them; what its kernels do not need may be
    absent.  `lse` is fp32 [batch, heads, seq_len_q], contiguous; it is written where the kernel
    was compiled with that trait.  `sink` is fp32 [heads], `alibi_slopes` fp32 [batch, heads] with
    contiguous heads, whose batch stride may be 0.  `softmax_scale` and `diagonal` (the place of
    query i among the keys is i + diagonal) replace the workload's own.  `scratch` and `workspace`
    are the addresses of the family's `scratch_bytes` and `workspace_bytes`, 0 without any.  Only
    families that say so take a `cache`.

    A packed batch has `cu_seqlens_q` and `cu_seqlens_kv`, int32 [batch + 1] on the device:
    sequence i is rows cu_seqlens[i] to cu_seqlens[i + 1], of which `used_q` and `used_kv`, int32
    [batch], may say how many count.  Q, K, V and O are [1, rows of all sequences, heads, d_head],
    `lse` is [heads, rows of all sequences].

    Strides of K and V in e4m3 are in units of two bytes, as if pairs of them were elements.
    `k_scale` and `v_scale`, fp32 [batch, kv_heads] with the same two strides, are what they are
    multiplied with; not given: 1.
    """

    tensors: Mapping[str, TensorArg]
    softmax_scale: float | None = None
    diagonal: int | None = None
    scratch: int = 0
    workspace: int = 0
    cache: CacheArgs | None = None

    @classmethod
    def forward(
        cls,
        q: TensorArg,
        k: TensorArg,
        v: TensorArg,
        o: TensorArg,
        lse: TensorArg = NOT_GIVEN,
        *,
        sink: TensorArg = NOT_GIVEN,
        alibi_slopes: TensorArg = NOT_GIVEN,
        **scalars: Any,
    ) -> LaunchArgs:
        """Those of a forward pass."""
        tensors = {"q": q, "k": k, "v": v, "o": o, "lse": lse}
        return cls(tensors | {"sink": sink, "alibi_slopes": alibi_slopes}, **scalars)

    def __getitem__(self, name: str) -> TensorArg:
        """A tensor by its name; one that was not given has address 0."""
        return self.tensors.get(name, NOT_GIVEN)

    @property
    def q(self) -> TensorArg:
        """Queries."""
        return self["q"]

    @property
    def k(self) -> TensorArg:
        """Keys."""
        return self["k"]

    @property
    def v(self) -> TensorArg:
        """Values."""
        return self["v"]

    @property
    def o(self) -> TensorArg:
        """The result."""
        return self["o"]

    @property
    def lse(self) -> TensorArg:
        """The log-sum-exp of each row."""
        return self["lse"]

    @property
    def scale_strides(self) -> tuple[int, int]:
        """The strides, of batch and head, that the scales of K and V share.  Raises InvalidConfig
        where they differ."""
        given = [t for name in ("k_scale", "v_scale") if (t := self[name]).address]
        strides = {t.strides[:2] for t in given} or {(0, 0)}
        if len(strides) > 1:
            raise InvalidConfig(
                f"k_scale and v_scale must have the same strides, not {given[0].strides[:2]} and "
                f"{given[1].strides[:2]}"
            )
        return strides.pop()

    def checked(self, workload: Workload, *, takes_cache: bool = False) -> tuple[int, float]:
        """The diagonal and the softmax scale of a launch on a workload.

        Raises InvalidConfig for a scale that no workload may have (the kernels take maxima before
        they scale, so it must be positive), where a tensor that the workload asks for is not
        given, for a tensor with a row that does not start at a multiple of 16 bytes, and for a
        cache that the family does not take.
        """
        if self.cache is not None:
            if not takes_cache:
                raise InvalidConfig("this kernel takes no lengths or pages that only a GPU knows")
            if self.cache.pages and (self.cache.page_size < 1 or self.cache.page_size % PAGE_KEYS):
                raise InvalidConfig(
                    f"page_size must be a multiple of {PAGE_KEYS}, not {self.cache.page_size}"
                )
            if self.cache.lengths and self.cache.added < 0:
                raise InvalidConfig(f"added must be at least 0, not {self.cache.added}")
            self._check_new(workload, self.cache)
        elif workload.cached:
            raise InvalidConfig(
                f"{workload.key} has lengths or pages on the device, which the launch does not give"
            )
        self._check_rows(workload)
        if workload.lse and not self.lse.address:
            raise InvalidConfig(f"{workload.key} has the log-sum-exp: the launch must give lse")
        for name, wanted in (("sink", workload.sink), ("alibi_slopes", workload.alibi)):
            if wanted and not self[name].address:
                raise InvalidConfig(f"{workload.key} needs {name}, which the launch does not give")
        if workload.packed:
            self._check_packed(workload)
        diagonal = workload.diagonal if self.diagonal is None else self.diagonal
        if self.softmax_scale is not None:
            workload = replace(workload, softmax_scale=self.softmax_scale)
        return diagonal, workload.scale

    def _check_new(self, workload: Workload, cache: CacheArgs) -> None:
        new = (cache.new_k, cache.new_v)
        if not any(t.address for t in new):
            return
        if not all(t.address for t in new) or not cache.lengths:
            raise InvalidConfig("new keys and values come together, and with lengths")
        if cache.added < 1:
            raise InvalidConfig(f"added must be at least 1, not {cache.added}")
        left = workload.window_left
        if left is not None and cache.added > workload.seq_len_q + left:
            raise InvalidConfig(
                f"a window of {left} to the left does not see all of {cache.added} new keys"
            )
        units = (workload.batch, cache.added, workload.kv_heads)
        for tensor, name in zip(new, ("new_k", "new_v"), strict=True):
            used = [s for s, n in zip(tensor.strides, units, strict=True) if n > 1]
            if any(x % CHUNK_BYTES for x in (tensor.address, *(s * ELEMENT_BYTES for s in used))):
                raise InvalidConfig(
                    f"{name} must have every row at a multiple of {CHUNK_BYTES} bytes"
                )

    def _check_packed(self, workload: Workload) -> None:
        if self.diagonal is not None:
            raise InvalidConfig("each sequence of a packed batch has a diagonal of its own")
        for name in ("cu_seqlens_q", "cu_seqlens_kv"):
            if not self[name].address:
                raise InvalidConfig(f"{workload.key} needs {name}, which the launch does not give")

    def _check_rows(self, workload: Workload) -> None:
        for spec in operations.get(workload.op).tensors(workload):
            if len(spec.shape) < 3:  # read element by element
                continue
            tensor, shape = self[spec.name], spec.shape
            if spec.name in ("k", "v") and self.cache is not None and self.cache.pages:
                shape = (MANY_PAGES, *shape[1:])
            # The stride of an extent of 1 is never used, and contiguous tensors give none.
            used = [s for s, n in zip(tensor.strides, shape, strict=False) if n > 1]
            if any(x % CHUNK_BYTES for x in (tensor.address, *(s * ELEMENT_BYTES for s in used))):
                raise InvalidConfig(
                    f"{spec.name.upper()} must have every row at a multiple of {CHUNK_BYTES} "
                    f"bytes; it starts at address {tensor.address:#x} and has strides "
                    f"{tensor.strides} of {ELEMENT_BYTES}-byte elements"
                )


@dataclass(frozen=True)
class LaunchDevice:
    """What a launch may depend on beside its workload: the device's multiprocessors, which a
    persistent grid is sized by, and its L2 cache, which the order of tiles may be made for."""

    multiprocessors: int
    l2_bytes: int


@dataclass(frozen=True)
class LaunchGeometry:
    """Grid, block and cluster in CUDA's (x, y, z) order; dynamic shared memory in bytes.

    The cluster is the one compiled into the cubin (`__cluster_dims__`), which a launch does
    not state again; (1, 1, 1) is none.  It divides the grid.  `dependent`: the kernel may begin
    before the launch in front of it is done, and waits for it.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_smem_bytes: int
    cluster: tuple[int, int, int] = (1, 1, 1)
    dependent: bool = False


@dataclass(frozen=True)
class LaunchStep:
    """One launch of a call: its geometry and the kernel's parameters, each a NumPy array of one
    element passed by value: numbers, structs, or 128 opaque bytes (`V128`, shape (1,)) of a tensor
    map."""

    geometry: LaunchGeometry
    args: Sequence[np.ndarray]
