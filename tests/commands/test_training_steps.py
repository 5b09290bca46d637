"""`search --op both`: a search for each pass, and what they take together."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from fa_tune.core.model import Variant
from fa_tune.core.options import SearchOptions
from fa_tune.core.workload import BACKWARD, Workload
from fa_tune.search.decide import decide
from fa_tune.tune.results import SearchResult, WorkloadResult
from tests.commands import fakes
from tests.commands.console import Console, words
from tests.commands.test_operation_option import CONFIG
from tests.commands.test_page import page_document

# Milliseconds of a pass: ours, FlashAttention 2, cuDNN.
FORWARD, BACK = (2.0, 3.0, 2.5), (6.0, 9.0, 6.6)


def found_for(workload: Workload) -> WorkloadResult:
    is_backward = workload.op == BACKWARD
    own = Variant("sm90_bwd", CONFIG).key if is_backward else fakes.key(fakes.FAST)
    subjects = (own, "ref:fa2", "ref:cudnn")
    times = BACK if is_backward else FORWARD
    attempts = [fakes.attempt(s, (t,) * 3, workload) for s, t in zip(subjects, times, strict=True)]
    measured = [a.measurement for a in attempts if a.measurement is not None]
    return WorkloadResult(workload, tuple(attempts), decide(measured, own))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[SearchOptions]:
    """Options of the searches, in their order; each finds something for all of its workloads."""
    found: list[SearchOptions] = []

    def search(options: SearchOptions, *_: Any, **__: Any) -> SearchResult:
        found.append(options)
        return fakes.search_result([found_for(w) for w in options.workloads.workloads()])

    monkeypatch.setattr("fa_tune.tune.flow.search", search)
    return found


def test_forward_passes_are_searched_as_training_runs_them(
    console: Console, asked: list[SearchOptions]
) -> None:
    given = "--op both --seq-lens 512,1024 --dtype bf16 --mask causal --family sm90,sm80,sm90_bwd"
    done = console("search", *words(given))
    assert done.status == 0, done.err
    forward, backward = ([*options.workloads.workloads()] for options in asked)
    assert [(w.op, w.lse, w.seq_len_q) for w in forward] == [
        ("forward", True, 512),
        ("forward", True, 1024),
    ]
    assert [(w.op, w.lse, w.causal) for w in backward] == [("backward", False, True)] * 2
    assert [options.families for options in asked] == [("sm90", "sm80"), ("sm90_bwd",)]


def test_models_have_steps_of_their_training(console: Console, asked: list[SearchOptions]) -> None:
    done = console("search", *words("--op both --model llama-3.1-8b:training"))
    assert done.status == 0, done.err
    forward, backward = (options.workloads.workloads() for options in asked)
    assert {w.kv_heads for w in forward} == {w.kv_heads for w in backward} == {8}
    assert len(forward) == len(backward)
    assert all(w.lse for w in forward)


def test_a_step_is_beside_those_of_the_libraries(
    console: Console, asked: list[SearchOptions], tmp_path: Path, wide_terminal: None
) -> None:
    page, table = tmp_path / "page.html", tmp_path / "t.csv"
    given = ("search", *words("--op both --dtype fp16"), "--csv", str(table))
    done = console(*given, "--html", str(page), "--json")
    assert done.status == 0, done.err
    (step,) = done.json["steps"]
    assert (step["forward_s"], step["backward_s"]) == (2e-3, 6e-3)
    fa2, cudnn = (sum(times) / 8.0 for times in zip(FORWARD[1:], BACK[1:], strict=True))
    assert step["speed_over"] == pytest.approx({"FA2": fa2, "cuDNN": cudnn})
    (shown,) = page_document(page)["sections"]["steps"]
    assert (shown["both_ms"], shown["library"]) == (pytest.approx(8.0), "cuDNN")
    assert shown["times"] == pytest.approx(cudnn)
    assert BACKWARD not in shown["workload"]
    with table.open(encoding="utf-8") as lines:
        assert len([*csv.DictReader(lines)]) == 6, "both passes"
    text = console(*given).out
    assert "8 ms" in text
    assert f"{fa2:.2f}x" in text
    assert f"{cudnn:.2f}x" in text


def test_a_pass_alone_is_no_step(console: Console, asked: list[SearchOptions]) -> None:
    for op in ("forward", "backward"):
        assert console("search", "--op", op, "--json").json["steps"] == []


@pytest.mark.parametrize(
    "arguments", ["search --kernels CONFIG", "search --captured c.json", "bench", "verify"]
)
def test_where_there_are_no_two_passes(
    console: Console, asked: list[SearchOptions], arguments: str
) -> None:
    given = [CONFIG if word == "CONFIG" else word for word in words(arguments)]
    assert console(*given, "--op", "both").status == 2
    assert not asked
