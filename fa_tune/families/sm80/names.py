"""From a kernel's name, however a tool or a person spells it, to its config or label.

    short form       (FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles
    demangled        …<FlashForwardKernelConfig{5, 128, 64, 64, 4, 1, 1, 1, 2, 2, 2, 0, 0}>…
    with types       …<FlashForwardKernelConfig{(DType)5, (int)128, …, (bool)0}>…

Every function raises InvalidConfig with one line that says what was not understood.
"""

from __future__ import annotations

from fa_tune.core.errors import InvalidConfig
from fa_tune.families.name_parser import NameParser
from fa_tune.families.sm80.config import FlashForwardKernelConfig
from fa_tune.libraries import label_of_kernel

_PARSER = NameParser(FlashForwardKernelConfig, "sm80")


def parse_short_form(text: str, *, d_head: int = 128) -> FlashForwardKernelConfig:
    """The config of a short form, alone, quoted or as one cell of a table or CSV row.

    `d_head` is used when the tuple has four values, `(FP16, 64, 64, 4)`.
    """
    return _PARSER.short_form(text, d_head=d_head)


def parse_demangled(text: str) -> FlashForwardKernelConfig:
    """The config in a demangled name whose values are bare: `5, 128, …, 1` or `…, true`."""
    return _PARSER.demangled(text)


def parse_demangled_typed(text: str) -> FlashForwardKernelConfig:
    """The config in a demangled name whose values carry types: `(int)128, (bool)1`."""
    return _PARSER.demangled_typed(text)


def parse_kernel_name_into_config(text: str, *, d_head: int = 128) -> FlashForwardKernelConfig:
    """The config in `text`, in any of the three forms."""
    return _PARSER.parse(text, d_head=d_head)


def short_label(kernel_name: str) -> str:
    """What a report calls a kernel: its config's short form, a known reference kernel's
    label, or the name as it is.  Never raises."""
    try:
        return parse_kernel_name_into_config(kernel_name).short_form()
    except InvalidConfig:
        return label_of_kernel(kernel_name) or kernel_name
