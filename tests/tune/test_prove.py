"""Programs on the CPU, with a stand-in for torch: one that gains, one that does not, and those that
fail in every way."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fa_tune.core.errors import InvalidConfig, NoUsableVariant, ToolMissing
from fa_tune.core.options import Silent
from fa_tune.store.proof import Pair, Proof, Verdict
from fa_tune.tune import program
from fa_tune.tune import prove as module
from fa_tune.tune.prove import ProveOptions, prove, read_metric
from tests.project_files import ROOT
from tests.tune import provable

PRINTS = "print(f'step {100 * (0.8 if gains else 1) * (1 + n / 1000)} ms')"
METRIC = read_metric(r"step ([0-9.]+) ms")
Prove = Callable[..., Proof]


@pytest.fixture(autouse=True)
def _with_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALLS", "tests.tune.provable:enable")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def proven(tmp_path: Path) -> Prove:
    def run(body: str, *, uses_torch: bool = True, **options: Any) -> Proof:
        given = {"metric": METRIC, "pairs": 8, **options}
        command = provable.write(tmp_path, body, uses_torch=uses_torch)
        return prove(ProveOptions(command, **given), Silent())

    return run


def test_a_gain_is_found_in_turns(proven: Prove, tmp_path: Path) -> None:
    found = proven(PRINTS)
    assert (found.verdict, found.ended, found.problem) == (Verdict.FASTER, "decided", None)
    assert found.time_ratio is not None
    assert found.time_ratio.value == pytest.approx(0.8, rel=0.01)
    first = [pair.ours_first for pair in found.pairs]
    assert first == [i % 2 == 0 for i in range(len(first))]
    assert provable.runs(tmp_path) == 1 + 2 * len(found.pairs)


def test_a_rate_is_better_the_higher_it_is(proven: Prove) -> None:
    found = proven("print('step', 125 if gains else 100, 'ms')", higher_is_better=True)
    assert found.verdict is Verdict.FASTER
    assert proven("print('step', 125 if gains else 100, 'ms')").verdict is Verdict.SLOWER


def test_no_gain_is_said(proven: Prove) -> None:
    found = proven("print(f'step {100 + n % 3 / 10} ms')", pairs=40)
    assert (found.verdict, found.ended) == (Verdict.NO_GAIN, "decided")


def test_noise_ends_with_the_budget_undecided(proven: Prove) -> None:
    found = proven("print('step', [50, 200, 90, 130, 70][n % 5], 'ms')", pairs=4)
    assert (found.verdict, found.ended, len(found.pairs)) == (Verdict.OPEN, "budget", 4)


def test_wall_time_without_a_metric(proven: Prove) -> None:
    found = proven("time.sleep(0.02 if gains else 0.6)", metric=None)
    assert found.verdict is Verdict.FASTER
    assert all(pair.torchs > 0.6 > pair.ours for pair in found.pairs)


def test_both_streams_count_and_the_median_of_a_run(proven: Prove) -> None:
    body = "print('step 900 ms')\nfor x in (7, 8, 9, 10): print('step', x, 'ms', file=sys.stderr)"
    found = proven(body, pairs=1)
    assert found.pairs[0].ours == 9
    assert proven("print('step 1,234 ms')", pairs=1, metric=read_metric("([0-9,]+)")).pairs[
        0
    ].ours == pytest.approx(1234)


def test_a_failure_leaves_what_was_measured(proven: Prove) -> None:
    found = proven(f"if n == 4: sys.exit('no luck')\n{PRINTS}")
    assert (found.ended, len(found.pairs)) == ("failed", 1)
    assert found.problem is not None
    assert "status 1" in found.problem
    assert "no luck" in found.problem


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("sys.exit(7)", "status 7"),
        ("os.kill(os.getpid(), 11)", "SIGSEGV"),
        ("raise ValueError('a' * 9000)", "status 1: ValueError: aaa"),
        ("print('step fast ms')", "--metric"),
        ("print('step 0 ms')", "--metric"),
    ],
)
def test_a_program_that_fails_is_one_line(proven: Prove, body: str, says: str) -> None:
    with pytest.raises(NoUsableVariant) as failed:
        proven(body)
    assert says in str(failed.value)
    assert len(str(failed.value)) < 400


@pytest.mark.parametrize(("n", "who"), [(1, "with fa-tune"), (2, "as it is")])
def test_a_first_pair_that_fails_leaves_the_coverage(proven: Prove, n: int, who: str) -> None:
    found = proven(f"if n == {n}: sys.exit(3)\n{PRINTS}")
    assert (found.ended, found.pairs, found.time_ratio) == ("failed", (), None)
    assert found.problem is not None
    assert f"{who} ended with status 3" in found.problem
    assert found.coverage is not None


@pytest.mark.parametrize("hangs", [1, 2])
def test_a_budget_without_a_pair_leaves_the_coverage(
    proven: Prove, tmp_path: Path, hangs: int
) -> None:
    found = proven(f"if n >= {hangs}: time.sleep(600)\n{PRINTS}", seconds=1.0, pairs=None)
    assert (found.ended, found.verdict) == ("budget", Verdict.OPEN)
    assert (found.pairs, found.time_ratio) == ((), None)
    assert found.problem is not None
    assert "--budget" in found.problem
    assert found.coverage is not None
    assert provable.runs(tmp_path) == 1 + hangs


@pytest.mark.parametrize(("seconds", "notes"), [(0.8, 1), (30.0, 0)])
def test_a_budget_below_two_runs_is_told_after_the_first(
    tmp_path: Path, seconds: float, notes: int
) -> None:
    command = provable.write(tmp_path, f"time.sleep(0 if n else 0.5)\n{PRINTS}")
    progress = Silent()
    prove(ProveOptions(command, METRIC, pairs=1, seconds=seconds), progress)
    assert ["--budget" in note for note in progress.notes] == [True] * notes


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    for command in (str(tmp_path / "none"), str(tmp_path)):
        with pytest.raises(ToolMissing, match="cannot start"):
            prove(ProveOptions((command,)), Silent())


def test_what_hangs_is_ended_with_all_its_processes(
    proven: Prove, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_RUN_S", 1.0)
    body = f"""
