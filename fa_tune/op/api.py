"""Attention on tensors, and what can be asked and prepared beside it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fa_tune.core import hooks
from fa_tune.core.errors import InvalidConfig, NoUsableVariant
from fa_tune.core.tensors import workload_of
from fa_tune.core.workload import Workload
from fa_tune.op import autograd, odd_heads, state
from fa_tune.op.autograd import innermost, is_transformed
from fa_tune.op.chooser import Choice
from fa_tune.op.library import room_for_lse, room_for_out
from fa_tune.op.native import translated
from fa_tune.op.operands import note_written
from fa_tune.op.precision import autocast
from fa_tune.op.traits import Traits, check_window, of_heads, wants_exact

_ops = torch.ops.fa_tune
_PLAIN = (_ops.fwd.default, _ops.fwd_lse.default, _ops.fwd_out.default)
_SCORED = (_ops.scored_fwd.default, _ops.scored_fwd_lse.default, _ops.scored_fwd_out.default)
_HOOKED = (_ops.hooked_fwd.default, _ops.hooked_fwd_lse.default, _ops.hooked_fwd_out.default)
Window = tuple[int | None, int | None]
_EVERY: Window = (None, None)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    bottom_right: bool = False,
    softmax_scale: float | None = None,
    return_lse: bool = False,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    window: Window = _EVERY,
    sink: Tensor | None = None,
    softcap: float | None = None,
    alibi_slopes: Tensor | None = None,
    score_hook: str | None = None,
    accuracy: str | None = None,
) -> Any:
    """softmax(scale · Q Kᵀ) V, [batch, seq_len, heads, d_head of v], on the current stream.

    k and v may have fewer heads.  A causal mask is aligned top-left, with `bottom_right` so that
    the last query sees every key.  `out` and `lse`, fp32 [batch, heads, seq_len_q], contiguous,
    are written if given; `return_lse` gives (out, lse).  Rows that see no key are 0, their
    log-sum-exp is -inf.  Gradients flow through both results to q, k, v, `sink` and `alibi_slopes`;
    derivatives in forward mode are taken by matrix products, with room for all scores.  Under
    autocast, inputs are cast as for torch's attention.

    `window` (left, right): query i sees that many keys before and after its place, which is i, or
    with `bottom_right` i + seq_len_kv - seq_len_q; None: all.  `softcap` c makes scores s
    c · tanh(s / c), c from 1e-3 to 1e3.  `alibi_slopes`, [heads] or [batch, heads]: slope ·
    distance is taken from scores.  `sink` [heads]: a score that joins the sum of every row of its
    head, and the log-sum-exp.  `score_hook`: what `fa_tune.core.hooks.register` gives for a
    function of one's own that scores go through; for gradients it needs the function in torch.
    `accuracy`: fast, or exact for kernels whose largest weight is exactly 1 (docs/accuracy.md);
    None: as FA_TUNE_ACCURACY says, else fast.  In fp16 `torch.use_deterministic_algorithms` makes
    it exact.

    Raises InvalidConfig for tensors that make no such problem, for `out` or `lse` where a gradient
    is wanted, and for a problem that is new while a graph is captured (`prepare`);
    NoUsableVariant where nothing runs it.  A compiled graph raises RuntimeError at run time.

    Where the registry names a library for the problem (`search --candidates all`), that computes O
    alone of tensors that want no gradient, but not in compiled graphs.
    """
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        _refuse_others(q=q, k=k, v=v)
    if torch.is_autocast_enabled("cuda"):
        q, k, v = autocast(q, k, v)
    traits: tuple[Any, ...] = (causal, bottom_right, softmax_scale)
    wants_grad = q.requires_grad or k.requires_grad or v.requires_grad
    operators = _PLAIN
    exact = wants_exact(q, accuracy)
    changed = sink is not None or alibi_slopes is not None or softcap is not None
    if changed or exact or window != _EVERY:
        operators = _SCORED
        check_window("window", window, every=None)
        if sink is not None:
            sink = of_heads(sink, "sink")
            wants_grad = wants_grad or sink.requires_grad
        if alibi_slopes is not None:
            alibi_slopes = of_heads(alibi_slopes, "alibi_slopes")
            wants_grad = wants_grad or alibi_slopes.requires_grad
        traits = (causal, bottom_right, softmax_scale, *window, sink, softcap, alibi_slopes, exact)
    if score_hook is not None:
        operators = _HOOKED
        scores = (*window, sink, softcap, alibi_slopes, exact, score_hook)
        traits = (causal, bottom_right, softmax_scale, *scores)
        autograd.check_hook(score_hook, wants_grad=wants_grad)
    hidden = forward_ad._current_level >= 0 or innermost() is not None
    records = (wants_grad and torch.is_grad_enabled()) or (
        hidden and is_transformed(q, k, v, sink, alibi_slopes)
    )
    if records and not (out is None and lse is None):
        raise InvalidConfig("out and lse carry no gradient: leave them out, or detach")
    alone = not (records or return_lse) and out is None and lse is None
    if alone and sink is None and alibi_slopes is None and score_hook is None:
        attend = state.attend_of(q, k, v, traits)
        if attend is not None:
            return attend(q, k, v, softmax_scale)
    if not (odd_heads.known and odd_heads.has(q, v)):
        try:
            made, rows = _run(operators, q, k, v, out, lse, return_lse, records, traits)
            return (made, rows) if return_lse else made
        except (RuntimeError, NoUsableVariant) as error:
            refusal = translated(error) if isinstance(error, RuntimeError) else error
            if not odd_heads.found(refusal, q, v):
                raise refusal from None
    wide = odd_heads.filled_up(q, k, v)
    traits = (causal, bottom_right, odd_heads.scale(q, softmax_scale), *traits[3:])
    made, rows = _run(operators, *wide, None, lse, return_lse, records, traits)
    made = made[..., : v.shape[-1]] if out is None else out.copy_(made[..., : v.shape[-1]])
    return (made, rows) if return_lse else made


def _run(
    operators: tuple[Any, Any, Any],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor | None,
    lse: Tensor | None,
    return_lse: bool,
    records: bool,
    traits: tuple[Any, ...],
) -> tuple[Tensor, Tensor | None]:
    """out and, where it is wanted or has room, the log-sum-exp."""
    if records:
        return autograd.attention(q, k, v, return_lse, *traits)
    forward, forward_lse, forward_out = operators
    if out is None and lse is None:
        found: tuple[Tensor, Tensor | None]
        found = forward_lse(q, k, v, *traits) if return_lse else (forward(q, k, v, *traits), None)
        return found
    made = room_for_out(q, v) if out is None else out
    rows = room_for_lse(q) if lse is None and return_lse else lse
    forward_out(q, k, v, made, rows, *traits)
    note_written(out, lse)
    return made, rows


def prepare(
    *workloads: Workload,
    like: tuple[Tensor, Tensor, Tensor] | None = None,
    device: int | None = None,
    **problem: Any,
) -> None:
    """Compile and load the kernels of workloads on a GPU (None: torch's current one, or that of the
    tensors), so that later calls, captured ones too, find them.

    `like` is q, k, v of a call, whose further arguments are those of `attention` but the scale,
    `out` and `lse`.  A call that wants gradients computes the log-sum-exp.  Raises as `attention`.
    """
    if like is not None:
        workloads = (*workloads, _workload(*like, **problem))
        device = like[0].device.index if device is None else device
    operators = state.operators()
    device = torch.cuda.current_device() if device is None else device
    for workload in workloads:
        operators.prepare(workload, device)


def explain(q: Tensor, k: Tensor, v: Tensor, **problem: Any) -> Choice:
    """What runs a call with these tensors, and why: a Choice, whose text is one line.  It is
    compiled if it was not.  `problem`: as in `prepare`.  Raises as `attention`."""
    workload = _workload(q, k, v, **problem)
    return state.operators().plans.choice(workload, q.device.index)


def _workload(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_lse: bool = False,
    window: Window = _EVERY,
    accuracy: str | None = None,
    **problem: Any,
) -> Workload:
    _refuse_others(q=q, k=k, v=v)
    q, k, v = autocast(q, k, v)
    check_window("window", window, every=None)
    left, right = window
    exact = wants_exact(q, accuracy)
    traits = Traits(window_left=left, window_right=right, exact=exact, **problem)
    if traits.score_hook is not None:
        hooks.hook_of(traits.score_hook)
    if not q.is_cuda:
        raise InvalidConfig(f"Q, K, V must be on a GPU; Q is on {q.device}")
    return workload_of(q, k, v, lse=return_lse, **traits.of_workload)


def _refuse_others(**given: object) -> None:
    """Raise InvalidConfig for an argument that is no tensor."""
    for name, tensor in given.items():
        if not isinstance(tensor, Tensor):
            raise InvalidConfig(f"{name} must be a torch tensor, not {type(tensor).__name__}")
