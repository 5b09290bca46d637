"""Attention of Hugging Face Transformers by our kernels, under a name of our own.

A model's mask function says what is hidden, and its layers may not: some never pass their window,
or do not know that they are causal.  So where the mask is causal, perhaps within a sliding window,
nothing is padded, and the last query is the last key, ours gives a mask that says so and is made
only if somebody looks into it.  Anything else is torch's attention with Transformers' own mask, or
where a layer has a soft cap or sinks, which torch's does not take, matrix products.  What neither
takes is refused.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from fa_tune.core.errors import FaTuneError, InvalidConfig, ToolMissing
from fa_tune.op import products
from fa_tune.op.api import attention
from fa_tune.op.fallback_warning import tell
from fa_tune.op.lazy_mask import LazyMask, Rule
from fa_tune.op.plans import is_capturing
from fa_tune.op.precision import autocast
from fa_tune.op.refusals import Asked, Refusals, why_not_ours
from fa_tune.op.traits import Traits, bounds

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
    if not (
        skips
        and isinstance(kv_offset, int)
        and (window is not None or (mask_function is causal_mask_function and kv_offset == 0))
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
    softcap = others.get("softcap")
    # One query sees every key, whatever the mask, but those outside its window.
    masked, windowed = causal and query.shape[2] > 1, window is not None
    traits = Traits(masked, masked or windowed, scaling, window, None, sink, softcap)
    reason = _reason(query, key, value, attention_mask, dropout, scaling, others)
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    if not reason:
        ours = partial(attention, q, k, v, **traits.of_attention)
        found, reason = _refusals.attempt(
            ours, Asked(query, key, value, traits, lse=False), (FaTuneError,)
        )
        if not reason:
            return found, None
    if reason != _MASK:
        tell(_WHO, reason)
    if sink is None and softcap is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        if attention_mask is None:
            attention_mask = _own_mask(query, key, traits)
        three = (query, key, value)
        options = {"dropout": dropout, "scaling": scaling, "is_causal": causal, **others}
        by_torch: tuple[Tensor, None] = sdpa_attention_forward(
            module, *three, attention_mask, **options
        )
        return by_torch
    if attention_mask is not None:  # which says all that is hidden
        traits = Traits(scale=scaling, sink=sink, softcap=softcap)
    out, _ = products.forward(
        *(q, k, v, traits),
        dropout_p=dropout,
        added=(attention_mask, others.get("position_bias")),
    )
    return out, None


def _own_mask(query: Tensor, key: Tensor, traits: Traits) -> Tensor | None:
    """What None stands for, True where a key is seen; None where torch's attention takes it for
    the same."""
    n_q, n_kv = query.shape[2], key.shape[2]
    first, last = bounds(traits, n_q, n_kv)
    if first is None and (last is None or n_q == n_kv):
        return None
    ahead = torch.arange(n_kv, device=query.device)
    ahead = ahead - torch.arange(n_q, device=query.device)[:, None]
    seen = ahead >= (-n_q if first is None else first)
    return (seen if last is None else seen & (ahead <= last))[None, None]


def _reason(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float,
    scaling: float | None,
    others: dict[str, Any],
) -> str:
    """Why it is not ours; "" if it is, as far as that is known."""
    if attention_mask is not None:
        return _MASK
    for name in _NOT_OURS:
        if others.get(name) is not None:
            return name
    if query.device.type not in _DEVICES:
        return f"the tensors are on the {query.device.type}"
    if key.shape[:3] != value.shape[:3]:
        return "K and V differ in batch, heads or length"
    return why_not_ours(query, key, scaling, dropout)


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
