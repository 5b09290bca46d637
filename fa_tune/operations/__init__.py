"""What is computed: an operation owns its tensors, work, compile-time traits and verification, and
has a torch side that makes inputs and what must come out.

Adding one is a package beside `forward` with a class of `operations.base.Operation`, its
`torch_side`, a line in `_OPERATIONS`, and a family that names it.
"""

from __future__ import annotations

from fa_tune.core.errors import InvalidConfig
from fa_tune.operations.base import Operation
from fa_tune.operations.forward.spec import Forward

_OPERATIONS: dict[str, Operation] = {operation.name: operation for operation in (Forward(),)}


def get(name: str) -> Operation:
    """The operation of that name (`Workload.op`); raises InvalidConfig listing the known ones."""
    try:
        return _OPERATIONS[name]
    except KeyError:
        known = ", ".join(_OPERATIONS)
        raise InvalidConfig(f"unknown operation {name!r}; known: {known}") from None
