"""`fa-tune judge`: the report, its page, and taking it again."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fa_tune.core import codec, devices
from fa_tune.core.errors import (
    InvalidConfig,
    NoUsableVariant,
    ProfileFormatError,
    StorageError,
    ToolMissing,
)
from fa_tune.core.judged import JudgeReport, Timing, read_report
from fa_tune.tune.judge import flow, timing
from fa_tune.tune.judge.draws import Ordeal, ordeals
from tests.commands.console import Console, words
from tests.judge.copies import copied_workers

pytest.importorskip("torch", reason="torch is not installed: nobody computes anything")

RIGHT = (
    "from tests.judge.right import attend\n\ndef mine(p):\n    return lambda: {'o': attend(p)}\n"
)
OPTIONS = words("judge mine.py:mine --dtype fp16 --d-head 16 --seq-lens 64 --batch 1 --heads 2")


@pytest.fixture
def console(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Console:
    """In a folder with a target, without a GPU; a few small cases are enough."""
    monkeypatch.setattr(timing, "OUTSIDE_S", 0.05)
    monkeypatch.setattr(devices, "find_device", lambda index=0: None)
    monkeypatch.setattr(flow, "ordeals", lambda w, rng: [o for o in ordeals(w, rng) if _is_few(o)])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(RIGHT, encoding="utf-8")
    return Console(capsys)


def _is_few(ordeal: Ordeal) -> bool:
    return ordeal.drawn or "q64" in ordeal.case.workload


def test_a_report_is_kept_shown_and_taken_again(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with copied_workers():
        done = console(*OPTIONS, *words("--runs 3 --report kept.json --html kept.html --json"))
        again = console(*words("judge --retake kept.json --json --report again.json"))
    assert done.status == 0, done.err
    report = read_report(tmp_path / "kept.json")
    assert codec.dump(report) == json.loads(done.out)
    assert report.accepted
    assert report.timings[0].samples_s
    page = (tmp_path / "kept.html").read_text(encoding="utf-8")
    inside = re.search(r'<script type="application/json"[^>]*>(.*)</script>', page)
    assert inside is not None
    assert json.loads(inside[1])["digest"] == report.digest
    assert not re.search(r"https?://", page)

    found = read_report(tmp_path / "again.json")
    assert [case.workload for case in found.cases] == [case.workload for case in report.cases]
    assert [c.error for c in found.cases] == [c.error for c in report.cases]  # the same draws
    assert again.status in (0, NoUsableVariant.exit_status)  # times on a busy CPU are what they are

    (tmp_path / "mine.py").write_text(RIGHT + "\n", encoding="utf-8")
    assert console(*words("judge --retake kept.json")).status == InvalidConfig.exit_status


def test_a_refusal_is_told_and_has_a_status(console: Console, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def mine(p):\n    return lambda: None\n", encoding="utf-8")
    done = console(*OPTIONS)
    assert done.status == NoUsableVariant.exit_status
    assert "unwritten" in done.out


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("judge", 2),
        ("judge mine.py:mine --retake kept.json", 2),
        ("judge mine.py:other", InvalidConfig.exit_status),
        ("judge --retake none.json", 3),
        ("judge own.cu:rows", ToolMissing.exit_status),
    ],
)
def test_mistakes_are_told(console: Console, tmp_path: Path, line: str, status: int) -> None:
    (tmp_path / "own.cu").write_text("rows", encoding="utf-8")
    (tmp_path / "own.py").write_text("", encoding="utf-8")
    assert console(*words(line)).status == status


REPORT = JudgeReport(
    target="mine.py:mine",
    files={"mine.py": "0"},
    claim="torch",
    required=(),
    workloads=(),
    references=(),
    runs=3,
    seed=1,
    accepted=True,
    refusals=(),
    cases=(),
    timings=(Timing("w", (1.0, 1.1, 1.2), (1.0,), {}, None, 8, 1.0, 1.0),),
    deterministic=None,
    passes_nan_on=None,
    ran=(),
    device="CPU",
    driver="",
    versions={},
    tool={"version": "0", "sha256": "0"},
    taken_at="",
).sealed()


def test_a_changed_report_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    file.write_text(json.dumps(codec.dump(REPORT)))
    assert read_report(file) == REPORT
    for name, value in (("accepted", False), ("seed", 2), ("digest", "0"), ("claim", "library")):
        file.write_text(json.dumps({**codec.dump(REPORT), name: value}))
        with pytest.raises(ProfileFormatError):
            read_report(file)
    file.write_text("{}")
    with pytest.raises(ProfileFormatError):
        read_report(file)


def test_what_differs_is_told() -> None:
    slower = replace(REPORT.timings[0], samples_s=(2.2,))
    other = replace(REPORT, accepted=False, driver="1", timings=(slower,))
    told = flow.differences(REPORT, other)
    assert len(told) == 3
    assert "2.000" in told[-1]
    assert flow.differences(REPORT, REPORT)[0].startswith("1.000")


def test_a_report_is_confirmed_by_its_verdict_and_on_the_same_device_its_times() -> None:
    slower = replace(REPORT, timings=(replace(REPORT.timings[0], samples_s=(1.13,)),))
    assert flow.confirms(REPORT, REPORT)
    assert not flow.confirms(REPORT, slower)
    assert flow.confirms(REPORT, replace(slower, device="another"))
    assert not flow.confirms(REPORT, replace(REPORT, accepted=False))


def test_a_report_that_cannot_be_written_costs_no_result(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fa_tune.commands.judge.judge", lambda *_: REPORT)
    done = console(*OPTIONS, *words("--report /dev/full"))
    assert done.status == StorageError.exit_status
    assert REPORT.digest in done.out
