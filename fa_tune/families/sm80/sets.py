"""The named sets of configs, and the choice among them.

fast         what may win, with all knobs; see later_sets.py
wide         all that can run, with all knobs; see there
tune         80 configs, 40 per dtype (96 above d_head 128): the blocks, k-tiles and flags that
             may win
prog         7 configs, the ladder from the plain kernel up, one idea per step
prog-all     each step at every block size and warp count it allows, 56 configs
all          what gets built: tune and prog, sorted, 85 configs
64,32        the tune configs with B_r 64 and B_c 32
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections.abc import Sequence

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType
from fa_tune.families.axes import expand
from fa_tune.families.sm80.config import FlashForwardKernelConfig
from fa_tune.families.sm80.later_sets import get_fast_configs, get_wide_configs
from fa_tune.families.sm80.names import parse_kernel_name_into_config, parse_short_form
from fa_tune.families.sm80.rules import should_autotune_config

KERNELS_VARIABLE = "KERNELS"
ALLOWED_KEYS = 'fast, wide, tune, all, prog, prog-all, or a block size "B_r,B_c" such as "64,32"'

TUNE_DTYPES = (DType.BF16, DType.FP16)
PROGRESSION_DTYPES = (DType.FP16,)

PROGRESSION = (
    "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles",
    "(FP16, 128, 64, 64, 4): async+swizzled+load_0_0_0_tiles",
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_0_0_tiles",
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles",
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer",
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax",
)


def get_autotuning_kernel_configs(
    dtypes: Sequence[DType] = TUNE_DTYPES, *, d_head: int = 128, d_head_v: int = 0
) -> list[FlashForwardKernelConfig]:
    """The `tune` set: the product of the axes below, less what the tune rules leave out.

    Above 128 columns a warp has registers for 16 rows of O only, so 128 rows are for 8 warps.
    """
    axes = {
        "dtype": dtypes,
        "d_head": (d_head,),
        "B_r": (64, 128),
        "B_c": (32, 64),
        "n_warps": (4,) if (d_head_v or d_head) <= 128 else (4, 8),
        "async_copy": (True,),
        "eager_load_blocks": (True,),
        "swizzled": (True,),
        "Q_mma_load_K_tiles": (0, 2),
        "K_mma_load_K_tiles": (0, 2),
        "V_mma_load_K_tiles": (0, 2),
        "mma_double_buffer_loads": (False, True),
        "optimized_softmax": (False, True),
        "d_head_v": (d_head_v,),
    }
    return [cfg for cfg in expand(FlashForwardKernelConfig, axes) if should_autotune_config(cfg)]


def get_kernel_progression_configs(
    all_block_sizes: bool = False,
    *,
    dtypes: Sequence[DType] = PROGRESSION_DTYPES,
    d_head: int = 128,
    d_head_v: int = 0,
) -> list[FlashForwardKernelConfig]:
    """The `prog` ladder, step by step; with `all_block_sizes` each step at every block size
    with B_c ≤ B_r and, for 128 rows, with 8 warps as well as 4."""
    steps = [
        dataclasses.replace(parse_short_form(step), dtype=dtype, d_head=d_head, d_head_v=d_head_v)
        for dtype in dtypes
        for step in PROGRESSION
    ]
    if not all_block_sizes:
        return steps
    blocks = [
        (B_r, B_c, n_warps)
        for B_r, B_c, n_warps in itertools.product((128, 64), (128, 64, 32), (4, 8))
        if B_c <= B_r and (n_warps == 4 or B_r == 128)
    ]
    return [
        dataclasses.replace(step, B_r=B_r, B_c=B_c, n_warps=n_warps)
        for step in steps
        for B_r, B_c, n_warps in blocks
    ]


def get_kernels_to_build(
    dtypes: Sequence[DType] | None = None, *, d_head: int = 128, d_head_v: int = 0
) -> list[FlashForwardKernelConfig]:
    """The `all` set: `tune` and `prog` together, sorted, each config once.

    With `dtypes`, both sets are taken for these types; without, each for its own.
    """
    tune = get_autotuning_kernel_configs(dtypes or TUNE_DTYPES, d_head=d_head, d_head_v=d_head_v)
    prog = get_kernel_progression_configs(
        dtypes=dtypes or PROGRESSION_DTYPES, d_head=d_head, d_head_v=d_head_v
    )
    return sorted({*tune, *prog})


def get_kernel_configs(
    kernels_key: str = "",
    *,
    dtypes: Sequence[DType] | None = None,
    d_head: int = 128,
    d_head_v: int = 0,
) -> list[FlashForwardKernelConfig]:
    """The set that `kernels_key` names; an empty key is looked up in the variable KERNELS.

    A key that starts with `prog` is the ladder, and its extension if `all` is in it.
    `dtypes`, `d_head` and `d_head_v` (0: as `d_head`) re-target a set.  Raises InvalidConfig,
    listing what is allowed.
    """
    return _named_set(*_resolve(kernels_key), ALLOWED_KEYS, dtypes, (d_head, d_head_v))


def select_configs(
    key: str = "", *, dtypes: Sequence[DType] | None = None, d_head: int | None = None
) -> list[FlashForwardKernelConfig]:
    """The configs that `key` names: a set as in `get_kernel_configs`, or one config by its
    short form (or by a kernel name that holds one).

    A short form states its own dtype and d_head; raises InvalidConfig if `dtypes` or `d_head`
    say otherwise.  Without d_head in the short form, `d_head` or else 128 is meant.
    """
    key, source = _resolve(key)
    if "(" not in key and "{" not in key:
        allowed = f"{ALLOWED_KEYS}, or one config's short form"
        return _named_set(key, source, allowed, dtypes, (d_head or 128, 0))
    config = parse_kernel_name_into_config(key, d_head=d_head or 128)
    if d_head is not None and config.d_head != d_head:
        raise InvalidConfig(f"the config has d_head {config.d_head}, but {d_head} is asked for")
    if dtypes is not None and config.dtype not in dtypes:
        asked = ", ".join(d.name for d in dtypes)
        raise InvalidConfig(f"the config is for {config.dtype.name}, but {asked} is asked for")
    return [config]


def _resolve(key: str) -> tuple[str, str]:
    """The key, given or from the environment, and where it came from, for messages."""
    if key:
        return key.strip(), ""
    return os.environ.get(KERNELS_VARIABLE, "").strip(), f" in {KERNELS_VARIABLE}"


def _named_set(
    key: str,
    source: str,
    allowed: str,
    dtypes: Sequence[DType] | None,
    head_dims: tuple[int, int],
) -> list[FlashForwardKernelConfig]:
    d_head, d_head_v = head_dims
    if key.startswith("prog"):
        return get_kernel_progression_configs(
            "all" in key, dtypes=dtypes or PROGRESSION_DTYPES, d_head=d_head, d_head_v=d_head_v
        )
    if key in ("fast", "wide"):
        make = get_fast_configs if key == "fast" else get_wide_configs
        return make(dtypes or TUNE_DTYPES, d_head, d_head_v)
    if key == "all":
        return get_kernels_to_build(dtypes, d_head=d_head, d_head_v=d_head_v)
    tune = get_autotuning_kernel_configs(dtypes or TUNE_DTYPES, d_head=d_head, d_head_v=d_head_v)
    if key == "tune":
        return tune
    block = re.fullmatch(r"([0-9]{1,9})\s*,\s*([0-9]{1,9})", key)
    if block is None:
        problem = f"unknown kernel set {key!r}{source}" if key else "no kernel set given"
        raise InvalidConfig(f"{problem}; allowed: {allowed}")
    chosen = [c for c in tune if (c.B_r, c.B_c) == (int(block[1]), int(block[2]))]
    if not chosen:
        sizes = " ".join(f"{r},{c}" for r, c in sorted({(c.B_r, c.B_c) for c in tune}))
        raise InvalidConfig(f"no tune config has block size {key!r}{source}; there are {sizes}")
    return chosen
