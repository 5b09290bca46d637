"""What a launch tells a kernel of masks and scores: kernels/common/score_params.cuh."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

from fa_tune.core.workload import Workload
from fa_tune.families.launch import LaunchArgs

if TYPE_CHECKING:
    import numpy as np

FARTHEST = 2**30  # a diagonal: sums with rows and keys stay within 32 bits


@cache
def score_dtype() -> np.dtype:
    """ScoreParams, field for field."""
    import numpy as np  # only a launch needs it; commands that never launch start faster

    return np.dtype(
        [("sink", "u8"), ("alibi_slopes", "u8")]
        + [(name, "i4") for name in ("alibi_batch_stride", "first_diagonal", "alibi_diagonal")]
        + [("score_scale", "f4")],
        align=True,
    )


def at_edge(diagonal: int, workload: Workload) -> int:
    """A diagonal beyond the tensor is one at its edge: it is the same mask, and sums of rows and
    diagonals stay within 32 bits.  Those of a packed batch are counted from the alignment of last
    queries with last keys."""
    if workload.packed:
        return max(-workload.seq_len_kv, min(diagonal, workload.seq_len_q))
    return max(-workload.seq_len_q, min(diagonal, workload.seq_len_kv))


def set_scores(
    params: Any, workload: Workload, args: LaunchArgs, *, takes_cache: bool = False
) -> None:
    """Fill in `diagonal`, `softmax_scale` and `score` of a forward kernel's parameters.  Where the
    device alone knows the lengths of a cache, diagonals are less keys - seq_len_q.  Raises
    InvalidConfig as `LaunchArgs.checked` does."""
    diagonal, scale = args.checked(workload, takes_cache=takes_cache)
    score = params["score"]
    right = 0 if workload.window_right is None else workload.window_right
    left = workload.seq_len_kv if workload.window_left is None else workload.window_left
    if args.cache is not None and args.cache.lengths:
        params["diagonal"] = min(right, FARTHEST)
        score["first_diagonal"] = -min(left, FARTHEST)
    else:
        params["diagonal"] = at_edge(diagonal + right, workload)
        if workload.window_left is None:
            score["first_diagonal"] = at_edge(-FARTHEST, workload)
        else:
            score["first_diagonal"] = at_edge(diagonal - left, workload)
    score["sink"] = args["sink"].address
    score["alibi_slopes"] = args["alibi_slopes"].address
    score["alibi_batch_stride"] = args["alibi_slopes"].strides[0]
    if workload.alibi:
        score["alibi_diagonal"] = max(-FARTHEST, min(diagonal, FARTHEST))
    if workload.score_hook is not None:
        params["softmax_scale"], score["score_scale"] = 1, scale
    elif workload.softcap is None:
        params["softmax_scale"], score["score_scale"] = scale, scale
    else:
        params["softmax_scale"] = 2 * workload.softcap
        score["score_scale"] = -2 * scale / workload.softcap / math.log(2)
