"""A causal mask that is made when somebody looks into it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

_aten = torch.ops.aten
_THE_SAME = (_aten.alias.default, _aten.detach.default)


class Rule(NamedTuple):
    """The last of `n_q` queries is the last of `n_kv` keys, and each sees its own key and those
    before it, `window` in all, None: every one."""

    n_q: int
    n_kv: int
    window: int | None


class _Held:
    """A mask's tensor, shared by its aliases: what one changes, all have."""

    def __init__(self, make: Callable[[], Tensor]) -> None:
        self.make = make

    @cached_property
    def tensor(self) -> Tensor:
        return self.make()


class LazyMask(Tensor):  # type: ignore[misc]
    """A boolean mask [batch, 1, seq_len_q, seq_len_kv], True where a key is seen.

    Attention that goes by `rule` needs no memory for it.  Any operation on it gets the tensor that
    `make` gives, so a model may slice it, add to it or change it.
    """

    _told: Rule
    _held: _Held

    @staticmethod
    def __new__(
        cls, batch: int, rule: Rule, device: torch.device | str, make: Callable[[], Tensor]
    ) -> LazyMask:
        return cls._of((batch, 1, rule.n_q, rule.n_kv), rule, torch.device(device), _Held(make))

    @classmethod
    def _of(cls, shape: tuple[int, ...], rule: Rule, device: torch.device, held: _Held) -> LazyMask:
        found: LazyMask = cls._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)
        found._told, found._held = rule, held
        return found

    @property
    def rule(self) -> Rule | None:
        """What it is as a whole; None once an operation has had the tensor, which it may have
        changed."""
        return None if "tensor" in vars(self._held) else self._told

    @property
    def tensor(self) -> Tensor:
        """The mask itself."""
        return self._held.tensor

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        mask, kwargs = args[0], kwargs or {}
        if operation in _THE_SAME:
            return cls._of(mask.shape, mask._told, mask.device, mask._held)
        copies = (
            operation is _aten._to_copy.default and kwargs.get("dtype", mask.dtype) is mask.dtype
        )
        if copies and mask.rule is not None:
            make = mask._held.make  # what happens to the mask does not happen to its copy
            copied = _Held(lambda: operation(make(), **kwargs))
            return cls._of(mask.shape, mask._told, kwargs.get("device", mask.device), copied)
        args, kwargs = tree_map_only(cls, lambda mask: mask.tensor, (args, kwargs))
        return operation(*args, **kwargs)
