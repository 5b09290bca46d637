"""A search space: axes expanded to configs."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING
from typing import Any

from fa_tune.errors import InvalidConfig
from fa_tune.families.sm80 import FlashForwardKernelConfig

Axes = Mapping[str, Sequence[Any]]  # field → its values


def expand(axes: Axes) -> Iterator[FlashForwardKernelConfig]:
    """Every combination of the axes' values, the last field changing fastest.

    Fields nest in the config's order, whatever the order of `axes`; values keep theirs, and a
    repeated value counts once.  A field with a default may be left out.  Raises InvalidConfig
    for an unknown or missing field and for an axis without values, before the first config.
    """
    fields = dataclasses.fields(FlashForwardKernelConfig)
    names = [f.name for f in fields]
    for axis in axes:
        if axis not in names:
            near = difflib.get_close_matches(axis, names, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; fields: {', '.join(names)}"
            raise InvalidConfig(f"no config field named {axis!r}{hint}")
    missing = [f.name for f in fields if f.name not in axes and f.default is MISSING]
    if missing:
        raise InvalidConfig(f"no values given for {', '.join(missing)}")
    for axis, values in axes.items():
        if not values:
            raise InvalidConfig(f"axis {axis} has no values")
    chosen = [tuple(dict.fromkeys(axes.get(f.name, (f.default,)))) for f in fields]
    return (FlashForwardKernelConfig(*point) for point in itertools.product(*chosen))
