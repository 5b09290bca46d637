"""What torch knows of operations: inputs, what must come out, and whether it did.  Children import
it alone."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, cast

import torch

from fa_tune import operations
from fa_tune.core.model import CaseError
from fa_tune.core.workload import Workload
from fa_tune.operations.base import NORMAL, CheckCase, Figures, Launch, Problem, Tensors
from fa_tune.operations.verification import case_error


@dataclass(frozen=True)
class Judged:
    """An output that must come out, fp64; how far each element is open; and the errors of the
    same-precision reference beyond that (None: nothing more is allowed)."""

    exact: torch.Tensor
    open: torch.Tensor
    reference: Figures | None = None

    @property
    def size(self) -> Figures:
        """Of what must come out."""
        return Figures(float(self.exact.abs().max()), float(self.exact.square().mean().sqrt()))

    def errors(self, out: torch.Tensor) -> Figures:
        """How far an output is off, beyond what is open; NaN if an element was never written, or
        is NaN.  −inf is right where it must come out.  A row is what the last dimension holds."""
        out = out.double()
        excess = (out - self.exact).abs_().sub_(self.open).clamp_(min=0)
        infinite = self.exact.isinf()
        excess = torch.where(infinite & (out == self.exact), 0.0, excess)
        of_rows = excess.square().mean(-1)
        return Figures(float(excess.max()), float(of_rows.mean().sqrt()), _alike(of_rows))


def _alike(shares: torch.Tensor) -> float:
    """How many equal shares vary as much in their sum as these: all of them if they are alike, 1 if
    all but one are nothing."""
    largest = float(shares.max())
    if not largest >= torch.finfo(shares.dtype).tiny:  # a GPU's quotients of less are NaN
        return float(shares.numel())
    shares = shares / largest
    return float(shares.sum().square() / shares.square().sum())


class TorchSide(Protocol):
    """The module `torch_side` beside that of an operation's class."""

    def inputs(
        self,
        workload: Workload,
        text: str = NORMAL,
        *,
        seed: int,
        mean: float = 0.0,
        extra_heads: int = 0,
        device: str = "cuda",
    ) -> Tensors:
        """Random inputs, the same for one seed: those of a CheckCase, `mean` added to every element
        of those that are verification's own, or those of an `InputSpec`'s text.  `extra_heads`
        above 0: no stride is the natural one.  Raises InvalidConfig for an unknown text."""

    def expected(
        self, workload: Workload, inputs: Tensors, *, precise: torch.dtype | None = None
    ) -> Mapping[str, Judged]:
        """What every output must be, by its name, computed in torch's dtype `precise` (None:
        float64)."""


def torch_side_of(workload: Workload) -> TorchSide:
    """That of a workload's operation."""
    package, _, _ = type(operations.get(workload.op)).__module__.rpartition(".")
    return cast(TorchSide, importlib.import_module(f"{package}.torch_side"))


def outputs_of(
    workload: Workload, *, fill: float | None = None, device: str = "cuda"
) -> dict[str, torch.Tensor]:
    """Room for every output of the workload's operation, filled if asked."""
    found = {}
    for spec in operations.get(workload.op).tensors(workload):
        if spec.output:
            room = torch.empty(spec.shape, dtype=spec.dtype.to_torch_dtype(), device=device)
            found[spec.name] = room if fill is None else room.fill_(fill)
    return found


def results_of(problem: Problem, launch: Launch) -> Tensors:
    """All outputs of one call; what it does not give is what the problem's room holds.  Raises
    ValueError for a result that is no output, or not of its shape and type."""
    given = launch()
    if given is None:
        return problem.outputs
    if not isinstance(given, Mapping):
        raise ValueError(f"a launch gave {type(given).__name__}, not tensors by name, or None")
    for name, tensor in given.items():
        if (room := problem.outputs.get(name)) is None:
            raise ValueError(f"there is no output {name!r}; there are {', '.join(problem.outputs)}")
        found, wanted = ((tuple(t.shape), t.dtype) for t in (tensor, room))
        if found != wanted:
            raise ValueError(f"{name} is {found[1]} {found[0]}, not {wanted[1]} {wanted[0]}")
    return {**problem.outputs, **{name: t.detach() for name, t in given.items()}}


def judge(case: CheckCase, judged: Mapping[str, Judged], outputs: Tensors) -> CaseError:
    """Whether outputs are right: the figures of the one that is nearest to its limits, or furthest
    beyond.  One that has no reference and is further off than is open counts as an infinite
    error."""
    nothing = beyond = Figures(0.0, 0.0)
    with_reference = []
    for name, out in outputs.items():
        found = judged[name].errors(out)
        theirs = judged[name].reference
        if theirs is not None:
            with_reference.append((found, theirs, judged[name].size))
        else:
            beyond = _larger(beyond, Figures(math.inf, math.inf) if found.largest > 0 else found)
    cases = [
        case_error(case, _larger(found, beyond), theirs, size)
        for found, theirs, size in with_reference or [(nothing, nothing, nothing)]
    ]
    return max(cases, key=lambda c: (not c.ok, c.max_abs_error / c.limit if c.limit else 0.0))


def _larger(a: Figures, b: Figures) -> Figures:
    """The larger of both figures of two outputs, with the rows of the first; NaN where one is."""
    largest, rms = (
        math.nan if math.isnan(x) or math.isnan(y) else max(x, y)
        for x, y in ((a.largest, b.largest), (a.rms, b.rms))
    )
    return Figures(largest, rms, a.rows)
