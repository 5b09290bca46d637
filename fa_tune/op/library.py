"""The operators by their schemas, with what compilers must know of them.

    fa_tune::fwd      out
    fa_tune::fwd_lse  out and the log-sum-exp, fp32 [batch, heads, seq_len_q]
    fa_tune::fwd_out  the same into tensors that are given
    fa_tune::fwd_scores      out and the log-sum-exp, with a window, sinks, a soft cap or ALiBi
    fa_tune::fwd_scores_out  the same into tensors that are given
    fa_tune::bwd      the gradients of q, k and v

Q, K and V are [batch, seq_len, heads, d_head], out like Q with the d_head of V.  New tensors are
contiguous.
"""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

from fa_tune.core.errors import InvalidConfig

_SCORES = (
    "(Tensor q, Tensor k, Tensor v, bool causal, bool bottom_right, float? scale, "
    "SymInt? window_left, SymInt? window_right, Tensor? sink, float? softcap, Tensor? alibi_slopes"
)
SCHEMAS = (
    "fwd(Tensor q, Tensor k, Tensor v, bool causal, bool bottom_right, float? scale) -> Tensor",
    "fwd_lse(Tensor q, Tensor k, Tensor v, bool causal, bool bottom_right, float? scale) "
    "-> (Tensor, Tensor)",
    "fwd_out(Tensor q, Tensor k, Tensor v, bool causal, bool bottom_right, float? scale, "
    "Tensor(a!) out, Tensor(b!)? lse) -> ()",
    f"fwd_scores{_SCORES}) -> (Tensor, Tensor)",
    f"fwd_scores_out{_SCORES}, Tensor(a!) out, Tensor(b!)? lse) -> ()",
    "bwd(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, bool causal, "
    "bool bottom_right, float? scale) -> (Tensor, Tensor, Tensor)",
)
NAMES = ("fwd", "fwd_lse", "fwd_out", "fwd_scores", "fwd_scores_out", "bwd")

# Kept: with the object, what it registered would go.
LIBRARY = torch.library.Library("fa_tune", "DEF")


def _define() -> None:
    for schema in SCHEMAS:
        LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.register_fake("fa_tune::fwd", _fake_fwd, lib=LIBRARY)
    torch.library.register_fake("fa_tune::fwd_lse", _fake_fwd_lse, lib=LIBRARY)
    torch.library.register_fake("fa_tune::fwd_out", _fake_fwd_out, lib=LIBRARY)
    torch.library.register_fake("fa_tune::fwd_scores", _fake_fwd_scores, lib=LIBRARY)
    torch.library.register_fake("fa_tune::fwd_scores_out", _fake_fwd_scores_out, lib=LIBRARY)
    torch.library.register_fake("fa_tune::bwd", _fake_bwd, lib=LIBRARY)
    for name in NAMES:
        LIBRARY.impl(name, _no_gpu, "CPU")


def _fake_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    bottom_right: bool,
    scale: float | None,
) -> Tensor:
    return q.new_empty((*q.shape[:3], v.shape[3]))


def _fake_fwd_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    bottom_right: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    rows = (q.shape[0], q.shape[2], q.shape[1])
    return q.new_empty((*q.shape[:3], v.shape[3])), q.new_empty(rows, dtype=torch.float32)


def _fake_fwd_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    bottom_right: bool,
    scale: float | None,
    out: Tensor,
    lse: Tensor | None,
) -> None:
    return None


def _fake_fwd_scores(q: Tensor, k: Tensor, v: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    rows = (q.shape[0], q.shape[2], q.shape[1])
    return q.new_empty((*q.shape[:3], v.shape[3])), q.new_empty(rows, dtype=torch.float32)


def _fake_fwd_scores_out(*_: object) -> None:
    return None


def _fake_bwd(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    bottom_right: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _no_gpu(*args: Tensor, **_: object) -> NoReturn:
    raise InvalidConfig(f"Q, K, V must be on a GPU; Q is on {args[0].device}")


_define()
