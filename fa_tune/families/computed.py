"""Optional fields of a workload, in sets of those that kernels compute together.  A family names
what it computes, and is offered no workload with any other."""

from __future__ import annotations

from collections.abc import Collection

from fa_tune.core.workload import FIELDS, Workload

BASIC = frozenset({"bottom_right", "lse", "softmax_scale", "accuracy"})
MASKS = frozenset({"window_left", "window_right", "sink"})  # a sink is in the log-sum-exp
PLACED_SCORES = frozenset({"alibi", "score_hook"})  # which hang on rows and keys
_SPECIAL = frozenset(name for name, spec in FIELDS.items() if spec.special)
SCORES = BASIC | {"d_head_v"} | _SPECIAL - PLACED_SCORES
PACKED = frozenset({"packed", "total_q", "total_kv", "lengths"})
CACHE = frozenset({"cache_lengths", "page_size", "kv_e4m3"})


def not_among(workload: Workload, fields: Collection[str]) -> list[str]:
    """The optional fields that a workload uses beside these, sorted."""
    return sorted(set(workload.unusual) - {"op", *fields})
