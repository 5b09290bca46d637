"""A score hook as a function of tensors: the one that was registered with its text, or else the
text itself, compiled as a kernel of one score per thread."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import torch

from fa_tune.core import hooks, paths
from fa_tune.core.streams import stream_of

_HEADERS = ("common/score_hook.cuh", "common/scores.cuh")
_THREADS = 256
_INCLUDE = re.compile(r'#include "([^"]+)"')
# What a softmax would see of a score, whichever form the hook has.
_KERNEL = """
extern "C" __global__ void hooked(const float* scores, const int* places, float* found,
                                  long long n) {
    const long long i = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
    if (i >= n) return;
    float s[4] = {scores[i], scores[i], scores[i], scores[i]};
    const fa_tune::ScorePlaces at{places[i], places[n + i], places[2 * n + i], places[3 * n + i]};
    fa_tune::ScoreHook::four(s, 1.f, at);
    found[i] = fa_tune::ScoreHook::unit() * s[0] + fa_tune::ScoreHook::origin();
}

extern "C" __global__ void terms(float* found) {
    found[0] = fa_tune::ScoreHook::unit();
    found[1] = fa_tune::ScoreHook::origin();
}
"""


def twin_of(digest: str) -> hooks.Twin:
    """(score, batch, head, query, key) as tensors that go together by broadcasting, to the new
    score.  Raises InvalidConfig for a hook that this process does not know."""
    return hooks.hook_of(digest).twin or _compiled(digest)


def source_of(digest: str) -> str:
    """The kernel of a hook's text, in one file."""
    hook = hooks.hook_of(digest)
    entry = "\n".join(
        (
            f"#define FA_TUNE_SCORE_HOOK{'_BY_FOUR' if hook.by_four else ''}",
            f'#include "{_HEADERS[0]}"',
            hook.source,
            f'#include "{_HEADERS[1]}"',
            _KERNEL,
        )
    )
    return _in_one(entry, set())


def _in_one(text: str, there: set[str]) -> str:
    """A text with the files of `kernels/` that it includes, each once."""
    lines = []
    for line in text.splitlines():
        if found := _INCLUDE.match(line):
            if found[1] not in there:
                there.add(found[1])
                file = paths.kernels_dir() / found[1]
                lines.append(_in_one(file.read_text(encoding="utf-8"), there))
        elif line != "#pragma once":
            lines.append(line)
    return "\n".join(lines)


@cache
def largest_term(digest: str) -> float:
    """The largest number, in nats, whose rounding a hook's scores can have though they are small:
    a struct's unit, or its origin if that is larger; 0 of a function."""
    if not hooks.hook_of(digest).by_four:
        return 0.0
    import cupy

    found = cupy.empty(2, dtype=cupy.float32)
    _module(digest).get_function("terms")((1,), (1,), (found,))
    return float(abs(found).max())


@cache
def _module(digest: str) -> Any:
    import cupy  # registered functions need none

    return cupy.RawModule(code=source_of(digest), options=("-std=c++20", "--use_fast_math"))


@cache
def _compiled(digest: str) -> hooks.Twin:
    import cupy

    kernel = _module(digest).get_function("hooked")

    def twin(score: torch.Tensor, *places: Any) -> torch.Tensor:
        """In fp32, which is what kernels compute scores in, whatever the type of `score`."""
        given = score.float().contiguous()
        where = torch.empty((4, *score.shape), dtype=torch.int32, device=score.device)
        for one, place in zip(where, places, strict=True):
            one.copy_(torch.as_tensor(place, device=score.device))
        found = torch.empty_like(given)
        n = given.numel()
        with stream_of(torch.cuda.current_stream().cuda_stream):
            arguments = (given.data_ptr(), where.data_ptr(), found.data_ptr(), cupy.int64(n))
            kernel(((n + _THREADS - 1) // _THREADS,), (_THREADS,), arguments)
        return found.to(score.dtype)

    return twin
