"""torch's `scaled_dot_product_attention` by our kernels, of a program as it is.

torch asks its backends in an order of priority; the flash backend's operator is overridden, and put
first.  What is not ours goes where torch would have sent it.
"""

from __future__ import annotations

import threading
import warnings
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

import torch
import torch.nn.attention
from torch import Tensor
from torch.nn.attention import SDPBackend

from fa_tune.core.errors import FaTuneError, ToolMissing
from fa_tune.op import library  # noqa: F401  defines the operators
from fa_tune.op.backward import Mask, of_torch
from fa_tune.op.fallback_warning import tell
from fa_tune.op.operands import Done, has_whole_rows
from fa_tune.op.refusals import Asked, Refusals, why_not_ours
from fa_tune.op.state import own_gradients
from fa_tune.op.traits import Traits, wants_exact

NAME = "fa_tune"
_NAME = "_scaled_dot_product_flash_attention"
_WHO = "scaled_dot_product_attention"
_fwd_out = torch.ops.fa_tune.fwd_out.default
_scored_fwd_out = torch.ops.fa_tune.scored_fwd_out.default
_lock = threading.RLock()


class Override:
    """The flash backend's operators by ours, from now on; `remove` ends it."""

    def __init__(self, dispatch_key: str = "CUDA") -> None:
        try:
            self._torchs, self._torchs_backward = (
                torch.library.get_kernel(f"aten::{name}", dispatch_key)
                for name in (_NAME, f"{_NAME}_backward")
            )
        except RuntimeError:
            raise ToolMissing(
                f"this torch has no flash attention for {dispatch_key}, whose place ours would "
                "take; install one that is built for CUDA"
            ) from None
        self._order = _flash_first() if dispatch_key == "CUDA" else None
        self._refusals = Refusals()
        self._library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():  # of an operator that is overridden
            warnings.simplefilter("ignore")
            for name, function in ((_NAME, self._attend), (f"{_NAME}_backward", self._backward)):
                self._library.impl(
                    name, function, dispatch_key, with_keyset=True, allow_override=True
                )

    def remove(self) -> None:
        if self._order is not None:
            before, ours = self._order
            if torch._C._get_sdp_priority_order() == ours:  # nobody has set another
                torch._C._set_sdp_priority_order(before)
            self._order = None
        self._library._destroy()

    def _attend(
        self,
        keys: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        return_debug_mask: bool = False,
        *,
        scale: float | None = None,
    ) -> tuple[Any, ...]:
        """The operator: tensors are [batch, heads, seq_len, d_head]."""
        query, scale, _ = _folded(query, scale)
        reason = "the debug mask is wanted" if return_debug_mask else ""
        reason = (
            reason or why_not_ours(query, key, scale, dropout_p) or _why_others(query, key, value)
        )
        if not reason:
            out = torch.empty_like(query)
            lse = query.new_empty(query.shape[:3], dtype=torch.float32)
            four = [t.transpose(1, 2) for t in (query, key, value, out)]
            traits = Traits(is_causal, scale=scale, exact=wants_exact(query, None))
            ours = partial(_fwd_out, *four, lse, is_causal, False, scale)
            if traits.exact:
                ours = partial(_scored_fwd_out, *four, lse, *traits.scored)
            asked = Asked(query, key, value, traits, lse=True)
            _, reason = self._refusals.attempt(ours, asked, (RuntimeError, FaTuneError))
            if not reason:
                return _results(query, key, out, lse)
        tell(_WHO, reason)
        if not return_debug_mask and self._suits_cudnn(query, key, value, dropout_p, is_causal):
            return _by_cudnn(query, key, value, is_causal, scale)
        results: tuple[Any, ...] = self._torchs.call_boxed(
            keys, query, key, value, dropout_p, is_causal, return_debug_mask, scale=scale
        )
        return results

    def _backward(
        self,
        keys: Any,
        grad_out: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *others: Any,
        scale: float | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The operator's backward pass, as of `attention`, but with dropout."""
        query, scale, factor = _folded(query, scale)
        out, lse, _, _, n_q, n_kv, dropout_p, is_causal, *_ = others
        three = (query, key, value)
        if dropout_p > 0 or (is_causal and n_q != n_kv):
            found = self._torchs_backward.call_boxed(keys, grad_out, *three, *others, scale=scale)
        else:
            grad, q, k, v, o = (t.transpose(1, 2) for t in (grad_out, *three, out))
            mask = Mask(right=0 if is_causal else None, scale=scale)
            done = Done(grad.contiguous(), q, k, v, o, lse)
            own = own_gradients(done, Traits(is_causal, scale=scale))
            found = (t.transpose(1, 2) for t in own or of_torch(done, mask))
        dq, dk, dv = (_like(grad, t) for grad, t in zip(found, three, strict=True))
        return dq if factor == 1 else dq * factor, dk, dv

    def _suits_cudnn(
        self, query: Tensor, key: Tensor, value: Tensor, dropout_p: float, is_causal: bool
    ) -> bool:
        """Whether torch would have taken it, and flash's backward can follow it."""
        order = self._order  # another thread may remove this
        if order is None or dropout_p > 0:
            return False
        before, _ = order
        cudnn, flash = SDPBackend.CUDNN_ATTENTION.value, SDPBackend.FLASH_ATTENTION.value
        if before.index(cudnn) > before.index(flash):
            return False
        grouped = query.shape[1] != key.shape[1]
        requested = torch.backends.cuda.SDPAParams(query, key, value, None, 0.0, is_causal, grouped)
        return bool(torch.backends.cuda.can_use_cudnn_attention(requested))


def _why_others(query: Tensor, key: Tensor, value: Tensor) -> str:
    """Why tensors are not ours that may be torch's, in a few words; "" if they may be ours."""
    if key.shape != value.shape or key.shape[1] == 0 or query.shape[1] % key.shape[1]:
        return "K and V differ in shape, or their heads do not divide Q's"
    if not all(has_whole_rows(t) for t in (query, key, value)):
        return "rows that do not start at multiples of 16 bytes"
    return ""


def _folded(query: Tensor, scale: float | None) -> tuple[Tensor, float | None, float]:
    """Queries and a positive scale of the same scores, and what queries were multiplied with:
    FlashAttention takes the largest product for the largest score."""
    if scale is None or scale > 0:
        return query, scale, 1.0
    return (-query, -scale, -1.0) if scale < 0 else (query * 0, None, 0.0)


def _like(grad: Tensor, tensor: Tensor) -> Tensor:
    """A gradient as it lies for torch's compiler: of a view, as a copy of the view would."""
    if grad.stride() == tensor.stride():
        return grad
    lies_so = grad.stride() == torch.empty_like(tensor, device="meta").stride()
    return grad if lies_so else torch.empty_like(tensor).copy_(grad)


def _results(query: Tensor, key: Tensor, out: Tensor, lse: Tensor) -> tuple[Any, ...]:
    """With a random state that nothing was drawn from, and no debug mask."""
    state = query.new_empty((2,), dtype=torch.uint64)
    unused, mask = query.new_empty((), dtype=torch.uint64), query.new_empty((0,))
    return out, lse, None, None, query.shape[2], key.shape[2], state, unused, mask


def _by_cudnn(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float | None
) -> tuple[Any, ...]:
    found = torch.ops.aten._scaled_dot_product_cudnn_attention(
        query, key, value, None, True, 0.0, is_causal, False, scale=scale
    )
    out = torch.empty_like(query)
    return _results(query, key, out.copy_(found[0]), found[1].squeeze(-1).contiguous())


def _flash_first() -> tuple[list[int], list[int]]:
    """Torch's order of backends with flash in front: the order before, and the one now."""
    if torch.cuda.is_available():
        # The first choice installs the default order, which would replace this one.
        one = torch.zeros(1, 1, 1, 8, device="cuda", dtype=torch.float16)
        torch._fused_sdp_choice(one, one, one)
    before = list(torch._C._get_sdp_priority_order())
    flash = SDPBackend.FLASH_ATTENTION.value
    ours = [flash, *(backend for backend in before if backend != flash)]
    torch._C._set_sdp_priority_order(ours)
    return before, ours


class _State:
    active: Override | None = None
    former: str | None = None  # the implementation that was active in torch's registry


def _activate() -> None:
    attention = torch.nn.attention
    if not hasattr(attention, "register_flash_attention_impl"):
        _State.active = Override()
        return

    def register() -> Override:
        _State.active = Override()
        return _State.active

    _State.former = attention.current_flash_attention_impl()
    attention.register_flash_attention_impl(NAME, register_fn=register)
    attention.activate_flash_attention_impl(NAME)


def _is_active() -> bool:
    if _State.active is None:
        return False
    current = getattr(torch.nn.attention, "current_flash_attention_impl", lambda: NAME)
    return bool(current() == NAME)  # others may have taken torch's place


def enable_sdpa() -> AbstractContextManager[Any]:
    """From now on torch's `scaled_dot_product_attention` runs our kernels where it can: fp16 and
    bf16 without dropout and without a mask but `is_causal`.  Gradients are those of torch's flash
    backend.  All else is computed as before, with one warning for each reason.

    Also a context manager: `with enable_sdpa(): …`, which ends it, unless it was enabled before.  A
    graph that is compiled follows whatever is enabled when it runs, as far as it was compiled with
    the flash backend.

    Raises ToolMissing for a torch without CUDA, or one that cannot give its own kernel back.
    """
    if not hasattr(torch.library, "get_kernel"):
        raise ToolMissing(f"torch {torch.__version__} is too old for enable_sdpa; 2.10 is not")
    with _lock:
        context = ExitStack()
        if not _is_active():
            _activate()
            context.callback(disable_sdpa)
        return context


def disable_sdpa() -> None:
    """End what `enable_sdpa` began; nothing happens if it did not."""
    with _lock:
        if not _is_active():
            return
        override, _State.active = _State.active, None
        if hasattr(torch.nn.attention, "restore_flash_attention_impl"):
            torch.nn.attention.restore_flash_attention_impl()
            if _State.former is not None:
                torch.nn.attention.activate_flash_attention_impl(_State.former)
        elif override is not None:
            override.remove()
