"""Gradients of `attention` on random problems, beside fp64.

`python -m tests.gpu.random_gradients_child SEED SHARD OF` draws the problems of a shard and prints
JSON: how many, and those that are wrong.  Traits are drawn for several problems at once, since each
wants kernels of its own.
"""

import json
import random
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from fa_tune.op.traits import Traits
from tests.gpu.op_checks import draw, some_traits
from tests.gpu.op_gradients_child import check_attention

COUNT, OF_ONE_KIND = 1000, 5
D_HEADS = ((64, 64), (96, 96), (128, 128), (192, 192), (192, 128), (256, 256))
GROUPS = (1, 1, 2, 4, 8, 16)
TIMES = (0.3, 1.0, 1.0, 6.0)  # of normal scores
LONGEST = 700
# A sink's gradient is a number: of few heads torch's errors may all be small by chance.
FEWEST_HEADS = 6


@dataclass(frozen=True)
class Case:
    """One problem; `kind`, by the number of all traits, says which it has.  `times` normal scores;
    `strided`: heads lie before rows."""

    dtype: torch.dtype
    d_head: tuple[int, int]
    kind: int
    batch: int
    kv_heads: int
    group: int
    lengths: tuple[int, int]
    times: float
    strided: bool
    seed: int


def cases(seed: int) -> Iterator[Case]:
    """All of a seed, which is drawn for these alone."""
    dice = random.Random(seed)
    for number in range(COUNT):
        if number % OF_ONE_KIND == 0:
            dtype = dice.choice((torch.float16, torch.bfloat16))
            d_head, kind = dice.choice(D_HEADS), dice.randrange(2**31)
        lengths = dice.randint(1, LONGEST), dice.randint(1, LONGEST)
        group = dice.choice(GROUPS)
        kv_heads = max(dice.randint(1, 2), FEWEST_HEADS // group)
        yield Case(
            *(dtype, d_head, kind, dice.randint(1, 3), kv_heads, group),
            lengths if dice.random() < 0.7 else (lengths[0], lengths[0]),
            *(dice.choice(TIMES), dice.random() < 0.5, dice.randrange(2**31)),
        )


def check(case: Case) -> None:
    """Raises AssertionError for a gradient that is wrong."""
    torch.manual_seed(case.seed)
    (d_head, d_v), (n_q, n_kv), heads = case.d_head, case.lengths, case.kv_heads * case.group

    def given(length: int, n_heads: int, width: int) -> torch.Tensor:
        if case.strided:
            return draw(case.batch, n_heads, length, width, dtype=case.dtype).transpose(1, 2)
        return draw(case.batch, length, n_heads, width, dtype=case.dtype)

    traits = (Traits(), Traits(True), Traits(True, True), *some_traits(heads, case.batch))
    q, k, v = (
        given(n_q, heads, d_head) * case.times,
        given(n_kv, case.kv_heads, d_head),
        given(n_kv, case.kv_heads, d_v),
    )
    check_attention(q, k, v, given(n_q, heads, d_v), traits[case.kind % len(traits)])


def main() -> None:
    seed, shard, of = map(int, sys.argv[1:4])
    count, wrong = 0, []
    for number, case in enumerate(cases(seed)):
        if number // OF_ONE_KIND % of != shard:
            continue
        count += 1
        try:
            check(case)
        except Exception:
            wrong.append(f"{case}\n{traceback.format_exc()[-1500:]}")
    print(json.dumps({"count": count, "wrong": wrong}))


if __name__ == "__main__":
    main()
