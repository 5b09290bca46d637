"""The operators by their schemas, with what compilers must know of them.

    fa_tune::fwd      out
    fa_tune::fwd_lse  out and the log-sum-exp, fp32 [batch, heads, seq_len_q]
    fa_tune::fwd_out  the same into tensors that are given
    fa_tune::bwd      the gradients of q, k, v and the slopes, the last empty without slopes
    fa_tune::own_bwd  those of q, k and v by kernels of our own, or a refusal
    fa_tune::scored_fwd, scored_fwd_lse, scored_fwd_out
                      the same with all traits: fewer arguments cost less of the host's time
    fa_tune::hooked_fwd, hooked_fwd_lse, hooked_fwd_out
                      the same with a score hook, by its digest
    fa_tune::packed_fwd, packed_fwd_lse, packed_fwd_out, packed_bwd, packed_own_bwd
                      the same of packed batches, whose log-sum-exp is [heads, total_q]
    fa_tune::hooked_packed_fwd, hooked_packed_fwd_lse, hooked_packed_fwd_out
                      the same with a score hook

Q, K and V are [batch, seq_len, heads, d_head], of a packed batch [rows, heads, d_head]; out is like
Q with the d_head of V.  New tensors are contiguous.  The traits (`fa_tune.op.traits`) come last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from fa_tune.core.errors import InvalidConfig
from fa_tune.op.operands import Done, Gradients, Lengths
from fa_tune.op.traits import HOOKED_SCHEMA, PLAIN_SCHEMA, SCHEMA, Traits

_QKV = "Tensor q, Tensor k, Tensor v"
_LENGTHS = "Tensor cum_q, Tensor cum_kv, SymInt longest_q, SymInt longest_kv"
_ROOM = "Tensor(a!) out, Tensor(b!)? lse"
_DONE = f"Tensor grad_out, {_QKV}, Tensor out, Tensor lse, Tensor? grad_lse"
_SLOPES_GRAD = "bool slopes_grad=True"
_GRADIENTS = "(Tensor, Tensor, Tensor, Tensor)"
N_DONE, N_LENGTHS, N_TRAITS = len(Done._fields), len(Lengths._fields), len(Traits._fields)
# Kept: with the object, what it registered would go.
LIBRARY = torch.library.Library("fa_tune", "DEF")


def room_for_out(q: Tensor, v: Tensor) -> Tensor:
    """A new tensor for the result."""
    return q.new_empty((*q.shape[:-1], v.shape[-1]))


def room_for_lse(q: Tensor) -> Tensor:
    """A new tensor for the log-sum-exp."""
    rows = (*q.shape[:-3], q.shape[-2], q.shape[-3]) if q.ndim in (3, 4) else (0,)
    return q.new_empty(rows, dtype=torch.float32)


def _fake_out(q: Tensor, k: Tensor, v: Tensor, *_: object) -> Tensor:
    return room_for_out(q, v)


def _fake_lse(q: Tensor, k: Tensor, v: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return room_for_out(q, v), room_for_lse(q)


def _fake_bwd(grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *others: Any) -> Gradients:
    slopes = Traits(*others[N_DONE - 4 :][:N_TRAITS]).alibi_slopes
    three = (q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape))
    return (*three, q.new_empty(0 if slopes is None else slopes.shape, dtype=torch.float32))


def _fake_packed_bwd(*given: Any) -> Gradients:
    return _fake_bwd(*given[:N_DONE], *given[N_DONE + N_LENGTHS :])


# What is given before the results' room and after it.
_KINDS = {
    "": ((), PLAIN_SCHEMA),
    "scored_": ((), SCHEMA),
    "hooked_": ((), HOOKED_SCHEMA),
    "packed_": ((_LENGTHS,), SCHEMA),
    "hooked_packed_": ((_LENGTHS,), HOOKED_SCHEMA),
}
_RESULTS: dict[str, tuple[tuple[str, ...], str, Callable[..., Any]]] = {
    "fwd": ((), "Tensor", _fake_out),
    "fwd_lse": ((), "(Tensor, Tensor)", _fake_lse),
    "fwd_out": ((_ROOM,), "()", lambda *_: None),
}
FORWARD = tuple(kind + name for kind in _KINDS for name in _RESULTS)
HOOKED = tuple(name for name in FORWARD if name.startswith("hooked"))  # in Python wherever


def _no_gpu(*args: Tensor, **_: object) -> NoReturn:
    raise InvalidConfig(f"Q, K, V must be on a GPU; Q is on {args[0].device}")


def _define(name: str, given: tuple[str, ...], result: str, fake: Callable[..., Any]) -> None:
    schema = f"{name}({', '.join(given)}) -> {result}"
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.register_fake(f"fa_tune::{name}", fake, lib=LIBRARY)
    LIBRARY.impl(name, _no_gpu, "CPU")


for _kind, (_before, _traits) in _KINDS.items():
    for _name, (_room, _result, _fake) in _RESULTS.items():
        _define(_kind + _name, (_QKV, *_before, *_room, _traits), _result, _fake)
_define("bwd", (_DONE, HOOKED_SCHEMA, _SLOPES_GRAD), _GRADIENTS, _fake_bwd)
for _name, _more in (("own_bwd", ()), ("packed_own_bwd", (_LENGTHS,))):
    _define(_name, (_DONE, *_more, SCHEMA), "(Tensor, Tensor, Tensor)", lambda *given: given[1:4])
_define("packed_bwd", (_DONE, _LENGTHS, HOOKED_SCHEMA, _SLOPES_GRAD), _GRADIENTS, _fake_packed_bwd)
