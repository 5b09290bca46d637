"""Problems with given features, which say what kernels to verify are compiled for."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from fa_tune import families
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType, Workload
from fa_tune.families.base import Config
from fa_tune.operations.traits import Traits

LENGTHS = (521, 777)  # of queries and keys, beside the window
MOST_WINDOW = 16384


def example(
    common: Mapping[str, Any],
    d_head: int,
    d_head_v: int,
    dtype: DType = DType.FP16,
    *,
    causal: bool = False,
) -> Workload:
    """A problem with the fields of `common`, a mask aligned bottom-right, and lengths beyond its
    window.  Raises InvalidConfig for a window wider than MOST_WINDOW."""
    sides = [
        common[side] for side in ("window_left", "window_right") if common.get(side) is not None
    ]
    widest = max(sides, default=0)
    if widest > MOST_WINDOW:
        raise InvalidConfig(
            f"a window of {widest} keys: verify tries windows of up to {MOST_WINDOW}; kernels for "
            "wider ones are the same"
        )
    found = Workload(
        *(2, 4, 2, LENGTHS[0] + widest, LENGTHS[1] + widest, d_head, dtype),
        causal=causal,
        **{**common, "d_head_v": d_head_v},
    )
    return dataclasses.replace(found, bottom_right=found.aligned)


def is_special(workload: Workload) -> bool:
    """Whether it has features that not all families compute."""
    return not workload.is_plain or workload.packed


def examples_of(config: Config, workload: Workload) -> Iterator[tuple[str, Workload]]:
    """What kernels of a config are compiled for to compute problems like one, which is ragged, and
    a problem of each kernel's: with whole blocks, unless it is packed, and with ragged lengths."""
    family = families.of(config)
    found = Traits.parse(family.traits(config, workload))
    if not workload.packed:
        rows, keys = families.blocks(config)
        filled = dataclasses.replace(workload, seq_len_kv=-(-workload.seq_len_kv // keys) * keys)
        if Traits.parse(family.traits(config, filled)).ragged:
            q = -(-workload.seq_len_q // rows) * rows
            filled = dataclasses.replace(filled, seq_len_q=q)
        yield str(dataclasses.replace(found, ragged=False)), filled
    yield str(dataclasses.replace(found, ragged=True)), workload
