"""Score hooks as functions of tensors where only their text was given."""

import pytest

from fa_tune.core import hooks
from fa_tune.core.errors import InvalidConfig
from fa_tune.operations.forward.torch_side.hook_twin import source_of, twin_of

TEXT = """
__device__ float score_hook(float score, int batch, int head, int query, int key) {
    return fa_tune::softcap(score, 30.f) - 0.5f * (query - key) + batch - head;
}
"""
BY_FOUR = """
struct score_hook {
    static constexpr float unit = 2.f;
    static __device__ void four(float (&s)[4], float scale, const fa_tune::ScorePlaces& at) {
        for (int i = 0; i < 4; ++i) s[i] = 0.5f * scale * s[i] - at.key(i) + at.query(i);
    }
};
"""


@pytest.mark.parametrize("text", [TEXT, BY_FOUR])
def test_a_text_becomes_a_kernel(text: str) -> None:
    nvrtc = pytest.importorskip("fa_tune.build.nvrtc")
    pytest.importorskip("cuda.bindings.nvrtc")
    options = ("--gpu-architecture=compute_80", "-std=c++20", "--use_fast_math")
    found = nvrtc.compile_source(source_of(hooks.register(text)), "hook.cu", {}, options, ())
    assert b".entry hooked(" in found.image
    assert b".entry terms(" in found.image


def test_a_registered_function_is_taken_instead() -> None:
    digest = hooks.register(TEXT + "\n// with its function\n", lambda score, *_: score + 1)
    assert twin_of(digest)(2, 0, 0, 0, 0) == 3
    with pytest.raises(InvalidConfig, match="not known to this process"):
        twin_of("0" * 16)
