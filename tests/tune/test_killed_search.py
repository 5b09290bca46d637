"""kill -9 at random moments of a whole search: nothing finished is lost, nothing repeated."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from fa_tune.core.workload import DType, benchmark_workload
from fa_tune.store.journal import AttemptRecord, Journal, VerdictRecord
from fa_tune.store.registry import file as store
from fa_tune.store.registry.schema import Entry
from tests.project_files import ROOT
from tests.tune import fakes
from tests.tune.slow_search import N_CONFIGS, SEQ_LENS

COLD_KILLS = 1  # while it compiles
KILLS = 4  # after that
NAP_S = 0.02
SEED = 29

Line = tuple[str, str, int]  # subject, workload, runs


class Search:
    """One search in a folder, started again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._environment = {**os.environ, "TMPDIR": str(folder / "tmp"), "PYTHONPATH": str(ROOT)}
        (folder / "tmp").mkdir(parents=True)

    def start(self, nap_s: float = NAP_S) -> subprocess.Popen[str]:
        """The search, as soon as its modules are loaded."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.tune.slow_search", str(self.folder), str(nap_s)],
            cwd=ROOT,
            env=self._environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout.readline() == "ready\n"
        return process

    def finish(self, nap_s: float = NAP_S) -> tuple[int, int]:
        """Let it run to its end; (measured, reused)."""
        process = self.start(nap_s)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        measured, reused = json.loads(out)
        return measured, reused

    def wait_for_attempts(self, known: int, process: subprocess.Popen[str]) -> None:
        """Until it has measured something new."""
        until = time.monotonic() + 60
        while len(self.lines("attempts")) <= known:
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.005)

    def kill(self, process: subprocess.Popen[str]) -> None:
        assert process.poll() is None, "the search ended before it was killed: make it longer"
        process.kill()
        process.communicate()
        until = time.monotonic() + 5
        while left := self.running():
            assert time.monotonic() < until, f"these outlive the search: {left}"
            time.sleep(0.01)

    def running(self) -> list[str]:
        """Processes of this search, known by their folder for temporary files."""
        mark = f"TMPDIR={self.folder / 'tmp'}".encode()
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in environ.read_bytes().split(b"\0"):
                    found.append((environ.parent / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return found

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def measured(self) -> list[Line]:
        """Every attempt that the profiler has handed over, over all starts."""
        return [tuple(json.loads(line)) for line in self.lines("attempts")]

    def kept(self) -> dict[Line, AttemptRecord]:
        """Every attempt in the journal; each must be there once."""
        records = [r for r in self.journal().records() if isinstance(r, AttemptRecord)]
        found = {
            (r.attempt.subject, r.attempt.workload, r.fingerprint.runs or 1): r for r in records
        }
        assert len(found) == len(records), "an attempt was written twice"
        return {_as_asked(key): record for key, record in found.items()}

    def journal(self) -> Journal:
        return Journal(self.folder / "cache" / "journal.sqlite")

    def entries(self) -> list[Entry]:
        """The registry, undated."""
        return [
            dataclasses.replace(
                e, provenance=dataclasses.replace(e.provenance, recorded_at="2026-01-01")
            )
            for e in store.load(self.folder / "registry.json").entries
        ]


def _as_asked(key: Line) -> Line:
    """The second part of three runs asks for two more."""
    subject, workload, runs = key
    return subject, workload, 2 if runs == 3 else runs


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_killed_at_any_moment_it_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    search = Search(tmp_path / "killed")

    for _ in range(COLD_KILLS):
        process = search.start()
        time.sleep(dice.uniform(0, 0.8))
        search.kill(process)

    kills = Counter[str]()
    for number in range(KILLS):
        before, measured_before = search.kept(), search.measured()
        verified_before = set(search.lines("verified"))
        process = search.start()
        if number % 2:
            time.sleep(dice.uniform(0, 0.6))
        else:  # the first of these lets it compile and verify in peace
            search.wait_for_attempts(len(measured_before), process)
            time.sleep(dice.uniform(0, 0.15))
        search.kill(process)

        fresh = search.measured()[len(measured_before) :]
        after = search.kept()
        assert len(set(fresh)) == len(fresh)
        assert not set(fresh) & set(before), "what the journal held was measured again"
        assert {key: after[key] for key in before} == before, "what the journal held is gone"
        assert set(after) - set(before) <= set(fresh)
        assert len(set(fresh) - set(after)) <= 1, "more is lost than what was just being written"
        kills["measuring" if fresh else "before"] += 1
        if number > 0:
            assert set(search.lines("verified")) == verified_before, "verified again"
    assert kills["measuring"] >= KILLS // 2

    done = len(search.kept())
    measured, reused = search.finish()
    assert reused == done
    assert search.finish() == (0, measured + reused)

    peaceful = Search(tmp_path / "peaceful")
    shutil.copytree(tmp_path / "killed" / "cache", tmp_path / "peaceful" / "cache")
    for file in (tmp_path / "peaceful" / "cache").glob("journal.sqlite*"):
        file.unlink()
    assert peaceful.finish(nap_s=0) == (measured + reused, 0)
    assert search.entries() == peaceful.entries()
    workloads = {benchmark_workload(n, 128, DType.FP16) for n in SEQ_LENS}
    assert {e.workload for e in search.entries()} == workloads
    kept, wanted = search.kept(), peaceful.kept()
    assert {k: r.attempt for k, r in kept.items()} == {k: r.attempt for k, r in wanted.items()}
    everyone = {s for s, _, runs in kept if runs == 1}
    assert everyone == {"ref:fa2", "ref:cudnn", *fakes.keys(N_CONFIGS)}
    verdicts = [r.subject for r in search.journal().records() if isinstance(r, VerdictRecord)]
    assert sorted(verdicts) == [f"{key} @ plain" for key in sorted(fakes.keys(N_CONFIGS))]
