"""The program itself, from a shell: cold, again, and killed."""

import json
import os
import random
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fa_tune import families
from fa_tune.core import devices
from fa_tune.core.arch import limits
from fa_tune.core.inputs import BUILT_IN
from fa_tune.core.options import DEFAULT_KERNELS, REFERENCES
from fa_tune.core.workload import DType, Workload
from fa_tune.store.journal import AttemptRecord, Journal, VerdictRecord
from fa_tune.store.registry import file as registry_file
from fa_tune.tune import ab_test, compare_inputs
from tests.gpu.conftest import PROGRAM

pytestmark = pytest.mark.gpu

SEARCH = ["search", "--seq-lens", "1024", "--dtype", "fp16", "--json"]
COLD_S, AGAIN_S = 60.0, 2.0
CORES = 16  # that the times above are for
KILLS = 3


def n_subjects() -> int:
    """The default set's configs that run here, the default configs, and the references."""
    device = devices.find_device()
    here = limits(device.compute_capability)
    chosen = families.runnable(here, workloads=[Workload(16, 16, 16, 1024, 1024, 128, DType.FP16)])
    found = families.named_configs(DEFAULT_KERNELS, chosen, dtypes=[DType.FP16], d_head=128)
    able = {c for c in found if families.constraints(c, here) is None}
    return len(able.union(families.defaults(128, DType.FP16, here))) + len(REFERENCES)


@dataclass
class Home:
    """A user's folders."""

    folder: Path

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        temporary = self.folder / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        places = ["--cache-dir", str(self.cache), "--registry", str(self.registry)]
        return subprocess.Popen(
            [*PROGRAM, *SEARCH, *places, *arguments],
            env={**os.environ, "TMPDIR": str(temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def search(self, *arguments: str) -> tuple[dict[str, Any], float]:
        """Its result, and how long it took in seconds."""
        begin = time.monotonic()
        process = self.start(*arguments)
        out, err = process.communicate(timeout=300)
        took_s = time.monotonic() - begin
        assert process.returncode == 0, err
        return json.loads(out), took_s

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def registry(self) -> Path:
        return self.folder / "registry.json"

    def kept(self) -> dict[tuple[str, str, str], Any]:
        """Everything finished that the journal holds; each once."""
        records = Journal(self.cache / "journal.sqlite").records()
        found: dict[tuple[str, str, str], Any] = {}
        for record in records:
            digest = record.fingerprint.digest
            if isinstance(record, AttemptRecord):
                found[digest, record.attempt.subject, record.attempt.workload] = record
            elif isinstance(record, VerdictRecord):
                found[digest, record.subject, "verdict"] = record
        assert len(found) == len(records), "something was done twice"
        return found

    def running(self) -> list[str]:
        """Processes of these searches, known by their folder for temporary files."""
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            try:
                if str(self.folder / "tmp").encode() in environ.read_bytes():
                    found.append((environ.parent / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return found


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, dict[str, Any], float]:
    """A first search with nothing there."""
    home = Home(tmp_path_factory.mktemp("home"))
    return (home, *home.search())


Searched = tuple[Home, dict[str, Any], float]


def decision(result: dict[str, Any]) -> dict[str, Any]:
    (one,) = result["workloads"]
    found: dict[str, Any] = one["decision"]
    return found


def test_a_cold_search_finds_a_kernel_in_time(searched: Searched) -> None:
    home, result, took_s = searched
    (one,) = result["workloads"]
    assert len(one["rows"]) == n_subjects()
    assert {row["outcome"] for row in one["rows"]} == {"ok"}
    assert result["reused"] == 0
    assert result["measured"] >= n_subjects()
    (entry,) = registry_file.load(home.registry).entries
    assert entry.chosen.key == decision(result)["chosen"]["subject"]
    assert entry.source == "measured"
    assert entry.method == result["method"]
    assert entry.verdict.correct
    assert home.running() == []
    if (os.cpu_count() or 1) >= CORES:
        assert took_s < COLD_S


def test_the_chosen_one_is_no_slower_than_the_default_and_flashattention_2(
    searched: Searched,
) -> None:
    home, _, _ = searched
    (entry,) = registry_file.load(home.registry).entries
    assert entry.ratio_to_default.value <= 1
    assert entry.ratio_to_references["fa2"].value <= 1


def test_what_inputs_cost_the_choice_is_of_paired_samples(searched: Searched) -> None:
    home, _, _ = searched
    (entry,) = registry_file.load(home.registry).entries
    costs = {name: found.ratio_to_own_inputs for name, found in entry.per_inputs.items()}
    assert costs.keys() == set(map(str, BUILT_IN))
    assert costs.pop(entry.inputs) == 1.0
    assert all(cost is not None and 0.5 < cost < 2.0 for cost in costs.values()), costs
    errors = [found.error_to_fa2 for found in entry.per_inputs.values()]
    assert all(error is not None and 0.9 < error < 2.0 for error in errors), errors


def test_again_with_nothing_changed_it_measures_nothing(searched: Searched) -> None:
    home, first, _ = searched
    result, took_s = home.search()
    assert result["measured"] == 0
    assert result["reused"] == first["measured"]
    assert result["workloads"] == first["workloads"]
    if (os.cpu_count() or 1) >= CORES:
        assert took_s < AGAIN_S


def n_attempts(kept: dict[tuple[str, str, str], Any]) -> int:
    """Attempts at variants and references; the comparisons of the choice with the default, which
    are in the journal as well, are none."""
    attempts = [r.attempt for r in kept.values() if isinstance(r, AttemptRecord)]
    comparisons = tuple(f"{method}:" for method in (ab_test.METHOD, compare_inputs.METHOD))
    return sum(not a.subject.startswith(comparisons) for a in attempts)


def test_killed_it_loses_nothing_and_repeats_nothing(searched: Searched, tmp_path: Path) -> None:
    dice = random.Random(3)
    home = Home(tmp_path / "home")
    compiled = next(searched[0].cache.glob("artifacts*"))
    shutil.copytree(compiled, home.cache / compiled.name)
    before: dict[tuple[str, str, str], Any] = {}
    for _ in range(KILLS):
        process = home.start()
        time.sleep(dice.uniform(2, 10))
        assert process.poll() is None, "the search ended before it was killed: kill it earlier"
        process.kill()
        process.communicate()
        until = time.monotonic() + 30
        while left := home.running():
            assert time.monotonic() < until, f"these outlive the search: {left}"
            time.sleep(0.1)
        after = home.kept()
        assert {key: after[key] for key in before} == before
        before = after
    result, _ = home.search()
    after = home.kept()
    assert {key: after[key] for key in before} == before
    assert result["reused"] == n_attempts(before)
    assert result["reused"] + result["measured"] == n_attempts(after)
    assert {row["outcome"] for row in result["workloads"][0]["rows"]} == {"ok"}
