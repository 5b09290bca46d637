"""`fa-tune explain`, from the outside, on what comes with fa-tune."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fa_tune import device as devices
from tests.commands.console import Console
from tests.project_files import ROOT

RECORDED = str(ROOT / "profiles" / "nvidia_h200" / "ladder_explain.json")
PLAIN = "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles"
SWIZZLED = "(FP16, 128, 64, 64, 4): async+swizzled+load_0_0_0_tiles"


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "find_device", lambda index=0: None)


def test_two_configs(console: Console) -> None:
    done = console("explain", PLAIN, SWIZZLED)
    assert done.status == 0, done.err
    assert f"{PLAIN} takes 5.20 times as long as {SWIZZLED}" in done.out
    assert "Bank conflicts in shared memory: 102 %" in done.out
    assert "Rank correlation with time over these 8 configs" in done.out
    assert "ladder_explain.json" in done.out.splitlines()[-1]


def test_one_config_is_compared_with_the_fastest_and_none_with_its_rivals(
    console: Console,
) -> None:
    one = console("explain", PLAIN, "--from", RECORDED).out
    fastest = "(FP16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax"
    assert f"{PLAIN} takes 6.99 times as long as {fastest}" in one
    winner = console("explain", "--from", RECORDED).out
    assert f"takes 1.13 times as long as {fastest}" in winner
    assert f"{fastest} takes 1.69 times as long as cuDNN" in winner
    assert f"FA2 takes 1.08 times as long as {fastest}" in winner


def test_references_may_be_named(console: Console) -> None:
    assert "FA2 takes" in console("explain", "fa2", "cudnn", "--from", RECORDED).out


def test_json_has_the_findings(console: Console) -> None:
    document = json.loads(console("explain", PLAIN, SWIZZLED, "--json").out)
    (one,) = document["explanations"]
    assert one["findings"][0]["cause"] == "bank conflicts in shared memory"
    assert one["time_ratio"] == pytest.approx(5.2, abs=0.01)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["nonsense"], 2, "neither a config's short form nor one of fa2"),
        (["fa2", "cudnn", "fa2"], 2, "two kernels at most"),
        ([PLAIN.replace("128, 64", "64, 64"), "fa2"], 4, "no two kernels to compare"),
        (["--from", "none.json"], 5, "none.json cannot be read"),
        (["--recordings", "."], 3, "no GPU to measure on, and no counters recorded"),
    ],
)
def test_errors_are_one_line(
    console: Console, tmp_path: Path, arguments: list[str], status: int, message: str
) -> None:
    done = console("explain", *arguments)
    assert done.status == status, done.err
    assert message in done.err
    assert "Traceback" not in done.err
