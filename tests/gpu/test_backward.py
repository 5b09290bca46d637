"""Backward passes of every config give right gradients."""

from pathlib import Path

import pytest

from tests.gpu.conftest import fa_tune, run_program
from tests.gpu.score_hooks import BENT

ON_HOPPER = pytest.mark.usefixtures("hopper")
pytestmark = [pytest.mark.gpu, ON_HOPPER]


def assert_right(*options: str) -> None:
    found = fa_tune("verify", *options)
    assert all(verdict["correct"] for verdict in found["verdicts"])
    assert found["verdicts"]


@pytest.mark.parametrize(
    ("family", "kernels", "d_head"),
    [
        *(("sm90_bwd", "tune", d_head) for d_head in ("40", "64", "96", "128", "192", "256")),
        *(("sm80_bwd", "fast", d_head) for d_head in ("64", "96", "128", "192", "256")),
    ],
)
def test_every_config_is_right(family: str, kernels: str, d_head: str) -> None:
    """Whole blocks of keys and others, with the other traits of the default workload."""
    assert_right("--family", family, "--kernels", kernels, "--d-head", d_head)


@pytest.mark.parametrize(
    "more",
    [
        "--lengths lognormal-0.8-3",
        "--lengths uniform-3 --mask causal --window-left 100 --sink",
        "--softcap 20 --lse",
        "--alibi --mask causal",
        "--softcap 5 --alibi --lse --mask causal --window-left 70 --lengths uniform-3",
    ],
)
@pytest.mark.parametrize("d_head", ["32", "64", "96", "128", "192 --d-head-v 128", "256"])
def test_packed_batches_and_changed_scores_are_right(more: str, d_head: str) -> None:
    options = ["--kernels", "fast", "--d-head", *d_head.split(), *more.split()]
    assert_right("--op", "backward", *options)


@pytest.mark.parametrize("mask", ["causal_br", "full"])
def test_masks_and_sinks_are_right(mask: str) -> None:
    more = ["--window-left", "70"] if mask == "full" else ["--sink"]
    assert_right("--op", "backward", "--kernels", "fast", "--mask", mask, *more)


@pytest.mark.parametrize("more", ["--mask causal --lse", "--lengths uniform-3", "--window-left 70"])
@pytest.mark.parametrize("d_head", ["64", "96", "128", "192", "256"])
def test_hooks_have_the_gradients_of_their_differences(
    more: str, d_head: str, tmp_path: Path
) -> None:
    right, wrong = tmp_path / "right.cu", tmp_path / "wrong.cu"
    right.write_text(BENT)
    wrong.write_text(BENT.replace("1.f - bent", "1.01f - bent"))
    options = ["--op", "backward", "--kernels", "fast", "--d-head", d_head, *more.split()]
    assert_right(*options, "--score-hook", str(right))
    done = run_program("verify", *options, "--score-hook", str(wrong), "--json")
    assert done.returncode == 4, done.stderr
