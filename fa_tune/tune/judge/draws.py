"""What a target is given: the verification's cases, and shapes that nobody knows beforehand."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from fa_tune import operations
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.inputs import BUILT_IN
from fa_tune.core.judged import FLIPPED, KEY, Case, Contents
from fa_tune.core.workload import Workload
from fa_tune.operations.base import NORMAL

DRAWN = 6  # shapes
BLOCK = 128  # keys and queries of whole blocks
MOST_BLOCKS = 4
MOST_LENGTH = 700
MOST_GROUPS = 3  # of heads, and heads of each
MOST_SEED = 1 << 31
TRIES = 100
OTHERS = tuple(spec for spec in BUILT_IN if str(spec) != NORMAL)
FAR = (1 << 30, 1 << 30)  # blocks that no length fills


@dataclass(frozen=True)
class Ordeal:
    """A case with the contents of its calls in turn.  `watched` are contents of calls
    under torch's profiler, the same twice, where both must do the same."""

    case: Case
    drawn: bool
    bound: int
    contents: tuple[Contents, ...]
    watched: tuple[Contents, ...] = ()


def ordeals(workload: Workload, rng: random.Random) -> list[Ordeal]:
    """All of a workload's kind, in an order that nobody knows."""
    traits = operations.get(workload.op).traits(workload, FAR)
    found: list[Ordeal] = []
    for own in dict.fromkeys((replace(traits, ragged=workload.packed), traits)):
        cases = operations.cases_like(workload, str(own), thorough=False)
        found += [
            _ordeal(Case(case.workload.key, case.inputs, rng.randrange(2)), rng) for case in cases
        ]
        plain = [
            c.workload for c in cases if c.inputs == NORMAL and c.workload.softmax_scale is None
        ]
        for number in range(DRAWN // 2):
            shape = _shape(rng.choice(plain), rng, ragged=own.ragged)
            inputs = str(rng.choice(OTHERS)) if number == 0 and not shape.uneven else NORMAL
            found.append(_ordeal(Case(shape.key, inputs, number % 2), rng, drawn=True))
    found.append(_ordeal(Case(workload.key), rng))
    rng.shuffle(found)
    return found


def _ordeal(case: Case, rng: random.Random, *, drawn: bool = False) -> Ordeal:
    """Contents twice, then such as resemble them."""
    first, second, third, bound = (rng.randrange(MOST_SEED) for _ in range(4))
    contents = [Contents(first), Contents(first)]
    contents += [Contents(first, KEY), Contents(first, FLIPPED), Contents(second)]
    watched = (Contents(third), Contents(third)) if drawn else ()
    return Ordeal(case, drawn, bound, tuple(contents), watched)


def _shape(like: Workload, rng: random.Random, *, ragged: bool) -> Workload:
    """Another problem of the same kind; a packed batch or a cache stays as it is."""
    if like.uneven:
        return like
    for _ in range(TRIES):
        groups = rng.randint(1, MOST_GROUPS)
        lengths = [
            rng.randint(2, MOST_LENGTH) if ragged else BLOCK * rng.randint(1, MOST_BLOCKS)
            for _ in range(2)
        ]
        left = rng.randint(0, lengths[1]) if like.window_left is not None else None
        try:
            return replace(
                like,
                batch=rng.randint(1, 3),
                heads=groups * rng.randint(1, MOST_GROUPS),
                kv_heads=groups,
                seq_len_q=lengths[0],
                seq_len_kv=lengths[1],
                window_left=left,
            )
        except InvalidConfig:
            continue
    return like
