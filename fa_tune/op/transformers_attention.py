"""Attention of Hugging Face Transformers by our kernels, under a name of our own.

A model's mask function says what is hidden, and its layers may not: some never pass their window,
or do not know that they are causal.  So where the mask is causal, perhaps within a sliding window,
nothing is padded, and the last query is the last key, ours gives a mask that says so and is made
only if somebody looks into it.  Anything else is torch's attention with Transformers' own mask, or
where a layer has a soft cap or sinks, which torch's does not take, matrix products.  What neither
takes is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from fa_tune.core.errors import FaTuneError, InvalidConfig, NoUsableVariant, ToolMissing
from fa_tune.op.api import attention
from fa_tune.op.fallback_warning import tell
from fa_tune.op.lazy_mask import LazyMask, Rule
from fa_tune.op.operands import HALF
from fa_tune.op.plans import is_capturing
from fa_tune.op.precision import autocast
from fa_tune.op.refusals import Refusals
from fa_tune.op.traits import Traits

_MASK = "a mask"  # which the model was asked for
_WHO = "attention of Transformers"
# What a model may ask for and our kernels do not take: `sinks` are of each query.
_NOT_OURS = ("position_bias", "cache", "sinks")
_REFUSED = ("block_indices",)  # instead of a mask
_DEVICES = ("cuda",)
_refusals = Refusals()


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
        raise ToolMissing(f"{error}: pip install -U transformers") from None
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
    """The mask of Transformers for torch's attention, a `LazyMask` where `attend` goes by its rule.

    While a graph is compiled that is None instead, which means causal, aligned bottom-right, to
    layers that say they are.  An encoder-decoder has layers that do not, and gets the mask.
    """
    from transformers.masking_utils import causal_mask_function, sdpa_mask

    mask_function = mask_function or causal_mask_function
    skips = others.pop("allow_is_causal_skip", True)

    def made() -> Any:
        return sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            allow_is_causal_skip=False,  # its None is aligned top-left
            **others,
        )

    window = _window_of(mask_function)
    plain = mask_function is causal_mask_function and _is_zero(kv_offset)
    if not (
        skips
        and (plain or window is not None)
        and isinstance(kv_offset, int)
        and _ends_together(q_offset, q_length, kv_offset + kv_length)
        and not _is_padded(attention_mask, kv_offset + kv_length)
    ):
        found: Tensor | None = made()
        return found
    if torch.compiler.is_compiling():
        encoder = getattr(others.get("config"), "is_encoder_decoder", False)
        return made() if encoder else None
    rule = Rule(q_length, kv_length, window)
    return LazyMask(batch_size, rule, others.get("device", "cpu"), made)


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
    """Attention of a layer: [batch, heads, seq_len, d_head] to [batch, seq_len, heads, d_head].

    Raises InvalidConfig where a layer hides keys by anything but a mask.
    """
    for name in _REFUSED:
        if others.get(name) is not None:
            raise InvalidConfig(f"attention of Transformers with {name} is not supported")
    query, key, value = autocast(query, key, value)  # a rotary embedding may make fp32 of them
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    window = others.get("sliding_window")
    if isinstance(attention_mask, LazyMask):
        rule = attention_mask.rule
        if rule is not None and (rule.n_q, rule.n_kv) == (query.shape[2], key.shape[2]):
            causal, window, attention_mask = True, rule.window, None
        else:
            attention_mask = attention_mask.tensor
    window = window - 1 if causal and window is not None and window < key.shape[2] else None
    sink = others.get("s_aux") if others.get("sinks") is None else others["sinks"]
    bias, softcap = others.get("position_bias"), others.get("softcap")
    requested = _Requested(causal, scaling, dropout, window, sink, softcap, bias)
    reason = _reason(query, key, value, attention_mask, dropout, others)
    # One query sees every key, whatever the mask, but those outside its window.
    masked, windowed = causal and query.shape[2] > 1, window is not None
    traits = Traits(masked, masked or windowed, scaling, window, None, sink, softcap)
    reason = reason or _refusals.reason(query, key, value, traits, lse=False)
    if not reason:
        three = (t.transpose(1, 2) for t in (query, key, value))
        try:
            found = attention(
                *three,
                causal=traits.causal,
                bottom_right=traits.bottom_right,
                softmax_scale=scaling,
                window=(window, None),
                sink=sink,
                softcap=softcap,
            )
        except FaTuneError as error:
            reason = str(error)
            if isinstance(error, NoUsableVariant):
                _refusals.remember(query, key, value, traits, reason, lse=False)
        else:
            return found, None
    if reason != _MASK:
        tell(_WHO, reason)
    if attention_mask is None:
        attention_mask = _own_mask(query, key, requested)
    if requested.sink is not None or requested.softcap is not None:
        return _by_products(query, key, value, attention_mask, requested), None
    return _by_torch(module, query, key, value, attention_mask, requested, others)


@dataclass(frozen=True)
class _Requested:
    """What a layer asks for.  `window`: keys before its own that a query sees, None: all.
    `sink`: [heads], or [batch, heads, seq_len_q, 1]; `bias`: what is added to capped scores."""

    causal: bool
    scaling: float | None
    dropout: float
    window: int | None
    sink: Tensor | None
    softcap: float | None
    bias: Tensor | None


def _own_mask(query: Tensor, key: Tensor, requested: _Requested) -> Tensor | None:
    """What None stands for, True where a key is seen; None where torch's attention takes it for
    the same."""
    n_q, n_kv = query.shape[2], key.shape[2]
    by_products = requested.sink is not None or requested.softcap is not None
    needed = by_products or requested.window is not None or n_q != n_kv
    if not requested.causal or not needed or (n_q == 1 and requested.window is None):
        return None
    ahead = torch.arange(n_kv, device=query.device)
    ahead = ahead - torch.arange(n_kv - n_q, n_kv, device=query.device)[:, None]
    seen = ahead <= 0
    if requested.window is not None:
        seen = seen & (ahead >= -requested.window)
    return seen[None, None]


def _by_torch(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    requested: _Requested,
    others: dict[str, Any],
) -> tuple[Tensor, None]:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    found: tuple[Tensor, None] = sdpa_attention_forward(
        *(module, query, key, value, attention_mask),
        dropout=requested.dropout,
        scaling=requested.scaling,
        is_causal=requested.causal,
        **others,
    )
    return found


def _by_products(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, requested: _Requested
) -> Tensor:
    group = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(group, 1) for t in (key, value))
    scale = query.shape[3] ** -0.5 if requested.scaling is None else requested.scaling
    scores = (query @ key.transpose(2, 3)).float() * scale
    if requested.softcap is not None:
        scores = requested.softcap * torch.tanh(scores / requested.softcap)
    if requested.bias is not None:
        scores = scores + requested.bias
    if mask is not None:
        # No row is left without a key: its result is not looked at.
        hidden = torch.finfo(scores.dtype).min
        scores = scores.masked_fill(~mask, hidden) if mask.dtype == torch.bool else scores + mask
    if requested.sink is not None:
        sink = requested.sink.float()
        sink = sink if sink.ndim == 4 else sink[None, :, None, None]
        scores = torch.cat((scores, sink.expand(*scores.shape[:3], 1)), -1)
    weights = scores.softmax(-1)[..., : key.shape[2]].to(value.dtype)
    weights = torch.nn.functional.dropout(weights, requested.dropout)
    return (weights @ value).transpose(1, 2).contiguous()


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
    if query.dtype not in HALF:
        return f"{query.dtype} is neither fp16 nor bf16"
    if key.shape[:3] != value.shape[:3]:
        return "K and V differ in batch, heads or length"
    return ""


def _window_of(mask_function: Any) -> int | None:
    """The keys that a query sees, its own included, if it is Transformers' causal mask within a
    sliding window, and nothing more.  None while a graph is compiled, which cannot look into
    functions."""
    if torch.compiler.is_compiling():
        return None
    from transformers import masking_utils

    like = masking_utils.sliding_window_causal_mask_function(1)
    if getattr(mask_function, "__code__", None) is not like.__code__:
        return None
    (of_like,), (of_this,) = (
        [cell.cell_contents for cell in function.__closure__] for function in (like, mask_function)
    )
    same = len(of_this) == len(of_like) and all(
        a is b or (a.__code__ is b.__code__ and a.__closure__ is not None)
        for a, b in zip(of_this, of_like, strict=True)
    )
    if not same:
        return None
    (window,) = (cell.cell_contents for cell in of_this[0].__closure__)
    return window if isinstance(window, int) and window > 0 else None


def _is_zero(offset: Any) -> bool:
    return isinstance(offset, int) and offset == 0


def _ends_together(q_offset: Any, q_length: int, kv_length: int) -> bool:
    """Whether the last query is the last key; False where only the device knows and cannot be
    asked."""
    if isinstance(q_offset, Tensor):
        if _cannot_be_read(q_offset):
            return False
        q_offset = int(q_offset)
    return bool(q_offset + q_length == kv_length)


def _is_padded(attention_mask: Tensor | None, kv_length: int) -> bool:
    if attention_mask is None:
        return False
    if attention_mask.shape[-1] < kv_length:  # Transformers takes the rest for hidden
        return True
    if _cannot_be_read(attention_mask):
        return True  # who knows
    return not bool(attention_mask[:, :kv_length].all())


def _cannot_be_read(tensor: Tensor) -> bool:
    """Whether reading a tensor would break a graph that is compiled or captured, or it has no
    numbers."""
    return torch.compiler.is_compiling() or is_capturing() or isinstance(tensor, FakeTensor)
