"""What a kernel family supplies.  Everything outside this package asks a family through the
protocol below and knows none by name; docs/architecture.md lists the files that add one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from fa_tune import ops
from fa_tune.core.arch import ArchLimits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Rejected
from fa_tune.core.workload import PAGE_KEYS, DType, Workload
from fa_tune.families.plan import CallPlan

if TYPE_CHECKING:
    import numpy as np
    import torch

CHUNK_BYTES = 16  # the unit of every copy between global and shared memory
ELEMENT_BYTES = 2

# An object of some family's config class: a frozen, ordered dataclass whose fields are the
# knobs, `dtype` and `d_head` among them, and `d_head_v` (0: as `d_head`) where V may have another
# head dimension.  No two families share a class.
Config = Any


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
    the workload at most; its causal mask is aligned bottom-right.  0: all have seq_len_kv.
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
        for spec in ops.get(workload.op).tensors(workload):
            if len(spec.shape) < 3:  # read element by element
                continue
            tensor = self[spec.name]
            # The stride of an extent of 1 is never used, and contiguous tensors give none.
            used = [s for s, n in zip(tensor.strides, spec.shape, strict=False) if n > 1]
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
class KernelSpec:
    """One kernel of a variant: the template instantiation to ask the compiler for, threads per CTA
    and dynamic shared memory per CTA in bytes.  The last two do not depend on the traits."""

    name_expression: str
    threads: int
    dynamic_smem_bytes: int


@dataclass(frozen=True)
class LaunchStep:
    """One launch of a call: its geometry and the kernel's parameters, each a NumPy array of one
    element passed by value: numbers, structs, or 128 opaque bytes (`V128`, shape (1,)) of a tensor
    map."""

    geometry: LaunchGeometry
    args: Sequence[np.ndarray]


@dataclass(frozen=True)
class GridShape:
    """What the grid of a launch tells of its workload; `query_blocks` per head."""

    query_blocks: int
    heads: int
    batch: int


class KernelFamily(Protocol):
    """A way to compute one operation: config class, sets, constraints, kernels and launches.

    A call is one launch or several, each of a kernel of its own; all are compiled as one
    translation unit.  `families.template` has what a family of one kernel is like.

    `operation`     what it computes, by its name in `fa_tune.ops`
    `name`          how variants, files and `--family` call it: a word
    `config_class`  the class of its configs
    `example`       a short form, for messages
    `set_keys`      what `configs` takes as a key, for messages
    `takes_cache`   whether its launches take a `CacheArgs`
    `computes`      the optional fields of a workload that its kernels compute
    """

    operation: str
    name: str
    config_class: type[Any]
    example: str
    set_keys: str
    takes_cache: bool
    computes: frozenset[str]

    def __hash__(self) -> int:
        """By identity: what is known of one family's texts is no other's."""

    # Names ----------------------------------------------------------------------------------

    def recognises(self, text: str) -> bool:
        """Whether `text` is meant as this family's short form, or is a name of its kernels.
        A short form is recognised by one family only, however it is damaged."""

    def parse(self, text: str, *, d_head: int = 128) -> Config:
        """The config of a short form, or of a demangled name of its kernels.  `d_head` serves
        a short form that leaves it out.  Raises InvalidConfig."""

    def short_form(self, config: Config) -> str:
        """The short form of a config; `parse` reads it back."""

    def kernel_traits(self, kernel_name: str) -> str | None:
        """The traits in a demangled name of its kernels, None if there are none to be read."""

    # Device ---------------------------------------------------------------------------------

    def device_rejection(self, limits: ArchLimits) -> Rejected | None:
        """Why no config of the family runs on such a device, or None."""

    def preference(self, limits: ArchLimits) -> int:
        """How good the family is on a device that it runs on.  For a workload, the default of the
        family with the highest number among those that suit it is the default of the device."""

    def suits(self, workload: Workload, config: Config | None = None) -> bool:
        """Whether the family computes such a workload, and it or this config may be the fastest
        on it."""

    def compile_arch(self, limits: ArchLimits) -> str:
        """What to compile for on such a device: `limits.arch`, or `sm_90a` where the kernels
        need instructions of that very architecture."""

    # Configs --------------------------------------------------------------------------------

    def constraints(self, config: Config, limits: ArchLimits) -> Rejected | None:
        """The first reason why the config cannot run on such a device, or None; where the
        family does not run, `device_rejection`."""

    def default_config(self, d_head: int, dtype: DType, *, d_head_v: int = 0) -> Config:
        """What a user without tuning results should run; `d_head_v` 0: as `d_head`.  Where the
        family has nothing for these heads, a config that `constraints` refuses; a family that knows
        no other `d_head_v` may leave it aside, and its config is not taken."""

    def default_for(self, workload: Workload, limits: ArchLimits) -> Config:
        """The same for a workload on such a device."""

    def former_defaults(self, config: Config) -> Sequence[Config]:
        """What was the default before this one, the last first: recordings of that time hold no
        other."""

    def configs(
        self,
        key: str,
        *,
        dtypes: Sequence[DType] | None = None,
        d_head: int = 128,
        d_head_v: int = 0,
    ) -> list[Config]:
        """A named set, at least `tune`, for these dtypes (None: the set's own); `d_head_v` 0: as
        `d_head`; empty if the set has none for these heads.  Raises InvalidConfig for a key that
        is not its own."""

    def tune_rejection(self, config: Config) -> Rejected | None:
        """The rule, an opinion on speed, that keeps a config out of the tune set, or None."""

    # Compiling ------------------------------------------------------------------------------

    def traits(self, config: Config, workload: Workload, *, lse: bool = False) -> str:
        """The compile-time facts of a workload, as text; see `families.traits`.  `lse`: with
        the log-sum-exp, whatever the workload says."""

    def source_files(self) -> Mapping[str, str]:
        """Include name -> text of every file a kernel of the family includes, and no other:
        what they hash to is what its measurements depend on.  See `families.sources`."""

    def entry_source(self, config: Config, traits: str) -> str:
        """The translation unit given to the compiler."""

    def kernels(self, config: Config, traits: str) -> Sequence[KernelSpec]:
        """The kernels of a call in the order of their launches, the one by whose name reports know
        the config among them; one that is launched twice stands here twice."""

    def compile_options(self, arch: str) -> Sequence[str]:
        """Compiler options beyond the architecture."""

    # Launching ------------------------------------------------------------------------------

    def launches(
        self, config: Config, workload: Workload, args: LaunchArgs, device: LaunchDevice
    ) -> Sequence[LaunchStep]:
        """The launches of a call, one for each of `kernels`.  Raises InvalidConfig for a workload
        that no grid covers and for what `args.checked` refuses."""

    def plan(self, config: Config, traits: str, arch: str) -> CallPlan:
        """What C++ needs to launch the kernels that were compiled with these traits for `arch`
        (`sm_90a`).  Raises InvalidConfig where the family has no such launch."""

    def scratch_bytes(self, config: Config) -> int:
        """Device memory that a call needs beside its tensors, such as a scheduler's counters.
        It is zero before the first call, and each call leaves it so for the next one, which
        begins after it."""

    def workspace_bytes(self, config: Config, workload: Workload, device: LaunchDevice) -> int:
        """Device memory for what a call's CTAs and launches hand to one another, such as partial
        results.  What it holds before the first one is undefined."""

    def grid_shape(self, config: Config, grid: tuple[int, int, int]) -> GridShape | None:
        """The part of a workload that the grid of the kernel known to reports tells; None where it
        tells nothing, as with a persistent grid."""

    # Checking -------------------------------------------------------------------------------

    def blocks(self, config: Config) -> tuple[int, int]:
        """(query rows, key rows) of a tile, for the FLOP model and for verification, whose
        lengths are whole tiles, several of them, and parts."""

    def whole_lengths(self, config: Config) -> tuple[int, int]:
        """Numbers of queries and of keys: lengths that are no multiples of them need the trait
        `ragged`."""

    def extra_verification(self, config: Config, traits: str) -> Sequence[Workload]:
        """Workloads to verify a config on besides the common ones, for what those do not
        reach: a persistent grid's second round, for instance.  Theirs are these very traits."""
