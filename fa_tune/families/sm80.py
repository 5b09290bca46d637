"""The `sm80` family: mma.sync kernels for compute capability 8.0 and later.

`FlashForwardKernelConfig` declares every knob once; the short form, the C++ struct, the
constraints and the launch geometry are all derived from it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from fa_tune import flops
from fa_tune.arch import ArchLimits
from fa_tune.errors import InvalidConfig
from fa_tune.families.base import (
    GridShape,
    LaunchArgs,
    LaunchDevice,
    LaunchGeometry,
    TensorArg,
)
from fa_tune.families.config_fields import (
    coerce,
    cpp_literal,
    flag_field,
    tiles_field,
    tuple_field,
)
from fa_tune.families.sources import closure
from fa_tune.families.traits import Traits
from fa_tune.model import DType, Rejected, Workload

if TYPE_CHECKING:
    import numpy as np

MMA_M = 16  # rows of one m16n8k16 tile
MMA_K = 16  # its k-step, and what one "k-tile" means in the config
CHUNK_ELEMENTS = 8  # elements of one 16-byte copy
MOST_GRID_ROWS = 65535  # of a grid's second and third dimension, heads and batch

# The struct in a kernel's name, or a tuple that no word stands before: `sm90(FP16, …)` is of
# another family.
_LOOKS_LIKE = re.compile(r"FlashForwardKernelConfig|(?<![\w+)>])\(\s*\w+\s*,")


@dataclass(frozen=True, order=True)
class FlashForwardKernelConfig:
    """One point of the family's knobs, totally ordered by its fields in this order."""

    dtype: DType = tuple_field("element type of Q, K, V and O")
    d_head: int = tuple_field("head dimension")
    B_r: int = tuple_field("query rows per CTA")
    B_c: int = tuple_field("key/value rows per block")
    n_warps: int = tuple_field("warps per CTA")
    async_copy: bool = flag_field("async", "global to shared by cp.async, not through registers")
    eager_load_blocks: bool = flag_field("eager", "issue the next K and V block early")
    swizzled: bool = flag_field("swizzled", "XOR-swizzled shared memory")
    Q_mma_load_K_tiles: int = tiles_field(
        "k-tiles of Q held in registers at once; 0 keeps all of Q there for the whole kernel"
    )
    K_mma_load_K_tiles: int = tiles_field("k-tiles of K loaded at once; 0 loads the whole block")
    V_mma_load_K_tiles: int = tiles_field("k-tiles of V loaded at once; 0 loads the whole block")
    mma_double_buffer_loads: bool = flag_field(
        "buffer", "load the next k-tiles while the current ones are multiplied"
    )
    optimized_softmax: bool = flag_field(
        "opt_softmax", "no rescale at the first block; scale folded into the exponent's FMA"
    )

    def __post_init__(self) -> None:
        coerce(self)

    def __str__(self) -> str:
        return self.short_form()

    def short_form(self, include_d_head: bool = True, include_tup: bool = True) -> str:
        """`(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax`.

        `include_d_head` and `include_tup` leave out the head dimension or the whole tuple.
        """
        words: list[str] = []
        numbers: list[str] = []
        tiles: list[str] = []
        for f in dataclasses.fields(self):
            value, meta = getattr(self, f.name), f.metadata
            match meta["place"]:
                case "tuple" if f.name != "d_head" or include_d_head:
                    numbers.append(value.name if isinstance(value, DType) else str(value))
                case "flag" if value:
                    words.append(meta["word"])
                case "tiles":
                    tiles.append(str(value))
                    if len(tiles) == 3:
                        words.append(f"load_{'_'.join(tiles)}_tiles")
                case "number" if value != f.default:
                    words.append(f"{meta['word']}_{value}")
        features = "+".join(words)
        return f"({', '.join(numbers)}): {features}" if include_tup else features

    def to_cpp_struct(self) -> str:
        """The config as a C++ literal of the generated struct."""
        values = (cpp_literal(getattr(self, f.name)) for f in dataclasses.fields(self))
        return f"FlashForwardKernelConfig{{{', '.join(values)}}}"

    def kernel_name(self) -> str:
        """The kernel template's name."""
        return "flash_forward_kernel"

    @property
    def threads(self) -> int:
        """Threads per CTA."""
        return 32 * self.n_warps

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory: Q (later O), one K block, one V block."""
        return (self.B_r + 2 * self.B_c) * self.d_head * self.dtype.size_bytes

    def total_flop(self, n_samples: int, n_heads: int, seq_len: int) -> int:
        """Operations of the tiled algorithm; raises InvalidConfig if blocks do not divide."""
        return flops.total_flop(self._workload(n_samples, n_heads, seq_len), self.B_r, self.B_c)

    def attn_flop(self, n_samples: int, n_heads: int, seq_len: int) -> int:
        """batch·heads·(4·s²·d + 6·s²)."""
        return flops.attn_flop(self._workload(n_samples, n_heads, seq_len))

    def _workload(self, n_samples: int, n_heads: int, seq_len: int) -> Workload:
        return Workload(n_samples, n_heads, n_heads, seq_len, seq_len, self.d_head, self.dtype)


def _divides(tiles: int, total: int) -> bool:
    return tiles >= 0 and (tiles == 0 or total % tiles == 0)


def _chunks_per_pass(config: FlashForwardKernelConfig) -> int:
    """Chunks of one row that a copy pass covers: the power of two in a row's chunks."""
    chunks = config.d_head // CHUNK_ELEMENTS
    return chunks & -chunks


