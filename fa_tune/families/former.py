"""What a family's defaults were, and what its knobs were called: `former.toml` in its folder, for
recordings, registries and notes of that time.

    [[defaults]]      a default of the past, the last first, made from the one before it in the list
    until             the date of the last recording that holds no later one
    usual             start from the family's default for the heads, whatever the sizes
    changes           where the fields are as in `when`, they become what `then` says

In `when` a list is any of its values, and true or false stands for any number but 0, or for 0.
In `then`, what is no field is a method of the config, `with_` before its name.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fa_tune.families.base import Config, KernelFamily


@cache
def file_of(family: str) -> Mapping[str, Any]:
    """What the file of a family says; empty without a file."""
    path = Path(__file__).parent / family / "former.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def former_defaults(family: KernelFamily, config: Config) -> list[Config]:
    """What was the default before this one, the last first: recordings of that time hold no
    other."""
    found = [config]
    for former in file_of(family.name).get("defaults", ()):
        before = found[-1]
        if former.get("usual"):
            before = family.default_config(config.d_head, config.dtype, d_head_v=config.d_head_v)
        for change in former.get("changes", ()):
            before = _changed(before, change.get("when", {}), change["then"])
        found.append(before)
    return [c for c in dict.fromkeys(found) if c != config]


def _changed(config: Config, when: Mapping[str, Any], then: Mapping[str, Any]) -> Config:
    if not all(_is(getattr(config, name), wanted) for name, wanted in when.items()):
        return config
    for name, value in then.items():
        if hasattr(config, name):
            kind = type(getattr(config, name))
            known = kind[value] if isinstance(value, str) else kind(value)
            config = dataclasses.replace(config, **{name: known})
        else:
            config = getattr(config, f"with_{name}")(value)
    return config


def _is(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, list):
        return value in wanted
    if isinstance(wanted, bool):
        return bool(value) is wanted
    return bool(getattr(value, "name", value) == wanted)
