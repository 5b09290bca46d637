"""What a profiled kernel's name tells: which kernel it is, and parts of its workload."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fa_tune import families, libraries
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import REFERENCE_FAMILY, Variant
from fa_tune.core.workload import FORWARD, DType, Workload
from fa_tune.families.base import Config
from fa_tune.families.plan import GridShape
from fa_tune.libraries import blocks_of_kernel, label_of, label_of_kernel
from fa_tune.operations.traits import Traits
from fa_tune.store.table.rows import BASELINE_LABEL


@dataclass(frozen=True)
class KernelIdentity:
    """A kernel by its label (short form, reference label, or the name as it is) and family.

    `blocks` is (query rows, key rows) of a tile; `family` is empty for a kernel nobody knows.
    """

    label: str
    family: str = ""
    blocks: tuple[int, int] | None = None
    d_head: int | None = None
    dtype: DType | None = None
    causal: bool | None = None
    op: str | None = None  # None: forward, or not known
    ragged: bool = False  # the name says that the blocks do not divide the sequence
    plain: bool = True  # False where the name says that more than the workload was computed

    @property
    def is_ours(self) -> bool:
        """Whether a family's kernel is meant."""
        return self.family not in ("", REFERENCE_FAMILY)

    @property
    def threads(self) -> int | None:
        """The threads of a block, where the name says them."""
        return families.threads(self._config) if self.is_ours else None

    @property
    def _config(self) -> Config:
        return families.config_of(Variant(self.family, self.label))

    def implied_shape(self, grid: tuple[int, int, int] | None) -> GridShape | None:
        """What a launch's grid tells of its workload; None if nothing."""
        if grid is not None and self.is_ours:
            return families.grid_shape(self._config, grid)
        # Of the references, FlashAttention 2's forward kernel alone has a grid that tells.
        if grid is None or self.label != BASELINE_LABEL or self.blocks is None:
            return None
        query_blocks, batch, heads = grid
        return GridShape(query_blocks, heads, batch)

    def required_shape(self, workload: Workload | None) -> GridShape | None:
        """What a workload asks of the grid; None if it or the kernel's blocks are unknown."""
        if workload is None or self.blocks is None:
            return None
        rows, heads = workload.seq_len_q, workload.heads
        if self.family == REFERENCE_FAMILY and rows == 1:
            # FlashAttention 2 makes queries of the heads that share a head of keys.
            rows, heads = heads // workload.kv_heads, workload.kv_heads
        return GridShape(-(-rows // self.blocks[0]), heads, workload.batch)


# Flash_fwd_kernel_traits<d_head, B_r, B_c, …>, and after it the switches of FlashAttention 2's
# forward kernel.  The head dimension may be padded, which is_even_K tells.
_FA2 = re.compile(
    r"flash_fwd_kernel<\S*?Flash_fwd_kernel_traits<(?:\(int\))?(?P<d_head>\d+)\s*,.*?>\s*>"
    r"(?P<switches>(?:\s*,\s*(?:\(bool\))?\w+)*)"
)
_FA2_SWITCHES = ("dropout", "causal", "window", "ALiBi", "even_MN", "even_K")
_FA2_SOFTCAP = 6  # its place, where there are eight switches
# What makes another problem of the same lengths.
_OTHER_PROBLEMS = ("dropout", "window", "ALiBi", "softcap")
_TRUE = {"1", "true"}
_FALSE = {"0", "false"}


def identify(kernel_name: str) -> KernelIdentity:
    """The kernel of a demangled name, short form or label; never raises."""
    try:
        config = families.parse(kernel_name)
        traits = Traits.in_kernel_name(kernel_name) or Traits()
    except InvalidConfig:
        pass
    else:
        family = families.of(config)
        return KernelIdentity(
            str(config),
            family.name,
            families.blocks(config),
            config.d_head,
            config.dtype,
            traits.causal,
            None if family.operation == FORWARD else family.operation,
            traits.ragged,
        )
    key = label_of_kernel(kernel_name)
    if key is None:
        return KernelIdentity(kernel_name)
    found = _FA2.search(kernel_name)
    switches = _fa2_switches(found["switches"]) if found else {}
    others = [name for name in _OTHER_PROBLEMS if switches.get(name)]
    return KernelIdentity(
        " ".join([label_of(key) + _part(kernel_name), *others]),
        REFERENCE_FAMILY,
        blocks_of_kernel(kernel_name),
        int(found["d_head"]) if found and switches.get("even_K", True) else None,
        _reference_dtype(kernel_name) if libraries.get(key).dtype_in_names else None,
        None if switches.get("window") else switches.get("causal"),
        ragged=not switches.get("even_MN", True),
        plain=not others,
    )


def _fa2_switches(text: str) -> dict[str, bool]:
    """Which of them are on; empty for a name that shows none or none that can be told."""
    words = [re.sub(r"\(bool\)", "", part).strip() for part in text.split(",")[1:]]
    if not set(words) <= _TRUE | _FALSE:
        return {}
    switches = dict(zip(_FA2_SWITCHES, (word in _TRUE for word in words), strict=False))
    if len(words) > _FA2_SOFTCAP + 1:
        switches["softcap"] = words[_FA2_SOFTCAP] in _TRUE
    return switches


def _part(kernel_name: str) -> str:
    """Which part of the reference's call this is; a part's time is not the call's."""
    if re.search("combine", kernel_name, re.IGNORECASE):
        return " combine"
    return " split-KV" if "splitkv" in kernel_name.lower() else ""


def _reference_dtype(kernel_name: str) -> DType | None:
    if re.search(r"bfloat16|bf16", kernel_name, re.IGNORECASE):
        return DType.BF16
    if re.search(r"half_t|float16|[^b]f16|fp16|__half", kernel_name, re.IGNORECASE):
        return DType.FP16
    return None
