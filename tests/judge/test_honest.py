"""No right kernel is refused."""

from __future__ import annotations

import ast
from dataclasses import replace
from random import Random

import pytest

from fa_tune.core.workload import Workload
from fa_tune.tune.judge import flow, timing
from fa_tune.tune.judge.draws import Ordeal
from fa_tune.tune.judge.process import Process
from tests.judge.court import BF16, CAUSAL, FULL, HERE, OPTIONS, verdict

pytest.importorskip("torch", reason="torch is not installed: nobody computes anything")
pytestmark = pytest.mark.xdist_group("honest")  # one import of torch serves all


def _names(file: str) -> list[str]:
    tree = ast.parse((HERE / "honest" / file).read_text(encoding="utf-8"))
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [name for name in functions if not name.startswith("_")]


OWN = _names("formulations.py")
PROBLEMS = (FULL, CAUSAL, BF16)  # in turn


@pytest.fixture(autouse=True)
def _little_is_repeated(_small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "OUTSIDE_S", 0.05)


def _leave_out(monkeypatch: pytest.MonkeyPatch, which: slice) -> None:
    """Cases that nobody drew, but the one that is timed."""
    all_of = flow.ordeals

    def some(workload: Workload, rng: Random) -> list[Ordeal]:
        found = all_of(workload, rng)
        usual = [o for o in found if not o.drawn and o.case.workload != workload.key]
        return [o for o in found if o not in usual[which]]

    monkeypatch.setattr(flow, "ordeals", some)


@pytest.mark.parametrize(("number", "name"), list(enumerate(OWN)))
def test_a_formulation_is_accepted(
    number: int, name: str, ours: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    _leave_out(monkeypatch, slice(number % 2, None, 2))
    options = replace(OPTIONS, workloads=(PROBLEMS[number % len(PROBLEMS)],))
    report = verdict(f"honest/formulations.py:{name}", ours, options)
    assert report.accepted, report.refusals
    assert report.deterministic
    assert sum(case.drawn and not case.no_call for case in report.cases) >= 1
    assert {case.error.ok for case in report.cases if case.error is not None} == {True}


@pytest.mark.parametrize(
    ("name", "workload"),
    [("sdpa", FULL), ("sdpa", CAUSAL), ("flex", BF16), ("compiled", FULL)],
)
def test_a_library_is_accepted_that_says_so(
    name: str, workload: Workload, ours: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    _leave_out(monkeypatch, slice(None))  # some are compiled anew for each shape
    options = replace(OPTIONS, workloads=(workload,), claim="library")
    report = verdict(f"honest/libraries.py:{name}", ours, options)
    assert report.accepted, report.refusals
    assert report.ran
