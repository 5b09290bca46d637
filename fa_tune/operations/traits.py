"""Compile-time facts of a workload: what it does not use is not in the code."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import FIELDS

_STRUCT = re.compile(r"WorkloadTraits\{([^{}]*)\}")
_TRUE = {"1", "true"}
_FALSE = {"0", "false"}
_UNKNOWN = "unknown"  # a hook of which only the kernel's name is left
_HOOK = re.compile(rf"hook_([0-9a-f]{{16}}|{_UNKNOWN})")
_FIRST_TRAITS = 3  # of the first release


@dataclass(frozen=True, order=True)
class Traits:
    """The C++ `WorkloadTraits`, field for field; `hook` is the digest of a score hook
    (`core.hooks`) or "".  Text form: `plain`, or the names of the traits that are on, joined by `+`
    (`causal+ragged`), a hook last as `hook_` and its digest."""

    causal: bool = False
    ragged: bool = False
    lse: bool = False
    window: bool = False
    sink: bool = False
    softcap: bool = False
    alibi: bool = False
    hook: str = ""
    packed: bool = False

    def __str__(self) -> str:
        names = [f.name for f in fields(self) if f.name != "hook" and getattr(self, f.name)]
        return "+".join(names + [f"hook_{self.hook}"] * bool(self.hook)) or "plain"

    @classmethod
    def parse(cls, text: str) -> Traits:
        """Read the text form back; raises InvalidConfig."""
        if text == "plain":
            return cls()
        words = text.split("+")
        hook = ""
        if found := _HOOK.fullmatch(words[-1]):
            hook = found[1]
            words.pop()
        known = {f.name for f in fields(cls)} - {"hook"}
        if (not words and not hook) or set(words) - known or len(set(words)) != len(words):
            raise InvalidConfig(f"not traits: {text!r}; allowed: plain, {', '.join(sorted(known))}")
        flags: dict[str, Any] = dict.fromkeys(words, True)
        return cls(**flags, hook=hook)

    @classmethod
    def in_kernel_name(cls, text: str) -> Traits | None:
        """From the `WorkloadTraits{…}` in a demangled kernel name, values as 1/0 or true/false,
        with or without their type; None if there is no such struct.  A kernel of an older release
        has fewer, and none of the others.  Raises InvalidConfig for one whose values are no
        traits."""
        found = _STRUCT.search(text)
        if found is None:
            return None
        values = [re.sub(r"^\(\w+\)", "", v.strip()) for v in found[1].split(",")]
        known = _FIRST_TRAITS <= len(values) <= len(fields(cls))
        if not known or not set(values) <= _TRUE | _FALSE:
            raise InvalidConfig(f"not traits: {found[0][:80]!r}")
        names = [f.name for f in fields(cls)]
        on: dict[str, Any] = {n: v in _TRUE for n, v in zip(names, values, strict=False)}
        hooked = on.pop("hook", False)
        return cls(**on, hook=_UNKNOWN if hooked else "")

    def to_cpp_struct(self) -> str:
        """The C++ literal."""
        values = ("true" if getattr(self, f.name) else "false" for f in fields(self))
        return f"WorkloadTraits{{{', '.join(values)}}}"


# Traits that are fields of a workload which have another value than the usual one.
OF_FIELDS = tuple(f.name for f in fields(Traits) if f.name in FIELDS and f.name != "causal")
