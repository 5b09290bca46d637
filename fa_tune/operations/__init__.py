"""What is computed: an operation owns its tensors, work, compile-time traits and verification, and
has a torch side that makes inputs and what must come out.

Adding one is a package beside `forward`, found by itself, whose `spec` has the `OPERATION`
(`operations.base`), with its `torch_side`, and a family that names it.
"""

from __future__ import annotations

import importlib
import pkgutil

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import Workload
from fa_tune.operations.base import CheckCase, Operation
from fa_tune.operations.traits import Traits

USUAL_BLOCKS = (128, 128)


def _found() -> list[Operation]:
    packages = (module.name for module in pkgutil.iter_modules(__path__) if module.ispkg)
    return [importlib.import_module(f"{__name__}.{name}.spec").OPERATION for name in packages]


_OPERATIONS: dict[str, Operation] = {operation.name: operation for operation in _found()}


def get(name: str) -> Operation:
    """The operation of that name (`Workload.op`); raises InvalidConfig listing the known ones."""
    try:
        return _OPERATIONS[name]
    except KeyError:
        known = ", ".join(_OPERATIONS)
        raise InvalidConfig(f"unknown operation {name!r}; known: {known}") from None


def cases_like(workload: Workload, traits: str, *, thorough: bool) -> tuple[CheckCase, ...]:
    """What a kernel whose blocks nobody knows is checked on, for problems of a workload's head
    dimensions, type and `traits`."""
    w = workload
    cases = get(w.op).verification_cases(
        *(USUAL_BLOCKS, w.d_head, w.dtype, Traits.parse(traits)),
        d_head_v=w.d_head_v,
        thorough=thorough,
    )
    return tuple(cases)
