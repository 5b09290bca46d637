"""`fa-tune prove`: its options, and what it writes of a proof."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from fa_tune.core.errors import StorageError
from fa_tune.core.stats import Ratio
from fa_tune.store.capture.schema import Served
from fa_tune.store.proof import Coverage, Pair, Proof, Share, Verdict, time_ratio
from fa_tune.tune.prove import ProveOptions
from tests.commands.console import Console
from tests.commands.fakes import Put
from tests.commands.test_page import page_document

PAIRS = tuple(Pair(ours, 100.0 + ours / 90, i % 2 == 0) for i, ours in enumerate((90.0, 91, 89.5)))
SHARES = (
    Share(Served("fa_tune", "sm90:<config>", "exact", "a registry"), 40, 0.08, 0.8),
    Share(Served("math", why="a mask"), 4, 0.02, 0.2),
)
PROOF = Proof(
    schema="fa-tune-prove-1",
    command=("python", "train it.py"),
    started="2026-01-01T00:00:00+00:00",
    metric="step ([0-9.]+)",
    higher_is_better=False,
    pairs=PAIRS,
    time_ratio=time_ratio(PAIRS, higher_is_better=False),
    verdict=Verdict.FASTER,
    ended="decided",
    problem=None,
    coverage=Coverage(0.1, SHARES, ("what nobody saw",)),
)
PROVE = "fa_tune.commands.prove.prove"


@pytest.fixture
def made(stub: Put) -> Any:
    stub("fa_tune.core.devices.find_device", object())

    def make(**changes: Any) -> Any:
        return stub(PROVE, dataclasses.replace(PROOF, **changes))

    return make


def test_the_program_is_taken_as_it_is(console: Console, made: Any) -> None:
    asked = made()
    done = console(
        *("prove", "--metric", "x ([0-9]+)", "--higher-is-better", "--budget", "5,20s", "--json"),
        *("--", "python", "-c", "--metric", "--help"),
    )
    assert done.status == 0, done.err
    options, _ = asked.calls[0]
    assert isinstance(options, ProveOptions)
    assert options.command == ("python", "-c", "--metric", "--help")
    assert (options.pairs, options.seconds, options.higher_is_better) == (5, 20.0, True)
    assert done.json["pairs"][1]["ours"] == 91
    assert done.json["time_ratio"]["interval"] is not None
    assert done.json["coverage"]["shares"][0]["served"]["entry"] == "exact"


def test_the_registry_is_read_before_anything_runs(
    console: Console, made: Any, tmp_path: Path
) -> None:
    asked = made()
    path = tmp_path / "registry.json"
    done = console("prove", "--registry", str(path), "--", "true")
    assert done.status == 0
    assert "no entry" in done.err
    assert asked.calls[0][0].registry == path
    path.write_text("{")
    assert console("prove", "--registry", str(path), "--", "true").status == 5
    assert len(asked.calls) == 1


def test_a_page_that_cannot_be_written_costs_no_result(
    console: Console, made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise StorageError("no space left")

    made()
    monkeypatch.setattr("fa_tune.commands.prove.write_proof", full)
    done = console("prove", "--json", "--html", str(tmp_path / "page.html"), "--", "true")
    assert done.status != 0
    assert done.json["time_ratio"]["interval"] is not None


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--",),
        ("--metric", "x ([0-9]+)", "--", "true"),
        ("--lower-is-better", "--", "true"),
        ("--metric", "x", "--lower-is-better", "--", "true"),
        ("--budget", "soon", "--", "true"),
        ("--budget", "0", "--", "true"),
        ("--unknown", "true"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    console: Console, made: Any, arguments: tuple[str, ...]
) -> None:
    asked = made()
    done = console("prove", *arguments)
    assert (done.status, len(done.lines)) == (2, 1)
    assert not asked.calls


def test_the_gain_and_its_interval_are_told(console: Console, made: Any) -> None:
    made()
    said = " ".join(console("prove", "--", "true").out.split())
    ratio = PROOF.time_ratio
    assert ratio is not None
    assert ratio.interval is not None
    for value in (ratio.value, *ratio.interval):
        assert f"{1 / value:.3f}" in said
    assert "'train it.py'" in said
    assert "80.0 %" in said
    assert "a mask" in said
    assert "what nobody saw" in said


def test_what_ended_early_is_written_and_its_status_kept(
    console: Console, made: Any, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    none = {"pairs": (), "time_ratio": None}
    late = "the program did not end within 5 s; allow more by --budget"
    late_one = {"ended": "budget", "problem": late, **none}
    for changes, status, says in (
        ({"ended": "interrupted"}, 130, "3 pairs"),
        ({"ended": "failed", "problem": "the program ended with status 3"}, 4, "3 pairs"),
        ({"ended": "failed", "problem": "the program ended with status 3", **none}, 4, "No pair"),
        (late_one, 0, late[1:]),
    ):
        made(verdict=Verdict.OPEN, **changes)
        written = ("--html", str(page)) if changes is late_one else ()
        done = console("prove", *written, "--", "true")
        assert done.status == status
        assert says in " ".join(done.out.split())
        assert "80.0 %" in done.out
    assert page_document(page)["sections"]["shares"]
    done = console("prove", "--json", "--", "true")
    assert (done.json["pairs"], done.json["problem"]) == ([], late)


def test_nothing_is_no_gain(console: Console, made: Any) -> None:
    made(pairs=(), time_ratio=None, verdict=Verdict.OPEN, ended="interrupted", coverage=None)
    done = console("prove", "--", "true")
    assert done.status == 130
    assert "times as fast" not in done.out
    made(pairs=PAIRS[:1], time_ratio=Ratio(0.5, None), verdict=Verdict.OPEN, ended="budget")
    done = console("prove", "--", "true")
    assert done.status == 0
    assert "Not decided" in done.out


@pytest.mark.parametrize("higher_is_better", [False, True])
def test_the_page_has_pairs_and_shares_and_makes_no_request(
    console: Console, made: Any, tmp_path: Path, higher_is_better: bool
) -> None:
    """A rate's speed is with over without."""
    coverage = Coverage(1.0, (dataclasses.replace(SHARES[0], share=1.0),))
    made(coverage=coverage, higher_is_better=higher_is_better)
    page = tmp_path / "page.html"
    assert console("prove", "--html", str(page), "--", "true").status == 0
    sections = page_document(page)["sections"]
    assert [row["ours"] for row in sections["pairs"]] == [pair.ours for pair in PAIRS]
    assert {row["speed"] < 1 for row in sections["pairs"]} == {higher_is_better}
    assert sections["shares"][0]["percent"] == 100
    text = page.read_text()
    visible = text[: text.index("<script")]
    assert "sm90:&lt;config&gt;" in visible
    assert not re.search(r'(?:src|href)="(?:https?:)?//', visible)
