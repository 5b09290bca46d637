"""Attention of Hugging Face Transformers by our kernels, under a name of our own.

A model's mask function says whether a mask is needed.  Ours gives None, which here means causal and
aligned bottom-right, where the mask is plainly causal, nothing is padded, and the last query is the
last key.  Anything else is torch's attention with Transformers' own mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fa_tune.core.errors import FaTuneError, InvalidConfig, NoUsableVariant, ToolMissing
from fa_tune.op.api import attention
from fa_tune.op.fallback import tell

_MASK = "a mask"  # which the model was asked for
_WHO = "attention of Transformers"
# What a model may ask for and torch's attention takes, too.
_NOT_OURS = ("position_bias", "cache", "softcap", "s_aux")
_DEVICES = ("cuda",)
_DTYPES = (torch.float16, torch.bfloat16)
_refused: dict[tuple[int, int, torch.dtype], str] = {}


def register_transformers(name: str = "fa_tune") -> None:
    """Make `attn_implementation=name` a choice for models of Transformers, also by
    `model.set_attn_implementation(name)`.

    Raises InvalidConfig for a name that Transformers treats as a library's, ToolMissing without
    Transformers.
    """
    if "flash" in name or name in ("sdpa", "eager") or "|" in name:
        raise InvalidConfig(f"Transformers has a meaning of its own for the name {name!r}")
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise ToolMissing(f"no Transformers with an AttentionInterface: {error}") from None
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, mask)


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Any = None,
    attention_mask: Tensor | None = None,
    **others: Any,
) -> Tensor | None:
    """None where `attend` needs no mask, else that of Transformers for torch's attention."""
    from transformers.masking_utils import causal_mask_function, sdpa_mask

    plain = mask_function is None or mask_function is causal_mask_function
    if (
        plain
        and _is_zero(kv_offset)
        and _ends_together(q_offset, q_length, kv_length)
        and not _is_padded(attention_mask, kv_length)
    ):
        return None
    others["allow_is_causal_skip"] = False  # its None is aligned top-left
    found: Tensor | None = sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=causal_mask_function if mask_function is None else mask_function,
        attention_mask=attention_mask,
        **others,
    )
    return found


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of a layer: [batch, heads, seq_len, d_head] to [batch, seq_len, heads, d_head]."""
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    reason = _reason(query, key, value, attention_mask, dropout, others)
    if not reason:
        three = (t.transpose(1, 2) for t in (query, key, value))
        # One query sees every key, whatever the mask.
        masked = causal and query.shape[2] > 1
        try:
            found = attention(*three, causal=masked, bottom_right=masked, softmax_scale=scaling)
        except FaTuneError as error:
            reason = str(error)
            if isinstance(error, NoUsableVariant):
                _refused[query.shape[3], value.shape[3], query.dtype] = reason
        else:
            return found, None
    if reason != _MASK and not torch.compiler.is_compiling():
        tell(_WHO, reason)
    return _by_torch(module, query, key, value, attention_mask, dropout, scaling, causal, others)


def _by_torch(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float,
    scaling: float | None,
    causal: bool,
    others: dict[str, Any],
) -> tuple[Tensor, None]:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    n_q, n_kv = query.shape[2], key.shape[2]
    if attention_mask is None and causal and 1 < n_q < n_kv:  # torch's would be aligned top-left
        seen = torch.ones(n_q, n_kv, dtype=torch.bool, device=query.device)
        attention_mask = seen.tril(n_kv - n_q)[None, None]
    found: tuple[Tensor, None] = sdpa_attention_forward(
        *(module, query, key, value, attention_mask),
        dropout=dropout,
        scaling=scaling,
        is_causal=causal,
        **others,
    )
    return found


def _reason(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float,
    others: dict[str, Any],
) -> str:
    """Why it is not ours; "" if it is, as far as that is known."""
    if attention_mask is not None:
        return _MASK
    if dropout:
        return "dropout"
    for name in _NOT_OURS:
        if others.get(name) is not None:
            return name
    if query.device.type not in _DEVICES:
        return f"the tensors are on the {query.device.type}"
    if query.dtype not in _DTYPES:
        return f"{query.dtype} is neither fp16 nor bf16"
    if key.shape[:3] != value.shape[:3]:
        return "K and V differ in batch, heads or length"
    return _refused.get((query.shape[3], value.shape[3], query.dtype), "")


def _is_zero(offset: Any) -> bool:
    return isinstance(offset, int) and offset == 0


def _ends_together(q_offset: Any, q_length: int, kv_length: int) -> bool:
    """Whether the last query is the last key; False where only the device knows, and asking it
    would break a graph that is being compiled."""
    if isinstance(q_offset, Tensor):
        if torch.compiler.is_compiling():
            return False
        q_offset = int(q_offset)
    return bool(q_offset + q_length == kv_length)


def _is_padded(attention_mask: Tensor | None, kv_length: int) -> bool:
    if attention_mask is None:
        return False
    if torch.compiler.is_compiling():
        return True  # who knows
    return not bool(attention_mask[:, :kv_length].all())
