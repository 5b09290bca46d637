"""The lengths of a packed batch, as text: drawn in a way that anyone can repeat, or listed.

`equal`               every sequence is as long as the longest
`uniform-SEED`        as likely to be of one length as of another
`lognormal-SIGMA-SEED`  logarithms with that standard deviation: a few long ones, many short ones
`5+0+7`               these; `5+0+7x9+3+2`: queries, then keys

Drawn lengths are scaled so that the longest is as long as the workload says; SEED is 0 where it is
left out, SIGMA 1.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist

from fa_tune.core.errors import InvalidConfig

WRITTEN_LIKE = "equal, uniform-SEED, lognormal-SIGMA-SEED, or lengths such as 5+0+7"
_NUMBER = "[0-9]{1,18}"
_LISTED = re.compile(r"N(?:\+N)*(?:xN(?:\+N)*)?".replace("N", _NUMBER))
_DRAWN = re.compile(
    r"(equal|uniform(?:-N)?|lognormal(?:-N(?:\.[0-9]+)?)?(?:-N)?)".replace("N", _NUMBER)
)

Lengths = tuple[tuple[int, int], ...]  # queries and keys of each sequence


@lru_cache(maxsize=256)
def lengths_of(text: str, batch: int, longest_q: int, longest_kv: int) -> Lengths:
    """The queries and keys of every sequence.  `batch` and the longest are for drawn ones alone.
    Raises InvalidConfig for a text that is none."""
    if _LISTED.fullmatch(text):
        queries, _, keys = text.partition("x")
        listed = [[int(n) for n in part.split("+")] for part in (queries, keys or queries)]
        if len(listed[0]) != len(listed[1]):
            raise InvalidConfig(
                f"lengths {text[:40]!r} are of {len(listed[0])} sequences of queries and of "
                f"{len(listed[1])} of keys"
            )
        return tuple(zip(*listed, strict=True))
    if not _DRAWN.fullmatch(text):
        raise InvalidConfig(f"not lengths: {text[:40]!r}; write {WRITTEN_LIKE}")
    shares = _shares(text, batch)
    return tuple((_scaled(x, longest_q), _scaled(x, longest_kv)) for x in shares)


def _scaled(share: float, longest: int) -> int:
    return max(1, round(share * longest))


def _shares(text: str, batch: int) -> Sequence[float]:
    """Of the longest, which is 1."""
    kind, *numbers = text.split("-")
    if kind == "equal":
        return [1.0] * batch
    seed = int(numbers[-1]) if len(numbers) > (kind == "lognormal") else 0
    dice = random.Random(seed)
    points = [(dice.randrange(2**30) + 0.5) / 2**30 for _ in range(batch)]
    if kind == "uniform":
        largest = max(points)
        return [x / largest for x in points]
    sigma = float(numbers[0]) if numbers else 1.0
    normal = [NormalDist().inv_cdf(x) for x in points]
    largest = max(normal)
    return [math.exp(sigma * (x - largest)) for x in normal]