Check = Callable[[FlashForwardKernelConfig], bool]

# Name, sentence, test.  kernels/sm80/constraints.cuh asserts the same with the same sentences.
CONSTRAINTS: tuple[tuple[str, str, Check], ...] = (
    (
        "n_warps_fit_a_cta",
        "n_warps must be between 1 and 32, the warps of one CTA",
        lambda c: 1 <= c.n_warps <= 32,
    ),
    (
        "d_head_whole_chunk_groups",
        "d_head must be a multiple of 32 between 32 and 256, whole groups of four 16-byte chunks",
        lambda c: 32 <= c.d_head <= 256 and c.d_head % 32 == 0,
    ),
    (
        "warps_own_whole_mma_tiles",
        "B_r must be a multiple of 16 * n_warps, so that every warp owns whole 16-row mma tiles",
        lambda c: c.B_r >= MMA_M and c.B_r % (MMA_M * c.n_warps) == 0,
    ),
    (
        "kv_block_multiple_of_k_step",
        "B_c must be a multiple of 16, the k-step of the second product",
        lambda c: c.B_c >= MMA_K and c.B_c % MMA_K == 0,
    ),
    (
        "copies_divide_evenly",
        "the 16-byte chunks of a block must divide evenly among the threads",
        lambda c: all(b * _chunks_per_pass(c) % c.threads == 0 for b in (c.B_r, c.B_c)),
    ),
    (
        "eager_needs_async",
        "eager_load_blocks needs async_copy: an ordinary load cannot run ahead of the arithmetic",
        lambda c: c.async_copy or not c.eager_load_blocks,
    ),
    (
        "q_tiles_divide_d_head",
        "Q_mma_load_K_tiles must be 0 or divide d_head / 16, the k-tiles of the first product",
        lambda c: _divides(c.Q_mma_load_K_tiles, c.d_head // MMA_K),
    ),
    (
        "k_tiles_divide_d_head",
        "K_mma_load_K_tiles must be 0 or divide d_head / 16, the k-tiles of the first product",
        lambda c: _divides(c.K_mma_load_K_tiles, c.d_head // MMA_K),
    ),
    (
        "v_tiles_divide_kv_block",
        "V_mma_load_K_tiles must be 0 or divide B_c / 16, the k-tiles of the second product",
        lambda c: _divides(c.V_mma_load_K_tiles, c.B_c // MMA_K),
    ),
)


def device_rejection(limits: ArchLimits) -> Rejected | None:
    """Why no config runs on a device with `limits`, or None."""
    if limits.compute_capability < (8, 0):
        return Rejected("compute_capability", f"needs sm_80 or later, the device is {limits.arch}")
    return None


def constraints(config: FlashForwardKernelConfig, limits: ArchLimits) -> Rejected | None:
    """The first reason why `config` cannot run on a device with `limits`, or None."""
    if (why := device_rejection(limits)) is not None:
        return why
    for name, sentence, holds in CONSTRAINTS:
        if not holds(config):
            return Rejected(name, sentence)
    if config.smem_bytes > limits.smem_per_block_bytes:
        return Rejected(
            "smem_fits",
            f"needs {config.smem_bytes / 1024:g} KiB of shared memory, "
            f"{limits.arch} allows {limits.smem_per_block_bytes / 1024:g} KiB per CTA",
        )
    return None


@cache
def params_dtype() -> np.dtype:
    """kernels/sm80/params.cuh, ForwardParams, field for field."""
    import numpy as np  # only a launch needs it; commands that never launch start faster

    strides = np.dtype([("batch", "i8"), ("seq", "i8"), ("head", "i8")], align=True)
    return np.dtype(
        [(f"{t}_address", "u8") for t in ("q", "k", "v", "o", "lse")]
        + [(f"{t}_strides", strides) for t in ("q", "k", "v", "o")]
        + [(n, "i4") for n in ("heads", "heads_per_kv", "seq_len_q", "seq_len_kv", "diagonal")]
        + [("softmax_scale", "f4")],
        align=True,
    )


@cache
def _source_files() -> Mapping[str, str]:
    return closure("sm80/entry.cu")


class Sm80Family:
    """The family's side of `families.base.KernelFamily`."""

    name = "sm80"
    config_class = FlashForwardKernelConfig
    example = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"
    set_keys = 'tune, all, prog, prog-all, or a block size "B_r,B_c" such as "64,32"'

    # The modules imported below build on this one.

    def recognises(self, text: str) -> bool:
        return _LOOKS_LIKE.search(text) is not None

    def parse(self, text: str, *, d_head: int = 128) -> FlashForwardKernelConfig:
        from fa_tune.families.names import parse_kernel_name_into_config

        return parse_kernel_name_into_config(text, d_head=d_head)

    def short_form(self, config: FlashForwardKernelConfig) -> str:
        return config.short_form()

    def kernel_traits(self, kernel_name: str) -> str | None:
        found = Traits.in_kernel_name(kernel_name)
        return None if found is None else str(found)

    def device_rejection(self, limits: ArchLimits) -> Rejected | None:
        return device_rejection(limits)

    def preference(self, limits: ArchLimits) -> int:
        return 80

    def compile_arch(self, limits: ArchLimits) -> str:
        return limits.arch

    def configs(
        self, key: str, *, dtypes: Sequence[DType] | None = None, d_head: int = 128
    ) -> list[FlashForwardKernelConfig]:
        from fa_tune.families.sm80_sets import get_kernel_configs

        return get_kernel_configs(key, dtypes=dtypes, d_head=d_head)

    def tune_rejection(self, config: FlashForwardKernelConfig) -> Rejected | None:
        from fa_tune.families.sm80_rules import autotune_rejection

        return autotune_rejection(config)

    def constraints(self, config: FlashForwardKernelConfig, limits: ArchLimits) -> Rejected | None:
        return constraints(config, limits)

    def default_config(self, d_head: int, dtype: DType) -> FlashForwardKernelConfig:
        """32 rows per warp while O fits the registers, else 16; what was fastest or near it on
        an H200 at every length."""
        blocks = (128, 64, 4) if d_head <= 128 else (64, 32, 4)
        return FlashForwardKernelConfig(
            dtype, d_head, *blocks, True, True, True, 2, 2, 2, False, True
        )

    def traits(
        self, config: FlashForwardKernelConfig, workload: Workload, *, lse: bool = False
    ) -> str:
        ragged = bool(workload.seq_len_q % config.B_r or workload.seq_len_kv % config.B_c)
        return str(Traits(causal=workload.causal, ragged=ragged, lse=lse or workload.lse))

    def source_files(self) -> Mapping[str, str]:
        return _source_files()

    def entry_source(self, config: FlashForwardKernelConfig, traits: str) -> str:
        return _source_files()["sm80/entry.cu"]

    def name_expression(self, config: FlashForwardKernelConfig, traits: str) -> str:
        arguments = f"{config.to_cpp_struct()}, {Traits.parse(traits).to_cpp_struct()}"
        return f"{config.kernel_name()}<{arguments}>"

    def compile_options(self, arch: str) -> Sequence[str]:
        return ("-std=c++20", "--use_fast_math")

    def threads(self, config: FlashForwardKernelConfig) -> int:
        return config.threads

    def dynamic_smem_bytes(self, config: FlashForwardKernelConfig) -> int:
        return config.smem_bytes

    def geometry(
        self, config: FlashForwardKernelConfig, workload: Workload, device: LaunchDevice
    ) -> LaunchGeometry:
        for name, size in (("heads", workload.heads), ("batch", workload.batch)):
            if size > MOST_GRID_ROWS:
                raise InvalidConfig(f"{name} must be at most {MOST_GRID_ROWS}, not {size}")
        return LaunchGeometry(
            grid=(-(-workload.seq_len_q // config.B_r), workload.heads, workload.batch),
            block=(config.threads, 1, 1),
            dynamic_smem_bytes=config.smem_bytes,
        )

    def scratch_bytes(self, config: FlashForwardKernelConfig) -> int:
        return 0

    def kernel_args(
        self,
        config: FlashForwardKernelConfig,
        workload: Workload,
        args: LaunchArgs,
        device: LaunchDevice,
    ) -> list[np.ndarray]:
        import numpy as np

        params = np.zeros(1, params_dtype())
        tensors: Mapping[str, TensorArg] = {"q": args.q, "k": args.k, "v": args.v, "o": args.o}
        for name, tensor in tensors.items():
            params[f"{name}_address"] = tensor.address
            params[f"{name}_strides"] = tensor.strides
        params["lse_address"] = args.lse.address
        params["heads"] = workload.heads
        params["heads_per_kv"] = workload.heads // workload.kv_heads
        params["seq_len_q"] = workload.seq_len_q
        params["seq_len_kv"] = workload.seq_len_kv
        diagonal, scale = args.diagonal, args.softmax_scale
        params["diagonal"] = workload.diagonal if diagonal is None else diagonal
        params["softmax_scale"] = workload.scale if scale is None else scale
        return [params]

    def blocks(self, config: FlashForwardKernelConfig) -> tuple[int, int]:
        return config.B_r, config.B_c

    def grid_shape(
        self, config: FlashForwardKernelConfig, grid: tuple[int, int, int]
    ) -> GridShape | None:
        return GridShape(query_blocks=grid[0], heads=grid[1], batch=grid[2])

    def extra_verification(
        self, config: FlashForwardKernelConfig, traits: str
    ) -> Sequence[Workload]:
        return ()
