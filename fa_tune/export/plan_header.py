"""`csrc/core/fa_tune_plan.h`: the C structs and enums of `fa_tune.families.plan`."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

from fa_tune.core.workload import DType
from fa_tune.families.plan import ENUMS, LaunchPlan, Plan

PLAN_HEADER = "csrc/core/fa_tune_plan.h"

_HEAD = """\
// A plan: what the core needs to know of a compiled kernel to launch it.
// Generated from fa_tune/families/plan.py by `python -m fa_tune.export.config_headers`; do not
// edit.
#pragma once

#include <stdint.h>

"""


def plan_header() -> str:
    """The text of the header."""
    parts = [_HEAD]
    enums: tuple[type[IntEnum], ...] = (DType, *ENUMS)
    for enum in enums:
        parts += _enum(enum)
    for struct in (LaunchPlan, Plan):
        parts += _struct(struct)
    return "".join(parts).removesuffix("\n")


def c_name(kind: type[Any]) -> str:
    """`fa_tune_launch_plan` of LaunchPlan."""
    return f"fa_tune_{re.sub(r'(?<=[a-z])(?=[A-Z])', '_', kind.__name__).lower()}"


def _comment(kind: type[Any]) -> Iterator[str]:
    for line in inspect.cleandoc(kind.__doc__ or "").splitlines():
        yield f"// {line}".rstrip() + "\n"


def _enum(kind: type[IntEnum]) -> Iterator[str]:
    name = "fa_tune_dtype" if kind is DType else c_name(kind)
    yield from _comment(kind)
    yield f"typedef enum {name} {{\n"
    for member in kind:
        yield f"    {name.upper()}_{member.name} = {member.value},\n"
    yield f"}} {name};\n\n"


def _struct(kind: type[Any]) -> Iterator[str]:
    name = c_name(kind)
    yield from _comment(kind)
    yield f"typedef struct {name} {{\n"
    for f in dataclasses.fields(kind):
        yield from (f"    // {line}\n" for line in textwrap.wrap(f.metadata["doc"], width=93))
        yield f"    int32_t {f.name};\n"
    yield f"}} {name};\n\n"
