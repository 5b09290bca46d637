"""What the launches of the `decode` family pass: how keys are shared among CTAs, grids, parameters
and the memory that parts of tiles take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import FORWARD, Workload
from fa_tune.families import computed
from fa_tune.families.decode.config import MMA_K, MOST_TILE_KEYS, Combine, DecodeConfig
from fa_tune.families.launch import LaunchArgs, LaunchDevice, LaunchGeometry
from fa_tune.families.plan import CallPlan, Grid, LaunchPlan
from fa_tune.families.score_params import score_dtype, set_scores
from fa_tune.operations.forward.spec import seen_from, seen_to

if TYPE_CHECKING:
    import numpy as np

COMPUTED = computed.SCORES | computed.CACHE
MAX_CTAS = 1024  # of a launch, each with a counter
# Of all tiles, and rows of one head of K, and keys of a sequence: a kernel counts them, and sums of
# two, in 32 bits.
MAX_BLOCKS = 2**30
MOST_PLACES = MOST_TILE_KEYS // MMA_K  # of a tile besides its blocks, whatever the config
COUNTER_BYTES = 4
SUM_BYTES = 4
ROW_SUMS = 2  # numbers of a part's row besides its columns
DIVISORS = ("heads_per_kv", "row_tiles", "tiles", "pitch", "line", "share", "page_size")


def check(workload: Workload) -> None:
    """Raise InvalidConfig for what the kernels do not compute."""
    if strange := computed.not_among(workload, COMPUTED):
        raise InvalidConfig(f"decode kernels do not compute {', '.join(strange)}: {workload.key}")


@dataclass(frozen=True)
class Shares:
    """All blocks of all tiles, and how many of them each CTA takes (kernels/decode/work.cuh)."""

    row_tiles: int
    tiles: int
    blocks: int  # of a tile
    pitch: int  # of tiles in the line
    share: int
    ctas: int
    most_ctas: int  # of any launch with so many keys or fewer
    part_rows: int

    @classmethod
    def of(
        cls, config: DecodeConfig, workload: Workload, diagonal: int, device: LaunchDevice
    ) -> Shares:
        """Equal shares for as many CTAs as the device has at a time; raises InvalidConfig for more
        blocks than a kernel counts."""
        rows = workload.rows_of_kv_head
        row_tiles = -(-rows // config.B_r)
        tiles = workload.batch * workload.kv_heads * row_tiles
        keys = workload.seq_len_kv
        every = tiles * max(-(-keys // config.B_c), config.cluster)
        if max(rows, keys + 1, every) > MAX_BLOCKS:
            raise InvalidConfig(
                f"{workload.key} has {every} blocks of keys, and {rows} rows of queries for a head "
                f"of K; a launch takes {MAX_BLOCKS} of either, and fewer keys of a sequence"
            )
        last, first = seen_to(workload), seen_from(workload)
        if last is not None:
            keys = min(keys, workload.seq_len_q - 1 + last - workload.diagonal + diagonal)
        first = 0 if first is None else max(0, first - workload.diagonal + diagonal)
        blocks = max(1, -(-keys // config.B_c) - first // config.B_c)
        most = max(1, min(device.multiprocessors * config.ctas_per_sm, MAX_CTAS))
        pitch, share = blocks, max(config.min_blocks, -(-tiles * blocks // most))
        if config.cluster > 1:
            ctas = tiles * config.cluster
            return cls(
                *(row_tiles, tiles, blocks, blocks, -(-blocks // config.cluster), ctas),
                most_ctas=ctas,
                part_rows=min(rows, config.B_r),
            )
        if config.aligned:
            aligned = -(-tiles // most) * blocks
            if tiles <= most:
                aligned = -(-blocks // min(most // tiles, -(-blocks // config.min_blocks)))
            if aligned * 7 <= share * 8:  # else too many CTAs would have nothing to do
                share = aligned
                if aligned < blocks:
                    pitch = -(-blocks // aligned) * aligned
        ctas = -(-tiles * pitch // share)
        return cls(
            *(row_tiles, tiles, blocks, pitch, share, ctas),
            most_ctas=min(most, every),
            part_rows=min(rows, config.B_r),
        )

    def on_device(self, config: DecodeConfig, workload: Workload) -> Shares:
        """With lengths that are known on the device alone: as many CTAs as there may be, each of
        which computes its share of all blocks.  Raises InvalidConfig for more than a kernel counts,
        with places of tiles besides."""
        of_tile = -(-workload.seq_len_kv // config.B_c) + MOST_PLACES
        if config.cluster == 1 and self.tiles * of_tile > MAX_BLOCKS:
            raise InvalidConfig(
                f"{workload.key} has {self.tiles} tiles, which count for up to {of_tile} blocks of "
                f"keys where the device alone knows lengths; a launch takes {MAX_BLOCKS} blocks"
            )
        return replace(self, share=config.min_blocks, ctas=self.most_ctas)


def shares_of(
    config: DecodeConfig, workload: Workload, args: LaunchArgs, device: LaunchDevice
) -> Shares:
    """Those of a launch."""
    check(workload)
    diagonal, _ = args.checked(workload, takes_cache=True)
    shares = Shares.of(config, workload, diagonal, device)
    if args.cache is None or not args.cache.lengths:
        return shares
    return shares.on_device(config, workload)


@cache
def params_dtype() -> np.dtype:
    """kernels/decode/params.cuh, DecodeParams, field for field."""
    import numpy as np  # only a launch needs it; commands that never launch start faster

    strides = np.dtype([("batch", "i8"), ("seq", "i8"), ("head", "i8")], align=True)
    divisor = np.dtype([("multiplier", "u4"), ("shift", "i4")])
    numbers = (
        *("heads_per_kv", "kv_heads", "batch", "seq_len_q", "seq_len_kv", "diagonal"),
        *("row_tiles", "blocks", "pitch", "share", "ctas", "part_rows"),
    )
    return np.dtype(
        [(f"{t}_address", "u8") for t in ("q", "k", "v", "o", "lse", "parts", "counters")]
        + [("lengths_address", "u8"), ("pages_address", "u8"), ("added", "i4")]
        + [("page_size", "i4"), ("page_stride", "i8")]
        + [("new_k_address", "u8"), ("new_v_address", "u8")]
        + [("new_k_strides", strides), ("new_v_strides", strides)]
        + [("k_scale_address", "u8"), ("v_scale_address", "u8")]
        + [("scale_batch_stride", "i4"), ("scale_head_stride", "i4")]
        + [("score", score_dtype())]
        + [(f"{t}_strides", strides) for t in ("q", "k", "v", "o")]
        + [(name, "i4") for name in numbers]
        + [("softmax_scale", "f4")]
        + [("by", np.dtype([(name, divisor) for name in DIVISORS]))],
        align=True,
    )


def divisors(workload: Workload, shares: Shares, args: LaunchArgs) -> dict[str, int]:
    """The numbers that kernels divide by; 0: by none."""
    tiles = workload.kv_heads * shares.row_tiles
    return {
        "heads_per_kv": workload.heads // workload.kv_heads,
        "row_tiles": shares.row_tiles,
        "tiles": tiles,
        "pitch": shares.pitch,
        "line": tiles * shares.pitch,
        "share": shares.share,
        "page_size": 0 if args.cache is None else args.cache.page_size,
    }


def divisor(number: int) -> tuple[int, int]:
    """Multiplier and shift of a Divisor (kernels/decode/params.cuh); zeros for 0."""
    if number == 0:
        return 0, 0
    shift = (number - 1).bit_length()
    return -(-(2 ** (31 + shift)) // number), shift


def params(
    config: DecodeConfig, workload: Workload, args: LaunchArgs, device: LaunchDevice
) -> np.ndarray:
    """The struct that every kernel of a call takes."""
    import numpy as np

    shares = shares_of(config, workload, args, device)
    found = np.zeros(1, params_dtype())
    set_scores(found, workload, args, takes_cache=True)
    for name, tensor in {"q": args.q, "k": args.k, "v": args.v, "o": args.o}.items():
        found[f"{name}_address"] = tensor.address
        found[f"{name}_strides"] = tensor.strides
    found["lse_address"] = args.lse.address
    found["parts_address"] = args.workspace
    found["counters_address"] = args.scratch
    found["heads_per_kv"] = workload.heads // workload.kv_heads
    found["kv_heads"] = workload.kv_heads
    found["batch"] = workload.batch
    found["seq_len_q"] = workload.seq_len_q
    found["seq_len_kv"] = workload.seq_len_kv
    for name in ("row_tiles", "blocks", "pitch", "share", "ctas", "part_rows"):
        found[name] = getattr(shares, name)
    for name, number in divisors(workload, shares, args).items():
        found["by"][name] = divisor(number)
    if args.cache is not None:
        found["lengths_address"], found["added"] = args.cache.lengths, args.cache.added
        found["pages_address"] = args.cache.pages
        found["page_size"], found["page_stride"] = args.cache.page_size, args.cache.page_stride
        for name, tensor in {"new_k": args.cache.new_k, "new_v": args.cache.new_v}.items():
            found[f"{name}_address"] = tensor.address
            found[f"{name}_strides"] = tensor.strides
    found["k_scale_address"] = args["k_scale"].address
    found["v_scale_address"] = args["v_scale"].address
    found["scale_batch_stride"], found["scale_head_stride"] = args.scale_strides
    return found


def geometry(config: DecodeConfig, shares: Shares) -> LaunchGeometry:
    """A CTA for each share."""
    grid, block = (shares.ctas, 1, 1), (config.threads, 1, 1)
    cluster = (config.cluster, 1, 1)
    smem_bytes = config.smem_bytes
    return LaunchGeometry(grid, block, smem_bytes, cluster, dependent=config.dependent)


def combine_geometry(config: DecodeConfig, shares: Shares) -> LaunchGeometry:
    """A CTA for each row of each tile."""
    grid, block = (shares.tiles, shares.part_rows, 1), (combine_threads(config), 1, 1)
    return LaunchGeometry(grid, block, 0, dependent=config.dependent)


def combine_threads(config: DecodeConfig) -> int:
    """Threads of a CTA that combines: whole warps, of whose threads each has four columns."""
    return -(-config.d_v // 128) * 32


def plan(config: DecodeConfig, traits: str, arch: str) -> CallPlan:
    """The same launches for C++."""
    common: dict[str, Any] = {
        "params": "decode",
        "tile_rows": config.B_r,
        "ctas_per_sm": config.ctas_per_sm,
        "cluster_x": config.cluster,
        "cluster_y": 1,
        "cluster_z": 1,
        "q_box_rows": 0,
        "kv_box_rows": 0,
        "counter_bytes": counter_bytes(config),
        "share_keys": config.B_c,
        "min_blocks": config.min_blocks,
        "aligned": int(config.aligned),
        "dependent": int(config.dependent),
    }
    launches = [
        LaunchPlan(
            grid=Grid.SHARES,
            threads=config.threads,
            dynamic_smem_bytes=config.smem_bytes,
            **common,
        )
    ]
    if config.combine is Combine.KERNEL:
        threads = combine_threads(config)
        launches.append(
            LaunchPlan(grid=Grid.TILES_ROWS, threads=threads, dynamic_smem_bytes=0, **common)
        )
    # Every length is served by one kernel.
    served = {"block_q": 1, "block_kv": 1, "ragged": 0, "few_rows": 1}
    return CallPlan.of(FORWARD, config, traits, arch, tuple(launches), **served)


def workspace_bytes(config: DecodeConfig, workload: Workload, device: LaunchDevice) -> int:
    """Of the parts, whatever the lengths: a CTA may end one tile and begin another."""
    if config.cluster > 1:
        return 0
    shares = Shares.of(config, workload, workload.diagonal, device)
    places = 2 * shares.most_ctas
    return places * shares.part_rows * (config.d_v + ROW_SUMS) * SUM_BYTES


def counter_bytes(config: DecodeConfig) -> int:
    """Bytes of a word for each CTA: the parts of a tile that are done, and which of the CTAs that
    combine together know that or have gone (kernels/decode/together.cuh)."""
    counts = config.combine is not Combine.KERNEL and config.cluster == 1
    return MAX_CTAS * COUNTER_BYTES if counts else 0