import subprocess
if n >= HANGS:
    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
    Path({str(tmp_path)!r}, 'pid').write_text(str(child.pid))
    time.sleep(600)
{PRINTS}
"""
    with pytest.raises(NoUsableVariant, match="--budget"):
        proven(body.replace("HANGS", "0"), seconds=1.0, pairs=None)
    assert _is_gone(int((tmp_path / "pid").read_text()))
    (tmp_path / "runs").unlink()
    found = proven(body.replace("HANGS", "4"), seconds=6.0, pairs=None)
    assert (found.ended, len(found.pairs)) == ("budget", 1)
    assert _is_gone(int((tmp_path / "pid").read_text()))


def _is_gone(pid: int) -> bool:
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":  # nobody waits for it
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_keeps_the_pairs(proven: Prove, tmp_path: Path, number: int) -> None:
    late = tmp_path / "late"
    body = f"""
if n == 4:
    Path({str(late)!r} + "_").write_text(str(os.getpid()))
    os.rename({str(late)!r} + "_", {str(late)!r})
    time.sleep(600)
{PRINTS}
"""

    def interrupt() -> None:
        while not late.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    with _default_interrupts():
        thread = threading.Thread(target=interrupt)
        thread.start()
        found = proven(body)
        thread.join()
    assert (found.ended, len(found.pairs)) == ("interrupted", 1)
    assert _is_gone(int(late.read_text()))


@contextlib.contextmanager
def _default_interrupts() -> Any:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_first_run_shows_what_served_attention(tmp_path: Path) -> None:
    """Of the real torch, whose CUDA is begun for it."""
    path = tmp_path / "attends.py"
    path.write_text("""
import os, torch
q = torch.randn(1, 2, 16, 32, requires_grad=True)
[c[0]() for c in torch.cuda._queued_calls if c[0].__name__ == "_begin"]
for _ in range(3):
    torch.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()
print("step", 1 + ("FA_TUNE_CAPTURE" in os.environ), "ms")
""")
    found = prove(ProveOptions((sys.executable, str(path)), METRIC, pairs=1), Silent())
    assert found.coverage is not None
    assert found.coverage.attention_s > 0
    assert {part.served.by for part in found.coverage.shares} == {"cpu"}
    assert sum(part.runs for part in found.coverage.shares) == 6
    assert sum(part.share for part in found.coverage.shares) == pytest.approx(1)
    assert all(part.served.why for part in found.coverage.shares)
    assert found.pairs == (Pair(1, 1, True),), "timed runs are not captured"


def test_a_program_that_uses_no_torch_proves_nothing(proven: Prove) -> None:
    with pytest.raises(NoUsableVariant, match="torch"):
        proven(PRINTS, uses_torch=False)


def test_an_operator_that_cannot_be_enabled_is_said(
    proven: Prove, monkeypatch: pytest.MonkeyPatch
) -> None:
    for calls, says in (
        ("tests.tune.provable:refuse", "no flash attention here"),
        ("no_such_module:enable", "no_such_module"),
    ):
        monkeypatch.setattr(module, "CALLS", calls)
        with pytest.raises(ToolMissing, match=says):
            proven(PRINTS)


def test_the_programs_own_startup_still_runs(
    proven: Prove, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import os; os.environ['OWN'] = '3'")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{own}")
    found = proven("print('step', os.environ['OWN'], 'ms')", pairs=1)
    assert found.pairs[0].ours == 3


def test_the_registry_and_nothing_else_is_passed_on(proven: Prove, tmp_path: Path) -> None:
    path = tmp_path / "7.json"
    body = "name = os.environ['FA_TUNE_REGISTRY']\nprint('step', Path(name).stem, 'ms')"
    found = proven(body, pairs=1, registry=path)
    assert {found.pairs[0].ours, found.pairs[0].torchs} == {7}


@pytest.mark.parametrize("text", ["step", "(a)(b)", "(", "(?:x)"])
def test_a_pattern_has_one_group(text: str) -> None:
    with pytest.raises(InvalidConfig):
        read_metric(text)


def test_output_that_is_no_text_is_read_all_the_same(tmp_path: Path) -> None:
    command = provable.write(tmp_path, "os.write(1, b'\\xff\\xfe step 3 ms')", uses_torch=False)
    assert METRIC.findall(program.run(command, os.environ, 30).output) == ["3"]
