"""What the constraints of all families have in common: rules with a name and a sentence, and what
a config needs of a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from fa_tune.core.arch import ArchLimits
from fa_tune.core.model import Rejected

ConfigT = TypeVar("ConfigT")
Rule = tuple[str, str, Callable[[ConfigT], bool]]  # name, sentence, test


# Of all families.
_OF_ALL: tuple[Rule[Any], ...] = (
    (
        "elements_of_16_bits",
        "tensor cores are given elements of 16 bits",
        lambda c: c.dtype.size_bytes == 2,
    ),
)


def whole_chunk_groups(columns: int) -> int:
    """Columns of a row in shared memory: whole groups of four 16-byte chunks of 16-bit elements."""
    return -(-columns // 32) * 32


def chunks_at_once(columns: int) -> int:
    """16-byte chunks of a row that a pass of copies covers: kernels/common/chunks.cuh."""
    chunks = columns // 8
    return chunks & -chunks if chunks % 4 == 0 else 1 << (chunks - 1).bit_length()


def broken_rule(config: ConfigT, rules: Iterable[Rule[ConfigT]]) -> Rejected | None:
    """The first of all families' rules and of `rules` that `config` does not keep, or None."""
    for name, sentence, holds in (*_OF_ALL, *rules):
        if not holds(config):
            return Rejected(name, sentence)
    return None


def too_old(limits: ArchLimits, least: tuple[int, int], what: str = "") -> Rejected | None:
    """Why a device of a compute capability below `least` does not do: `what` needs more, or without
    it the whole family."""
    if limits.compute_capability >= least:
        return None
    needs = "{} needs sm_{}{} or later".format(what, *least).lstrip()
    return Rejected("compute_capability", f"{needs}, the device is {limits.arch}")


def not_exactly(limits: ArchLimits, needed: tuple[int, int]) -> Rejected | None:
    """Why a device of another compute capability than `needed` does not do."""
    if limits.compute_capability == needed:
        return None
    needs = "needs sm_{}{}".format(*needed)
    return Rejected("compute_capability", f"{needs}, the device is {limits.arch}")


def smem_does_not_fit(
    smem_bytes: int, limits: ArchLimits, ctas_per_sm: int = 1, knob: str = ""
) -> Rejected | None:
    """Why a CTA's dynamic shared memory is too much for so many on a multiprocessor, which the
    config says in `knob`, if it has one for that."""
    allowed = limits.smem_per_cta_bytes(ctas_per_sm)
    if smem_bytes <= allowed:
        return None
    with_knob = f" with {knob} {ctas_per_sm}" if knob else ""
    return Rejected(
        "smem_fits",
        f"needs {smem_bytes / 1024:g} KiB of shared memory, {limits.arch} allows "
        f"{allowed / 1024:g} KiB per CTA{with_knob}",
    )
