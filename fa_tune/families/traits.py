"""Compile-time facts of a workload: what it does not use is not in the code."""

from __future__ import annotations

from dataclasses import dataclass, fields

from fa_tune.errors import InvalidConfig


@dataclass(frozen=True, order=True)
class Traits:
    """The C++ `WorkloadTraits`, field for field.  Text form: `plain`, or the names of the
    traits that are on, joined by `+` (`causal+ragged`)."""

    causal: bool = False
    ragged: bool = False
    lse: bool = False

    def __str__(self) -> str:
        return "+".join(f.name for f in fields(self) if getattr(self, f.name)) or "plain"

    @classmethod
    def parse(cls, text: str) -> Traits:
        """Read the text form back; raises InvalidConfig."""
        if text == "plain":
            return cls()
        words = text.split("+")
        known = {f.name for f in fields(cls)}
        if not words or set(words) - known or len(set(words)) != len(words):
            raise InvalidConfig(f"not traits: {text!r}; allowed: plain, {', '.join(sorted(known))}")
        return cls(**dict.fromkeys(words, True))

    def to_cpp_struct(self) -> str:
        """The C++ literal."""
        values = ("true" if getattr(self, f.name) else "false" for f in fields(self))
        return f"WorkloadTraits{{{', '.join(values)}}}"
