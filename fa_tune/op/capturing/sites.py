"""The places where attention passes by, and the problem that the arguments of a call make."""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from fa_tune.core.tensors import is_expanded
from fa_tune.core.workload import BACKWARD, FORWARD
from fa_tune.store.capture.schema import Problem

Api = Literal["sdpa", "flash_attn", "flex_attention", "fa_tune", "torch"]
Layout = Literal["bhsd", "bshd", "mixed", "packed_qkv", "other"]

# What arguments are called by whom.
_NAMES = {
    "q": ("query", "q"),
    "k": ("key", "k", "k_cache", "kcache"),
    "v": ("value", "v", "v_cache", "vcache"),
    "mask": ("attn_mask", "attn_bias", "bias"),
    "cum_q": ("cum_seq_q", "cum_q", "cu_seqlens_q"),
    "cum_kv": ("cum_seq_k", "cum_kv", "cu_seqlens_k"),
    "longest_q": ("max_q", "longest_q", "max_seqlen_q"),
    "longest_kv": ("max_k", "longest_kv", "max_seqlen_k"),
    "lengths": ("lengths", "seqused_k", "seqlen_k", "seqlens_k"),
    "table": ("block_table",),
    "dropout": ("dropout_p", "p_dropout"),
    "causal": ("is_causal", "causal"),
    "aligned": ("bottom_right",),
    "kind_of_mask": ("custom_mask_type",),
    "scale": ("scale", "softmax_scale"),
    "left": ("window_size_left", "window_left"),
    "right": ("window_size_right", "window_right"),
    "softcap": ("softcap",),
    "slopes": ("alibi_slopes",),
    "sink": ("sink",),
    "hook": ("score_hook", "score_mod"),
    "exact": ("exact",),
    "lse": ("lse", "compute_log_sumexp"),
    "blocks": ("block_mask",),
}
_OURS = {theirs: ours for ours, names in _NAMES.items() for theirs in names}
_TUPLES = ("done", "traits", "cache", "options", "packed", "window")  # of some of these
_TELLING = {*_OURS, *_TUPLES}
_FROM_BOTTOM = 2  # the value of custom_mask_type that aligns as ours do


