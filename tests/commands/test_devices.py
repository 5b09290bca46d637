"""`--devices` on the command line: what it takes, and what it says when it does not."""

from __future__ import annotations

import pytest

from fa_tune.core import devices
from fa_tune.core.errors import ToolMissing
from fa_tune.core.options import SearchOptions
from fa_tune.tune import flow
from fa_tune.tune.results import SearchResult
from tests.commands import fakes
from tests.commands.console import Console


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[SearchOptions]:
    found: list[SearchOptions] = []

    def search(options: SearchOptions, *_: object) -> SearchResult:
        found.append(options)
        return fakes.search_result()

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
