"""Score hooks with their functions of torch or NumPy, known wherever this module is imported."""

from __future__ import annotations

from typing import Any

import numpy as np

from fa_tune.core import hooks

CAP = """
__device__ float score_hook(float score, int batch, int head, int query, int key) {
    return fa_tune::softcap(score, 50.f);
}
"""
# The same, of four scores at a time.
CAP_BY_FOUR = """
struct score_hook {
    static constexpr float unit = 2 * 50.f, origin = -50.f;
    static __device__ void four(float (&s)[4], float scale, const fa_tune::ScorePlaces& at) {
        fa_tune::logistic(s, scale * (2 / 50.f));
    }
};
"""
# PLACES in that form, and of half the size.
PLACES_BY_FOUR = """
struct score_hook {
    static constexpr float unit = 2.f;
    static __device__ void four(float (&s)[4], float scale, const fa_tune::ScorePlaces& at) {
        for (int i = 0; i < 4; ++i) {
            const float bias = 0.0625f * (at.query(i) % 13) - 0.5f * (at.key(i) % 5);
            s[i] = scale * s[i] + 0.25f * at.batch - 0.125f * at.head + bias;
            s[i] = 0.5f * (at.key(i) % 11 == 7 ? s[i] - 40.f : s[i]);
        }
    }
};
"""
# Another bias for every batch element, head, query and key, which all but hides every eleventh key.
PLACES = """
__device__ float score_hook(float score, int batch, int head, int query, int key) {
    if (key % 11 == 7) score -= 40.f;
    return score + 0.25f * batch - 0.125f * head + 0.0625f * (query % 13) - 0.5f * (key % 5);
}
"""
# One whose slope hangs on the score, with its derivative, and of another place for each.
BENT = """
__device__ float score_hook(float score, int batch, int head, int query, int key) {
    const float bias = 0.25f * batch - 0.125f * head + 0.0625f * (query % 13) - 0.5f * (key % 5);
    return fa_tune::softcap(score, head % 2 ? 2.f : 20.f) + bias;
}
__device__ float score_hook_derivative(float score, int batch, int head, int query, int key) {
    const float bent = fa_tune::tanh(score / (head % 2 ? 2.f : 20.f));
    return 1.f - bent * bent;
}
"""


def cap(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    """CAP of tensors."""
    part = score * 0.02
    return 50 * (np.tanh(part) if isinstance(part, np.ndarray) else part.tanh())


def places(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    """PLACES of tensors."""
    changed = score + 0.25 * batch - 0.125 * head + 0.0625 * (query % 13) - 0.5 * (key % 5)
    return changed - 40.0 * (key % 11 == 7)


def bent(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    """BENT of tensors."""
    limit = 20.0 - 18.0 * (head % 2)
    part = score / limit
    bias = 0.25 * batch - 0.125 * head + 0.0625 * (query % 13) - 0.5 * (key % 5)
    return limit * (np.tanh(part) if isinstance(part, np.ndarray) else part.tanh()) + bias


HOOKS = (
    hooks.register(CAP, cap),
    hooks.register(PLACES, places),
    hooks.register(CAP_BY_FOUR, cap),
    hooks.register(PLACES_BY_FOUR, places),
)
WITH_DERIVATIVE = hooks.register(BENT, bent)
