"""Score hooks with their torch functions, known wherever this module is imported."""

from __future__ import annotations

from typing import Any

from fa_tune.core import hooks

CAP = """
__device__ float score_hook(float score, int batch, int head, int query, int key) {
    return fa_tune::softcap(score, 50.f);
}
"""
# Another bias for every batch element, head, query and key, which all but hides every eleventh key.
PLACES = """
__device__ float score_hook(float score, int batch, int head, int query, int key) {
    if (key % 11 == 7) score -= 40.f;
    return score + 0.25f * batch - 0.125f * head + 0.0625f * (query % 13) - 0.5f * (key % 5);
}
"""


def cap(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    """CAP of tensors."""
    return 50 * (score * 0.02).tanh()


def places(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    """PLACES of tensors."""
    changed = score + 0.25 * batch - 0.125 * head + 0.0625 * (query % 13) - 0.5 * (key % 5)
    return changed - 40.0 * (key % 11 == 7)


HOOKS = (hooks.register(CAP, cap), hooks.register(PLACES, places))
