"""From text to a config of the `decode` family.

short form    decode(BF16, 128, 16, 64, 4): stages_4+ctas_2
demangled     …<fa_tune::DecodeConfig{15, 128, 16, 64, 4, 4, 1, 2, 1, 0}, …>…
"""

from __future__ import annotations

import re

from fa_tune.core.errors import InvalidConfig
from fa_tune.families.decode.config import DecodeConfig
from fa_tune.families.name_parser import NameParser

EXAMPLE = "decode(BF16, 128, 16, 64, 4): stages_4+ctas_2"
LOOKS_LIKE = re.compile(r"\bdecode\s*\(|\bDecodeConfig\b")

_HEAD = re.compile(r"\bdecode\s*\(")
_PARSER = NameParser(DecodeConfig)


def parse(text: str, *, d_head: int = 128) -> DecodeConfig:
    """The config of a short form or of a demangled kernel name; `d_head` serves a short form
    without it.  Raises InvalidConfig."""
    if LOOKS_LIKE.search(text) is None:
        shown = " ".join(text.split())[:100]
        raise InvalidConfig(f'no decode config in "{shown}"; write it like {EXAMPLE!r}')
    return _PARSER.parse(_HEAD.sub("(", text), d_head=d_head)
