"""An item that crashes, hangs or lies costs itself alone."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest

from fa_tune.core.model import Outcome
from fa_tune.workers import child as job_child
from fa_tune.workers.protocol import Event, EventKind, ProcessRef
from fa_tune.workers.supervisor import ItemResult
from tests.workers.runs import SILENCE_S, pid_of, run, value_of, wait_until

CRASHES = {
    "segfault": "killed by SIGSEGV",
    "oom": "killed by SIGKILL (out of memory?)",
    "leave": "exited with status 0 before it was done; stderr ends: last words on stderr",
    "sys_exit": "SystemExit: gone",
    "raise": "RuntimeError: bad tile",
    "sticky_error": "an illegal memory access was encountered",
    "not_json": "TypeError: Object of type object is not JSON serializable",
    "unknown_item": "ValueError: not an item of this job: 'no such item'",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("crashes")


@pytest.fixture(scope="module")
def crashes(runs: Path) -> dict[str, ItemResult]:
    """One run with every way to crash, between two ordinary items."""
    doing = {"before": "ok", **{do: do for do in CRASHES}, "after": "ok"}
    return run(doing, run_dir=runs)


@pytest.mark.parametrize("do", CRASHES)
def test_a_crash_is_attributed_to_the_item_begun(crashes: dict[str, ItemResult], do: str) -> None:
    assert crashes[do].outcome is Outcome.CRASHED
    assert crashes[do].reason == CRASHES[do]
    assert crashes[do].value is None


def test_a_crash_leaves_the_others_alone(crashes: dict[str, ItemResult]) -> None:
    assert crashes["before"].outcome is crashes["after"].outcome is Outcome.OK
    assert pid_of(crashes["before"]) != pid_of(crashes["after"])


@pytest.mark.usefixtures("crashes")
def test_a_crash_leaves_its_stack_on_stderr(runs: Path) -> None:
    said = "".join(path.read_text() for path in runs.glob("*/stderr.log"))
    assert "job_handlers.py" in said
    assert "second line" in said


def test_a_hang_is_ended_at_the_deadline() -> None:
    results = run({"bad": "hang", "after": "ok"}, item_timeout_s=SILENCE_S)
    assert results["bad"].outcome is Outcome.TIMED_OUT
    assert results["bad"].reason == f"silent for {SILENCE_S:g} s"
    assert results["after"].outcome is Outcome.OK


def test_a_hang_deaf_to_sigterm_goes_with_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_child, "TERM_GRACE_S", 0.3)
    results = run({"bad": "hang_hard", "after": "ok"}, item_timeout_s=SILENCE_S)
    assert results["bad"].outcome is Outcome.TIMED_OUT
    assert results["after"].outcome is Outcome.OK


def test_begin_can_set_its_own_limit() -> None:
    results = run({"bad": {"do": "hang", "timeout_s": SILENCE_S}, "after": "ok"})
    assert results["bad"].outcome is Outcome.TIMED_OUT
    slow = {"do": "nap", "nap_s": 0.6, "timeout_s": 20}
    assert run({"slow": slow}, item_timeout_s=0.3)["slow"].outcome is Outcome.OK
    assert run({"a": "chatter"}, item_timeout_s=0.6)["a"].outcome is Outcome.OK


def test_a_slow_consumer_costs_no_item_its_life() -> None:
    kinds: list[EventKind] = []

    def dawdle(event: Event) -> None:
        kinds.append(event.kind)
        if event.kind is EventKind.BEGIN and event.item == "a":
            time.sleep(0.7)  # meanwhile `a` is done in time, and `b` is under way

    a = {"do": "nap", "nap_s": 0.1, "timeout_s": 0.5}
    b = {"do": "nap", "nap_s": 1.0}
    results = run({"a": a, "b": b}, on_event=dawdle)
    assert results["a"].outcome is results["b"].outcome is Outcome.OK
    assert kinds.count(EventKind.STARTED) == 1


def test_a_result_sent_while_being_ended_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_child, "TERM_GRACE_S", 0.5)
    results = run({"slow": {"do": "late", "next": "b"}, "b": "ok"}, item_timeout_s=SILENCE_S)
    assert results["slow"].value == "late"
    assert results["b"].outcome is Outcome.OK  # begun when the end was already decided


def test_beginning_a_finished_item_again_fails_none() -> None:
    results = run({"a": "ok", "b": {"do": "begin_again", "earlier": "a"}, "c": "ok"})
    assert results["b"].outcome is Outcome.CRASHED  # by the second worker, which lacks `a`
    assert "not an item of this job: 'a'" in results["b"].reason
    assert results["a"].outcome is results["c"].outcome is Outcome.OK
    results = run({"a": "die_between", "b": "ok"})
    assert {result.outcome for result in results.values()} == {Outcome.OK}
    results = run({"a": "sticky_error_after_done", "b": "ok"})
    assert results["a"].value == "before"
    assert results["b"].outcome is Outcome.OK


def test_a_torn_record_hides_no_other(tmp_path: Path) -> None:
    assert value_of("torn") == "whole"


def test_a_flood_on_stderr_stays_on_disk() -> None:
    peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = run({"bad": "flood"})["bad"]
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_before
    assert peak_kib < 20_000
    assert result.reason.endswith("status 9 before it was done; stderr ends: the last line")
    results = run({"liar": "liar", "after": "ok"})
    assert results["liar"].value == "true"
    assert results["after"].value != "forged"


def test_processes_left_behind_by_an_item_are_ended() -> None:
    stray = value_of("leave_child")
    wait_until(lambda: ProcessRef.of(stray) is None)
