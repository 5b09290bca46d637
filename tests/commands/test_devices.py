"""`--devices` on the command line: what it takes, and what it says when it does not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fa_tune.core import devices
from fa_tune.core.errors import ToolMissing
from fa_tune.core.options import SearchOptions
from fa_tune.core.stats import Ratio
from fa_tune.tune import flow
from fa_tune.tune.fleet.calibration import Disagreement, GpuTimes
from fa_tune.tune.results import SearchResult
from tests.commands import fakes
from tests.commands.console import Console

DISAGREEMENT = Disagreement(
    "b1_h1_kv1_q64_k64_d128_fp16_full",
    (fakes.key(fakes.SLOW), fakes.key(fakes.FAST)),
    (
        GpuTimes("GPU 0", "GPU-a", 1.00e-3, 0.50e-3, Ratio(0.500, None), 1.9e9, None),
        GpuTimes("GPU 1", "GPU-b", 1.02e-3, 0.51e-3, Ratio(0.501, None), 1.8e9, 600.0),
    ),
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[SearchOptions]:
    found: list[SearchOptions] = []

    def search(options: SearchOptions, *_: object) -> SearchResult:
        found.append(options)
        return replace(fakes.search_result(), disagreement=DISAGREEMENT)

    monkeypatch.setattr(flow, "search", search)
    return found


@pytest.mark.parametrize(
    ("given", "meant"), [("0,1", (0, 1)), ("3", (3,)), (" 2, 0 ", (2, 0)), ("ALL", "all")]
)
def test_numbers_or_all(
    console: Console, asked: list[SearchOptions], given: str, meant: object
) -> None:
    assert console("search", "--devices", given).status == 0
    assert asked[0].machine.devices == meant


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("0,0", "GPU 0 is named twice; name each GPU once"),
        ("0,,1", "'0,,1' is not a list of GPUs; write 0,1 or all"),
        ("0-3", "'0-3' is not a list of GPUs; write 0,1 or all"),
        ("-1", "is not a list of GPUs"),
        ("", "'' is not a list of GPUs"),
    ],
)
def test_what_is_no_list_of_gpus(console: Console, given: str, reason: str) -> None:
    done = console("search", f"--devices={given}")
    assert done.status == 2
    assert reason in done.err


def test_without_a_gpu_several_cannot_be_meant(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(numbers: object) -> None:
        raise ToolMissing("no GPU found to measure on; without any, leave out --devices")

    monkeypatch.setattr(devices, "find_devices", none)
    done = console("search", "--devices", "0,1")
    assert done.status == 3
    assert done.err.strip() == (
        "error: no GPU found to measure on; without any, leave out --devices"
    )


def test_the_gpus_disagreement_is_told(console: Console, asked: list[SearchOptions]) -> None:
    done = console("search", "--devices", "all", "--wide")
    assert (
        "2 GPUs timed the same pair of kernels: times differ by up to 2.00 %, their ratio by "
        "0.20 %." in done.out
    )
    document = json.loads(console("search", "--devices", "all", "--json").out)
    found = document["disagreement"]
    assert found["time"] == pytest.approx(0.02)
    assert found["ratio"] == pytest.approx(0.002)
    assert [g["uuid"] for g in found["gpus"]] == ["GPU-a", "GPU-b"]


def test_gpus_that_choose_differently_are_warned_of() -> None:
    one, two = DISAGREEMENT.gpus
    far = replace(DISAGREEMENT, gpus=(one, replace(two, ratio=Ratio(0.51, None))))
    assert far.sentence.endswith("GPUs so different may choose differently")
    assert not DISAGREEMENT.sentence.endswith("differently")