@dataclass(frozen=True)
class Site:
    """A function that computes attention.  `by`: what serves if nothing within it does.
    `heads_first`: tensors are [batch, heads, seq_len, d_head], else [batch, seq_len, heads, d_head]
    or packed.  `bottom_right`: how it aligns causal masks, unless an argument says."""

    name: str
    by: str
    api: Api
    op: Literal["forward", "backward"]
    parameters: tuple[str, ...]
    heads_first: bool = False
    bottom_right: bool = True
    telling: tuple[int, ...] = field(init=False)  # places of known parameters

    def __post_init__(self) -> None:
        telling = (i for i, name in enumerate(self.parameters) if name in _TELLING)
        object.__setattr__(self, "telling", tuple(telling))

    def form(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hashable:
        """What tells calls apart: all that is known of the arguments but a tensor's numbers."""
        told = [_form(args[i]) for i in self.telling if i < len(args)]
        told += [(name, _form(value)) for name, value in kwargs.items() if name in _TELLING]
        return self.name, *told

    def given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by our names, those that are known."""
        named = {**dict(zip(self.parameters, args, strict=False)), **kwargs}
        for value in [*named.values()]:
            if hasattr(value, "_asdict"):
                named |= value._asdict()
        if "window" in named:
            named["window_left"], named["window_right"] = named["window"]
        return {_OURS[name]: value for name, value in named.items() if name in _OURS}


def _form(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.get_device()
    if isinstance(value, list | tuple):
        return tuple(map(_form, value))
    return None if callable(value) else value


def of_operator(name: str, by: str, api: Api, *, heads_first: bool = False) -> Site | None:
    """The site of an operator of torch's dispatcher, such as `aten::_flash_attention_forward`; None
    where this torch has none."""
    space, _, rest = name.partition("::")
    packet = getattr(getattr(torch.ops, space), rest, None)
    if packet is None:
        return None
    parameters = tuple(argument.name for argument in packet.default._schema.arguments)
    op: Any = BACKWARD if "bwd" in rest or "backward" in rest else FORWARD
    return Site(name, by, api, op, parameters, heads_first, not heads_first)


def problem_of(site: Site, given: Mapping[str, Any]) -> Problem:
    """The problem of a call."""
    q, k, v = (_of_four(given[name], site.heads_first) for name in "qkv")
    batch, n_q, heads, d_head = q.shape
    n_kv, kv_heads, d_v = k.shape[1], k.shape[2], v.shape[3]
    total_q = total_kv = page = 0
    kind: Any = "dense"
    if given.get("cum_q") is not None:
        kind, total_q, total_kv = "packed", n_q, n_kv
        batch = len(given["cum_q"]) - 1
        n_q, n_kv = (int(given.get(f"longest_{of}") or 0) for of in ("q", "kv"))
    elif isinstance(given.get("lengths"), Tensor) or given.get("table") is not None:
        kind = "cached"
        if given.get("table") is not None:
            page = k.shape[1]
            n_kv = page * given["table"].shape[1]
    mask, text = _mask(site, given, n_q == n_kv)
    left, right = (_side(given.get(side)) for side in ("left", "right"))
    return Problem(
        op=site.op,
        api=site.api,
        kind=kind,
        device=device_name(q.device),
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        seq_len_q=n_q,
        seq_len_kv=n_kv,
        d_head=d_head,
        d_head_v=d_v,
        dtype=_word(q.dtype),
        layout=_layout(q, k, v),
        mask=mask,
        mask_tensor=text,
        window_left=left,
        window_right=None if mask.startswith("causal") else right,
        scale=_number(given.get("scale"), usual=1 / math.sqrt(d_head) if d_head else None),
        dropout=bool(given.get("dropout")),
        softcap=_number(given.get("softcap"), usual=0.0),
        alibi=given.get("slopes") is not None,
        sink=given.get("sink") is not None,
        score_mod=given.get("hook") is not None,
        exact=site.op == FORWARD and bool(given.get("exact")),
        lse=site.op == FORWARD and _wants_lse(site, given),
        total_q=total_q,
        total_kv=total_kv,
        page_size=page,
        kv_dtype="" if k.dtype == q.dtype else _word(k.dtype),
    )


def device_name(device: torch.device) -> str:
    """The model of a GPU, else the kind of device."""
    name: str = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return name


def dense_of(given: Mapping[str, Any], heads_first: bool) -> dict[str, Tensor]:
    """Q, K and V [batch, seq_len, heads, d_head]."""
    return {name: _of_four(given[name], heads_first) for name in "qkv"}


def _of_four(tensor: Tensor, heads_first: bool) -> Tensor:
    """[batch, seq_len, heads, d_head], of a packed batch [1, rows, heads, d_head]."""
    if tensor.ndim > 4:
        tensor = tensor.flatten(0, tensor.ndim - 4)
    while tensor.ndim < 4:
        tensor = tensor[None]
    return tensor.transpose(1, 2) if heads_first else tensor


def _mask(site: Site, given: Mapping[str, Any], is_square: bool) -> tuple[Any, str]:
    tensor = given.get("mask")
    if tensor is not None:
        return "tensor", f"{_word(tensor.dtype)} {[*tensor.shape]}"
    if given.get("blocks") is not None:
        return "blocks", ""
    number = given.get("kind_of_mask") or 0
    if not (given.get("causal") or number):
        return "full", ""
    aligned = given.get("aligned", site.bottom_right) or given.get("cum_q") is not None
    if number:
        aligned = number == _FROM_BOTTOM
    return "causal_br" if aligned and not is_square else "causal", ""


def _wants_lse(site: Site, given: Mapping[str, Any]) -> bool:
    if site.api == "sdpa":
        return bool(given.get("lse", True))
    if site.api == "fa_tune":
        lse = given.get("lse")
        return site.name.endswith("_lse") or isinstance(lse, Tensor) or lse is True
    return False


def _side(value: Any) -> int | None:
    return None if value is None or value < 0 else int(value)


def _number(value: Any, usual: float | None) -> float | None:
    """None for the usual one, as near as fp32 has it: d ** -0.5 and 1 / sqrt(d) differ in fp64."""
    if value is None or not math.isfinite(value):
        return None
    is_usual = usual is not None and math.isclose(value, usual, rel_tol=2**-23)
    return None if is_usual else float(value)


def _word(dtype: torch.dtype) -> str:
    text: str = str(dtype)
    return text.removeprefix("torch.")


def _layout(q: Tensor, k: Tensor, v: Tensor) -> Layout:
    """Of tensors [batch, seq_len, heads, d_head]."""
    three = q, k, v
    rows_first, heads_first = (
        [t.permute(order).is_contiguous() for t in three] for order in ((0, 1, 2, 3), (0, 2, 1, 3))
    )
    if all(rows_first):
        return "bshd"
    if all(heads_first):
        return "bhsd"
    if all(map(operator.or_, rows_first, heads_first)):
        return "mixed"
    one = q.untyped_storage().data_ptr()
    if all(t.untyped_storage().data_ptr() == one and not is_expanded(t) for t in three):
        return "packed_qkv"
    return "other"
