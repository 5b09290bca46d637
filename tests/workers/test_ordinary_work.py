"""What children that do as they are told return, in one round and in several."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fa_tune.core.model import Outcome
from fa_tune.workers.protocol import Event, EventKind
from tests.workers.runs import SILENCE_S, TESTS, pid_of, run, start, value_of


def test_many_items_share_one_process_and_stream_back() -> None:
    results = start({"a": "ok", "b": "ok", "c": {"do": "nap", "nap_s": 3600}})
    first, second = next(results), next(results)
    assert [first.item, second.item] == ["a", "b"]
    assert pid_of(first) == pid_of(second)
    results.close()


def test_no_items_need_no_process(tmp_path: Path) -> None:
    assert run({}, run_dir=tmp_path / "runs") == {}
    assert not (tmp_path / "runs").exists()


def test_values_round_trip() -> None:
    nan, *rest = value_of("nan")
    assert math.isnan(nan)
    assert rest == [math.inf, -math.inf, 0.1, 1e-300]
    assert value_of("text") == "line\nbreak \x1e{} \u2028 ü \ud800 \x00"
    results = run({"bad": "wrong", "good": "ok"})
    assert results["bad"].outcome is Outcome.WRONG_RESULT
    assert results["bad"].reason == "error 0.5 above limit 0.01"
    assert results["good"].outcome is Outcome.OK
    assert value_of("twice") == 1


@pytest.mark.parametrize("order", [("forgotten", "good"), ("good", "forgotten")])
def test_an_item_without_a_result_is_said_so(order: tuple[str, str]) -> None:
    doing = {"forgotten": "forget", "good": "ok"}
    results = run({name: doing[name] for name in order})
    assert results["good"].outcome is Outcome.OK
    assert results["forgotten"].outcome is Outcome.CRASHED
    assert "without a result" in results["forgotten"].reason


def test_the_environment_of_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    (tmp_path / "json.py").write_text("raise ImportError('shadowed')")
    monkeypatch.chdir(tmp_path)  # where a file happens to be named like a library
    env = {"TMPDIR": str(tmp_path), "PYTHONPATH": str(TESTS)}
    (result,) = start({"only": "environment"}, env=env)
    assert result.value is not None
    seen = result.value["env"]
    assert seen["LC_ALL"] == "C"
    assert seen["CUDA_MODULE_LOADING"] == "LAZY"
    assert seen["PYTHONUNBUFFERED"] == "1"
    assert seen["TMPDIR"] == str(tmp_path)


@pytest.mark.parametrize("do", ["segfault", "hang", "sticky_error"])
def test_partials_survive_a_crash_in_a_later_round(do: str) -> None:
    events: list[Event] = []
    results = run(
        {"a": "ok", "b": do, "c": "ok"},
        "rounds",
        shared={"rounds": 4, "bad_round": 2},
        item_timeout_s=SILENCE_S,
        on_event=events.append,
    )
    assert results["b"].outcome is (Outcome.TIMED_OUT if do == "hang" else Outcome.CRASHED)
    for name, from_first in (("a", 3), ("c", 2)):
        samples = results[name].value
        assert samples is not None
        assert [sample[:2] for sample in samples] == [[name, turn] for turn in range(4)]
        pids = [sample[2] for sample in samples]
        assert len(set(pids)) == 2
        assert pids.count(pids[0]) == from_first  # none was measured again
    partials = [event.value[:2] for event in events if event.kind is EventKind.PARTIAL]
    assert sorted(partials) == sorted(
        [[n, t] for n in "ac" for t in range(4)] + [["b", t] for t in range(2)]
    )
    assert [event.kind for event in events].count(EventKind.STARTED) == 2


def test_partials_of_an_earlier_run_are_passed_on() -> None:
    kept = [["a", 0, 1], ["a", 1, 1]]
    items = {"a": {"do": "ok", "_partials": kept}}
    samples = run(items, "rounds", shared={"rounds": 3, "bad_round": 9})["a"].value
    assert samples is not None
    assert samples[:2] == kept
    assert len(samples) == 3
