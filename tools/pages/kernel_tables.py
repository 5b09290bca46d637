"""The tables of the kernels' pages that the declarations hold already, as Markdown."""

from __future__ import annotations

import dataclasses
from dataclasses import Field
from typing import Any

from fa_tune import families
from fa_tune.core.arch import limits
from fa_tune.core.workload import BACKWARD, DType, Workload
from fa_tune.families.sm90.defaults import default_config
from recorded_files import table

USUAL = (1, 1, 1, 4096, 4096)  # of a workload
PLACES = {"Q": "1st", "K": "2nd", "V": "3rd"}


def fields(config_class: type[Any]) -> str:
    """Every field with its spelling in the short form, where that is another, and its meaning."""
    rows = [
        [", ".join(dict.fromkeys((f"`{f.name}`", *_short(f)))), f.metadata.get("doc", "")]
        for f in dataclasses.fields(config_class)
    ]
    return table(["Field, short form", "What it is"], rows, words=2)


def _short(field: Field[Any]) -> tuple[str, ...]:
    meta = field.metadata
    match meta["place"]:
        case "flag":
            return (f"`{meta['word']}`",)
        case "count" | "number":
            return (f"`{meta['word']}_2`",)
        case "tiles":
            return (f"{PLACES[field.name[0]]} number of `load_2_2_2_tiles`",)
        case "choice":
            return tuple(f"`{m.word}`" for m in meta["type"] if m is not field.default)
    return ()


def sm90_example() -> str:
    """The default config at d_head 128, the usual one."""
    return f"The default at d_head 128 is `{default_config(128, DType.FP16)}`."


def sm90_bwd_example() -> str:
    """The default configs at d_head 128, without a mask and with one."""
    family, hopper = families.get("sm90_bwd"), limits((9, 0))
    size = (16, 16, 16, 4096, 4096, 128, DType.FP16)
    usual, masked = (
        family.default_for(Workload(*size, causal=causal, op=BACKWARD), hopper)
        for causal in (False, True)
    )
    return f"The default at d_head 128 is `{usual}`, with a mask `{masked}`."


def sm80_bwd_example() -> str:
    """The default configs at d_head 128 where there is most shared memory, and least."""
    family, workload = families.get("sm80_bwd"), Workload(*USUAL, 128, DType.FP16, op=BACKWARD)
    most, least = (family.default_for(workload, limits(of)) for of in ((9, 0), (8, 9)))
    return f"The default at d_head 128 is `{most}` on compute capability 9.0, `{least}` on 8.9."
