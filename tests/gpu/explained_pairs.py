"""Pairs of configs whose difference is known, and what an explanation of each has to name."""

from collections.abc import Sequence
from dataclasses import dataclass

from fa_tune import families
from fa_tune.core.model import Measurement
from fa_tune.profile.explain import explain_pair
from fa_tune.profile.ncu import metrics

WORKLOAD_ARGUMENTS = ("--seq-lens", "1024", "--batch", "4")


@dataclass(frozen=True)
class Pair:
    """`slow` lacks what `fast` has; one of `causes` must be told first, and the metric `counter`
    beside it."""

    name: str
    slow: str
    fast: str
    causes: tuple[str, ...]
    counter: str


PAIRS = (
    Pair(
        "swizzle off",
        "(FP16, 128, 64, 64, 4): async+eager+load_2_2_2_tiles+buffer+opt_softmax",
        "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
        ("bank conflicts in shared memory",),
        metrics.SHARED_CONFLICTS,
    ),
    Pair(
        "whole tiles in registers at 128 query rows",
        "(FP16, 128, 128, 64, 4): async+eager+swizzled+load_0_0_0_tiles+opt_softmax",
        "(FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax",
        ("register spills to local memory", "register spills, as more instructions"),
        metrics.LOCAL_LOADS,
    ),
    Pair(
        "loads when they are needed",
        "(FP16, 128, 64, 64, 4): async+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
        "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
        ("global loads are waited for",),
        metrics.stall_metric("long_scoreboard"),
    ),
)


def check(pair: Pair, measurements: Sequence[Measurement]) -> None:
    """The slow one is slower, and what is told first is the known cause with its counter."""
    by_subject = {one.subject: one for one in measurements}
    slow, fast = (
        by_subject[families.variant(families.parse(t)).key] for t in (pair.slow, pair.fast)
    )
    found = explain_pair(slow, fast)
    assert found.slow == slow.subject, "the one that is known to be slower is"
    told = next(f for f in found.findings if f.cycles > 0)
    assert told.cause in pair.causes, found.sentences
    assert pair.counter in {e.metric for e in told.evidence}, told
    assert told.agrees
