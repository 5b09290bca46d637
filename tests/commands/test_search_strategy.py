"""`fa-tune search` with a strategy, from the outside: options, sentences, and a whole search
on recordings."""

from __future__ import annotations

import shutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from fa_tune.search.strategies.audit import judge
from fa_tune.tune.results import Exploration
from tests.commands import fakes
from tests.commands.console import Console
from tests.commands.fakes import Put, Stub
from tests.project_files import ROOT
from tests.tune.fakes import FakeCompiler

AUDIT = judge(1.0, {"sm80:x": 0.9, "sm80:y": 2.0}, 30)
EXPLORATION = Exploration("learned", 7, "10 measurements", 40, 10, 1, 4, AUDIT)


@pytest.fixture
def search(stub: Put) -> Stub:
    explored = replace(fakes.workload_result(), exploration=EXPLORATION)
    return stub("fa_tune.tune.flow.search", fakes.search_result([explored]))


def test_strategy_budget_and_audit_reach_the_search(console: Console, search: Stub) -> None:
    done = console(
        *("search", "--strategy", "learned", "--budget", "60,300s", "--audit", "8"),
        *("--seed", "5", "--axis", "n_warps=4,8", "--dtype", "fp16", "--arch", "sm_90"),
    )
    assert done.status == 0, done.err
    (options,) = search.options
    assert (options.strategy, options.measurements, options.seconds) == ("learned", 60, 300.0)
    assert (options.audit, options.measure.seed, options.axes) == (8, 5, ("n_warps=4,8",))
    assert {config.n_warps for config in search.calls[0][2]} == {4, 8}
    assert console("search").status == 0
    assert (search.options[1].explores, search.calls[1][2]) == (False, None), "all is measured"


def test_the_summary_and_json_tell_what_was_skipped(console: Console, search: Stub) -> None:
    out = console("search", "--wide").out
    assert (
        "Learned measured 10 of 40 configs; audit of 2 of 30 skipped configs: the fastest of "
        "them, x, takes 10.00 % less time than the fastest that the strategy found; at 95 % "
        "confidence at most" in out
    )
    document = console("search", "--json").json
    found = document["workloads"][0]["exploration"]
    assert (found["strategy"], found["scouted"], found["audit"]["faster"]) == ("learned", 10, 1)


def test_a_search_of_recordings_needs_few_of_them(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the recorded tune set: the exhaustive choice, from 12 of 40 configs.  Other recordings
    are of other days, whose times do not compare with these."""
    module = import_module("fa_tune.tune.build")
    monkeypatch.setattr(module, "build_all", FakeCompiler())
    recorded = tmp_path / "profiles" / "nvidia_h200"
    recorded.mkdir(parents=True)
    for name in ("tune_events.csv", "tune_events.meta.json"):
        shutil.copy(ROOT / "profiles" / "nvidia_h200" / name, recorded)

    def chosen(*more: str) -> dict[str, Any]:
        arguments = ["--dtype", "fp16", "--seq-lens", "4096", "--profiler", "replay", "--json"]
        arguments += ["--kernels", "tune", "--family", "sm80"]
        arguments += ["--recordings", str(recorded.parent)]
        done = console("search", *arguments, *more)
        assert done.status == 0, done.err
        (one,) = done.json["workloads"]
        found: dict[str, Any] = one
        return found

    few = chosen("--strategy", "learned", "--budget", "12", "--audit", "4")
    assert few["exploration"]["scouted"] == 12
    assert few["exploration"]["audit"]["measured"] == 4
    everything = chosen()
    assert few["decision"]["chosen"]["subject"] == everything["decision"]["chosen"]["subject"]
