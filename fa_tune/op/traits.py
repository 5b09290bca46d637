"""What the operators are told of a problem beside its tensors of queries, keys and values."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import ACCURACIES, EXACT, FAST

# Of the operators' schemas, field by field of `Traits`: without windows and what changes scores,
# and with all.
PLAIN_SCHEMA = "bool causal=False, bool bottom_right=False, float? scale=None"
SCHEMA = (
    f"{PLAIN_SCHEMA}, SymInt? window_left=None, SymInt? window_right=None, Tensor? sink=None, "
    "float? softcap=None, Tensor? alibi_slopes=None, bool exact=False"
)
HOOKED_SCHEMA = f"{SCHEMA}, str? score_hook=None"
PLAIN_FIELDS = PLAIN_SCHEMA.count(",") + 1


def is_exact(accuracy: object, name: str = "accuracy") -> bool:
    """Whether an accuracy is `exact`.  Raises InvalidConfig for a word that is none."""
    if accuracy not in ACCURACIES:
        raise InvalidConfig(f"{name} must be {' or '.join(ACCURACIES)}, not {accuracy!r}")
    return accuracy == EXACT


EXACT_BY_DEFAULT = is_exact(os.environ.get("FA_TUNE_ACCURACY") or FAST, "FA_TUNE_ACCURACY")


def wants_exact(q: Tensor, accuracy: str | None) -> bool:
    """Whether kernels have to be exact: as `accuracy` says, or FA_TUNE_ACCURACY for None.  In fp16
    also where torch asks for the same bits always: a fast kernel may take the maxima of a tile by
    what it found in the one before, and which that is hangs on time."""
    exact = EXACT_BY_DEFAULT if accuracy is None else is_exact(accuracy)
    return exact or (q.dtype == torch.float16 and torch.are_deterministic_algorithms_enabled())


class Traits(NamedTuple):
    """How scores are masked, scaled and changed, see `attention`.

    The operators take these one by one, in this order and last, as many as they know.  `sink` and
    `alibi_slopes` are fp32 there, with contiguous heads.  A packed batch is aligned bottom-right
    whatever `bottom_right` says.
    """

    causal: bool = False
    bottom_right: bool = False
    scale: float | None = None
    window_left: int | None = None
    window_right: int | None = None
    sink: Tensor | None = None
    softcap: float | None = None
    alibi_slopes: Tensor | None = None
    exact: bool = EXACT_BY_DEFAULT
    score_hook: str | None = None

    @property
    def of_workload(self) -> dict[str, Any]:
        """The same as fields of a `Workload`, which has flags for tensors."""
        return {
            "causal": self.causal,
            "bottom_right": self.bottom_right,
            "softmax_scale": self.scale,
            "window_left": self.window_left,
            "window_right": self.window_right,
            "sink": self.sink is not None,
            "softcap": self.softcap,
            "alibi": self.alibi_slopes is not None,
            "accuracy": EXACT if self.exact else FAST,
            "score_hook": self.score_hook,
        }

    @property
    def of_attention(self) -> dict[str, Any]:
        """The same as arguments of `attention`."""
        return {
            "causal": self.causal,
            "bottom_right": self.bottom_right,
            "softmax_scale": self.scale,
            "window": (self.window_left, self.window_right),
            "sink": self.sink,
            "softcap": self.softcap,
            "alibi_slopes": self.alibi_slopes,
            "accuracy": EXACT if self.exact else FAST,
            "score_hook": self.score_hook,
        }

    @property
    def masks_only(self) -> bool:
        """Whether scores go into the softmax as they are but for scale and mask."""
        changes = (self.softcap, self.alibi_slopes, self.score_hook)
        return all(change is None for change in changes)

    @property
    def scored(self) -> tuple[Any, ...]:
        """All but the score hook, which few operators know."""
        return tuple(self[:-1])

    @property
    def tensors(self) -> tuple[Tensor | None, Tensor | None]:
        """Sinks and slopes, which may want gradients."""
        return self.sink, self.alibi_slopes

    @property
    def wants_grad(self) -> bool:
        """Whether one of its tensors does."""
        return any(t is not None and t.requires_grad for t in self.tensors)


def of_heads(tensor: Tensor, name: str) -> Tensor:
    """Sinks or slopes as the operators take them.  Raises InvalidConfig for integers, and for what
    is no tensor."""
    if not isinstance(tensor, Tensor):
        raise InvalidConfig(f"{name} must be a torch tensor, not {type(tensor).__name__}")
    if tensor.dtype is torch.float32 and tensor.is_contiguous():
        return tensor
    if not tensor.is_floating_point():
        raise InvalidConfig(f"{name} must be floating-point, not {tensor.dtype}")
    return tensor.float().contiguous()


def check_window(name: str, window: object, *, every: int | None) -> None:
    """Raise InvalidConfig for what is no pair of numbers of keys; `every` stands for all keys."""
    # A compiled graph knows that its numbers are int, but not their attributes.
    if (
        not isinstance(window, (tuple, list))
        or len(window) != 2
        or not all(s is every or isinstance(s, int) or hasattr(s, "__index__") for s in window)
    ):
        raise InvalidConfig(
            f"{name} must be two numbers of keys, (left, right), {every} for all, not {window!r}"
        )


def bounds(
    traits: Traits, seq_len_q: int, seq_len_kv: int, *, aligned: bool = False
) -> tuple[int | None, int | None]:
    """Query i sees keys i + first to i + last; None: all on that side.  `aligned`: bottom-right,
    whatever the traits say."""
    diagonal = seq_len_kv - seq_len_q if aligned or traits.bottom_right else 0
    right = 0 if traits.causal else traits.window_right
    first = None if traits.window_left is None else diagonal - traits.window_left
    return first, None if right is None else diagonal + right
