"""`fa-tune explain`, from the outside, on what comes with fa-tune."""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fa_tune import families
from fa_tune.core import devices
from fa_tune.core.model import Attempt, Outcome
from fa_tune.core.options import SearchOptions
from fa_tune.core.workload import DType
from fa_tune.profile import profile_json
from tests.commands.console import Console
from tests.commands.fakes import H200
from tests.project_files import ROOT

RECORDED = str(ROOT / "profiles" / "nvidia_h200" / "ladder_explain.json")
PLAIN = "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles"
SWIZZLED = "(FP16, 128, 64, 64, 4): async+swizzled+load_0_0_0_tiles"
FASTEST = (
    "(FP16, 128, 256, 64, 8): async+eager+swizzled+load_1_1_1_tiles+opt_softmax+stages_3"
    "+rescale_8+pingpong"
)


def ratio(one: str, other: str) -> float:
    """How many times as long as another one a config or a reference takes, as recorded."""
    keys = {
        f"sm80:{name}" if name.startswith("(") else f"ref:{name}": name for name in (one, other)
    }
    took = {
        keys[m.subject]: statistics.median(m.samples_s)
        for m in profile_json.load(Path(RECORDED))
        if m.subject in keys
    }
    return took[one] / took[other]


def rank(subject: str) -> float:
    """By time, behind the fastest config; references last."""
    name = subject.removeprefix("sm80:")
    return ratio(name, FASTEST) if name.startswith("(") and name != FASTEST else float("inf")


def times(one: str, other: str) -> str:
    return f"takes {ratio(one, other):.2f} times as long as"


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentences in one line each."""
    monkeypatch.setenv("COLUMNS", "2000")


@pytest.mark.parametrize(
    "options",
    [
        *(("--seq-lens", "333"), ("--seq-lens-kv", "8192"), ("--batch", "1,2")),
        *(("--heads", "8"), ("--kv-heads", "4"), ("--mask", "causal")),
    ],
)
def test_recorded_counters_are_of_the_workload_that_is_named(
    console: Console, options: tuple[str, ...]
) -> None:
    refused = console("explain", "fa2", "cudnn", *options)
    assert refused.status == 4
    assert refused.lines == [
        "error: no counters of such a workload; there are some of "
        "b16_h16_kv16_q4096_k4096_d128_fp16_full"
    ]
    named = ("--seq-lens", "512,4096", "--mask", "full,causal", "--batch", "16", "--heads", "16")
    assert console("explain", *named).out == console("explain").out


def test_two_configs(console: Console) -> None:
    done = console("explain", PLAIN, SWIZZLED)
    assert done.status == 0, done.err
    assert ratio(PLAIN, SWIZZLED) > 5
    assert f"{PLAIN} {times(PLAIN, SWIZZLED)} {SWIZZLED}" in done.out
    text = " ".join(done.out.split())
    most = re.search(r"Bank conflicts in shared memory: ([\d.]+) million of the ([\d.]+) mil", text)
    assert most
    assert 0.9 < float(most[1]) / float(most[2]) <= 1
    assert "Rank correlation with time over these 8 configs" in done.out
    assert "ladder_explain.json" in done.out.splitlines()[-1]
    document = console("explain", PLAIN, SWIZZLED, "--json").json
    (one,) = document["explanations"]
    assert one["findings"][0]["cause"] == "bank conflicts in shared memory"
    assert one["time_ratio"] == pytest.approx(ratio(PLAIN, SWIZZLED), abs=0.01)


def test_one_config_is_compared_with_the_fastest_and_that_with_the_next(
    console: Console,
) -> None:
    one = console("explain", PLAIN, "--from", RECORDED).out
    assert f"{PLAIN} {times(PLAIN, FASTEST)} {FASTEST}" in one
    winner = console("explain", "--from", RECORDED).out
    second = min((m.subject for m in profile_json.load(Path(RECORDED))), key=rank)
    assert f"{times(second.removeprefix('sm80:'), FASTEST)} {FASTEST}" in winner
    assert f"{FASTEST} {times(FASTEST, 'cudnn')} cuDNN" in winner
    assert f"FA2 {times('fa2', FASTEST)} {FASTEST}" in winner


def test_the_winner_is_compared_with_the_default_as_well(console: Console, tmp_path: Path) -> None:
    default = families.get("sm80").default_config(128, DType.FP16).short_form()
    document = json.loads(Path(RECORDED).read_text())
    for one in document["measurements"]:
        if one["subject"] == f"sm80:{PLAIN}":  # the slowest, as if it were the default
            one["subject"] = f"sm80:{default}"
    path = tmp_path / f"other{profile_json.SUFFIX}"
    path.write_text(json.dumps(document))
    out = console("explain", "--from", str(path)).out
    assert f"{default} {times(PLAIN, FASTEST)}" in out


@dataclasses.dataclass
class Gpu:
    """Measures nothing, and gives what is recorded."""

    calls: list[tuple[list[str], tuple[str, ...]]] = dataclasses.field(default_factory=list)

    def __call__(self, configs: list[str], options: SearchOptions, progress: object) -> Any:
        assert (options.measure.profiler, options.measure.metrics) == ("ncu", "explain")
        self.calls.append((list(configs), options.measure.references))
        asked = {families.variant(families.parse(c)).key for c in configs}
        asked |= {f"ref:{name}" for name in options.measure.references}
        found = [m for m in profile_json.load(Path(RECORDED)) if m.subject in asked]
        attempts = [Attempt(m.subject, m.workload, Outcome.OK, "", m) for m in found]
        return SimpleNamespace(attempts=attempts, source="measured here")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    monkeypatch.setattr(devices, "find_device", lambda index=0: H200)
    fake = Gpu()
    monkeypatch.setattr("fa_tune.tune.single.profile", fake)
    return fake


def test_on_a_gpu_both_are_measured_and_nobody_else(console: Console, gpu: Gpu) -> None:
    assert times(PLAIN, SWIZZLED) in console("explain", PLAIN, SWIZZLED).out
    assert f"{PLAIN} takes" in console("explain", PLAIN, "cudnn").out
    assert gpu.calls == [([PLAIN, SWIZZLED], ()), ([PLAIN], ("cudnn",))]


@pytest.mark.usefixtures("only_sm80")
def test_on_a_gpu_one_alone_is_compared_with_the_default(
    console: Console, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = families.get("sm80")
    default = families.parse(SWIZZLED)
    monkeypatch.setattr(type(family), "default_config", lambda self, d_head, dtype, **_: default)
    assert f"{PLAIN} {times(PLAIN, SWIZZLED)} {SWIZZLED}" in console("explain", PLAIN).out
    # The default itself has but the references to be compared with.
    out = console("explain", SWIZZLED).out
    assert f"{SWIZZLED} takes" in out
    assert "as long as cuDNN" in out
    assert "as long as FA2" in out
    assert gpu.calls == [([PLAIN, SWIZZLED], ()), ([SWIZZLED], ("fa2", "cudnn"))]


def test_recorded_counters_say_whose_and_when(console: Console, tmp_path: Path) -> None:
    document = json.loads(Path(RECORDED).read_text())
    dated = tmp_path / "dated.json"
    dated.write_text(json.dumps({**document, "written_at": "2026-01-02T03:04:05+00:00"}))
    for path, when in ((RECORDED, "at an unknown date"), (dated, "on 2026-01-02")):
        whose = console("explain", "--from", str(path), "--json").json["whose"]
        assert "an NVIDIA H200" in whose
        assert when in whose
