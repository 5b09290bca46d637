"""What is refused of observations."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fa_tune.core.judged import Timing
from fa_tune.core.workload import Workload
from fa_tune.tune.judge import rules
from fa_tune.tune.judge.draws import ordeals
from tests.judge.court import CAUSAL, FULL

SOUND = Timing("w", (1e-3, 1.1e-3), (1e-3, 1e-3), {}, 5e-4, 400, 0.4, 0.42)


def test_sound_times_are_not_refused() -> None:
    assert rules.timed(SOUND) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"samples_s": (0.0, 1e-3)}, "timer"),
        ({"samples_s": (-1.0, 1e-3)}, "timer"),
        ({"inside_s": 0.1}, "timer"),
        ({"least_s": 2e-3}, "timer"),
        ({"again_s": (1e-4, 2e-4)}, "kept"),
        ({"outside_s": 1e-3, "inside_s": 1e-3}, "kept"),
    ],
)
def test_times_that_cannot_be_are_refused(change: dict[str, object], word: str) -> None:
    assert word in [kind for kind, _ in rules.timed(replace(SOUND, **change))]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("claim", "name", "refused"),
    [
        ("torch", "aten::bmm", False),
        ("kernel", "aten::bmm", True),
        ("kernel", "aten::_softmax", True),
        ("kernel", "aten::empty", False),
        ("kernel", "aten::as_strided", False),
        ("torch", "aten::_scaled_dot_product_flash_attention", True),
        ("torch", "flash_attn::_flash_attn_forward", True),
        ("torch", "fa_tune::fwd", True),
        ("library", "aten::scaled_dot_product_attention", False),
        ("torch", "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>", True),
        ("torch", "cudnn_generated_fort_native_sdpa_sm90_flash_fprop", True),
        ("kernel", "rows", False),
        ("kernel", "my_softmax_rows", False),
    ],
)
def test_help_is_held_against_the_claim(claim: str, name: str, refused: bool) -> None:
    assert (rules.borrowed(claim, [name], "rows") is not None) == refused


def test_a_seed_gives_the_same_draws_and_another_others() -> None:
    for workload in (FULL, CAUSAL, replace(CAUSAL, window_left=40)):
        one, same, other = (ordeals(workload, random.Random(n)) for n in (1, 1, 2))
        assert one == same
        drawn = [{o.case.workload for o in some if o.drawn} for some in (one, other)]
        assert not drawn[0] & drawn[1]
        assert all(Workload.from_key(o.case.workload).d_head == workload.d_head for o in one)
        lengths = [Workload.from_key(o.case.workload).seq_len_q for o in one if o.drawn]
        assert any(n % 128 for n in lengths)
        assert not all(n % 128 for n in lengths)


def test_least_times_are_known_of_known_gpus() -> None:
    least = rules.least_seconds(replace(FULL, seq_len_q=8192, seq_len_kv=8192), "NVIDIA H200")
    assert least is not None
    assert 0 < least < 1
    assert rules.least_seconds(FULL, "another") is None
