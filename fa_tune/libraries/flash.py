"""How FlashAttention's functions are called, whose masks are aligned bottom-right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from fa_tune.core.errors import first_line
from fa_tune.libraries.base import Library
from fa_tune.operations.base import Launch, Problem, Tensors

if TYPE_CHECKING:
    import torch

TOP_LEFT = "no causal mask aligned top-left for more queries than keys"
CUT = "no gradients of keys that a mask aligned top-left hides from all queries"
# How a package's Python code says that it has no such case.
PACKAGE_REFUSALS = (AssertionError, NotImplementedError, TypeError, ValueError)


def tensors(
    library: Library, problem: Problem
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Q, K and V as the functions take them, and the arguments that say where the sequences of a
    packed batch begin.  Raises InvalidConfig for a mask that they do not have."""
    workload, inputs = problem.workload, problem.inputs
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    if workload.packed:
        beginnings = {
            "cu_seqlens_q": inputs["cu_seqlens_q"],
            "cu_seqlens_k": inputs["cu_seqlens_kv"],
            "max_seqlen_q": workload.seq_len_q,
            "max_seqlen_k": workload.seq_len_kv,
        }
        return q[0], k[0], v[0], beginnings
    if workload.seq_len_q == workload.seq_len_kv or workload.bottom_right:
        return q, k, v, {}
    if workload.causal:
        if workload.seq_len_q > workload.seq_len_kv:
            raise library.refusal(TOP_LEFT)
        k, v = (t[:, : workload.seq_len_q] for t in (k, v))  # the others are hidden from all
    elif workload.windowed:
        raise library.refusal("no window aligned top-left")
    return q, k, v, {}


class ForwardPass(NamedTuple):
    """What backward passes take, in the order of most of them; a log-sum-exp is infinite in rows
    that see no key."""

    do: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    o: torch.Tensor
    lse: torch.Tensor


def forward_pass(library: Library, problem: Problem) -> tuple[ForwardPass, dict[str, Any]]:
    """The forward pass that is done, and the arguments of `tensors`.  Raises InvalidConfig as
    `tensors` does, and where it would leave keys out."""
    workload, inputs = problem.workload, problem.inputs
    q, k, v, given = tensors(library, problem)
    if k.shape[-3] != inputs["k"].shape[-3]:
        raise library.refusal(CUT)
    do, o, lse = (inputs[n][0] if workload.packed else inputs[n] for n in ("do", "o", "lse"))
    return ForwardPass(do, q, k, v, o, lse.abs().where(lse.isinf(), lse)), given


def gradients(problem: Problem, found: Sequence[torch.Tensor]) -> Tensors:
    """The gradients of Q, K and V that a function gave, as the outputs are."""
    like = zip(("dq", "dk", "dv"), ("q", "k", "v"), found, strict=True)
    return {name: t.view(problem.inputs[of].shape) for name, of, t in like}


def output(problem: Problem, out: torch.Tensor) -> Tensors:
    """The output [batch, seq, heads, d_v] of what a function gave."""
    return {"o": out.view(problem.inputs["q"].shape[0], -1, *out.shape[-2:])}


def call(library: Library, problem: Problem, attend: Callable[..., Any], **more: Any) -> Launch:
    """A launch of a package's function, with arguments that only it has."""
    workload = problem.workload
    q, k, v, given = tensors(library, problem)
    given |= {"causal": workload.causal, "softmax_scale": workload.softmax_scale, **more}
    if workload.softcap is not None:
        given["softcap"] = workload.softcap

    def launch() -> Tensors:
        with refusing(library):
            result = attend(q, k, v, **given)
        return output(problem, result[0] if isinstance(result, tuple) else result)

    return launch


@contextmanager
def refusing(library: Library) -> Iterator[None]:
    """What a package's Python code refuses is InvalidConfig."""
    try:
        yield
    except PACKAGE_REFUSALS as error:
        raise library.refusal(first_line(error)) from error
