"""Several GPUs, each a GPU that only its processes' environment knows: real worker processes
that are killed, GPUs that stop working, and what becomes of the measurements."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from fa_tune.core import devices
from fa_tune.core.errors import GpusLost
from fa_tune.core.jobs import TimeJob
from fa_tune.core.model import Outcome
from fa_tune.core.options import MachineOptions, WorkloadOptions
from fa_tune.store.journal import VerdictRecord
from fa_tune.tune import plan, single
from fa_tune.tune.fleet.pool import Pool
from fa_tune.tune.results import SearchResult
from fa_tune.workers.supervisor import WorkerUnusable
from tests.tune import fakes
from tests.tune.fakes import Stages
from tests.tune.fleet.gpu_child import time_s
from tests.tune.fleet.gpu_machine import LENGTHS, N_CONFIGS, SPACE, Machine, pretend


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only_sm80: None) -> Machine:
    return pretend(tmp_path, monkeypatch)


def samples(machine: Machine) -> Counter[tuple[str, str, int]]:
    return Counter((s, w, r) for _, _, s, w, r in machine.log("sample"))


def once_more(kept: Counter[tuple[str, str]]) -> Counter[tuple[str, str]]:
    """The default where others are still to be measured beside it, by what is in the journal."""
    keys = fakes.keys(N_CONFIGS)
    partly = {w for _, w in kept if not all((key, w) in kept for key in keys)}
    return Counter((keys[0], w) for w in partly if (keys[0], w) in kept)


# --- peace ---------------------------------------------------------------------------------


def test_workloads_are_spread_and_each_stays_on_one_gpu(machine: Machine) -> None:
    result = machine.search()
    assert all(r.decision is not None for r in result.results)
    assert [r.workload.seq_len_q for r in result.results] == list(LENGTHS)
    where = machine.used
    assert all(len(used) == 1 for used in where.values())
    assert set.union(*where.values()) == {"GPU-a", "GPU-b", "GPU-c"}
    assert set(samples(machine).values()) == {1}
    for record in machine.attempts:
        assert {record.attempt.measurement.gpu_uuid} == where[record.attempt.workload]
    assert result.measured == len(machine.everything)
    verified = sorted(name for *_, name in machine.log("verdict"))
    assert verified == sorted(f"{key} @ plain" for key in fakes.keys(N_CONFIGS))
    asked = {r.workload.key: r.confirmation for r in result.results if r.confirmation is not None}
    assert len(asked) >= 3
    assert all(confirmation.upheld for confirmation in asked.values())
    assert sorted(name for *_, name in machine.log("confirmed")) == sorted(asked)
    for what in ("verdict", "confirmed", "compared"):
        assert {gpu for gpu, *_ in machine.log(what)} == {"GPU-a", "GPU-b", "GPU-c"}
    assert not machine.progress.warnings


def test_several_gpus_choose_what_one_chooses(machine: Machine) -> None:
    several = machine.search()
    alone = MachineOptions(cache_dir=machine.folder / "other", devices="all")
    original = devices.find_devices
    devices.find_devices = lambda numbers: original(numbers)[:1]
    try:
        one = machine.search(machine=alone, registry=machine.folder / "other.json")
    finally:
        devices.find_devices = original
    chosen = [r.decision and r.decision.chosen.subject for r in one.results]
    assert [r.decision and r.decision.chosen.subject for r in several.results] == chosen


def test_a_resumed_search_repeats_nothing_and_stays_on_its_gpus(machine: Machine) -> None:
    machine.search()
    before = samples(machine)
    again = machine.search()
    assert samples(machine) == before
    assert (again.measured, again.reused) == (0, len(machine.everything))


def test_what_is_added_goes_to_the_gpu_that_knows_the_workload(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has nothing of its own left helps the others: what counts is what it is left to."""
    machine.search()
    homes = machine.used
    more = fakes.parsed(fakes.configs(N_CONFIGS + 1))
    monkeypatch.setattr(plan, "choose_configs", lambda *_, **__: more)
    left_to: list[Counter[str]] = []
    each = Pool.each

    def seen(pool: Pool, jobs: Any, *of: Any, prefers: Any = lambda _: "", **more: Any) -> Any:
        if not any(isinstance(job, str) for job in jobs):  # what every GPU does once
            left_to.append(Counter(prefers(job) for job in jobs))
        return each(pool, jobs, *of, prefers=prefers, **more)

    monkeypatch.setattr(Pool, "each", seen)
    done = len(machine.log("sample"))
    machine.search()
    assert {w for _, _, _, w, _ in machine.log("sample")[done:]} == set(homes)
    wanted = Counter(next(iter(gpus)) for gpus in homes.values() if len(gpus) == 1)
    assert wanted
    assert any(wanted <= left for left in left_to)


# --- faults --------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 50])
def test_a_worker_killed_in_mid_measurement_costs_one_sample(machine: Machine, n: int) -> None:
    killer = machine.kills(n)
    result = machine.search()
    killer.join()
    assert all(a.outcome is Outcome.OK for a in result.attempts)
    assert machine.journaled == machine.everything
    taken = samples(machine)
    assert {(s, w) for s, w, _ in taken} == set(machine.everything)
    # Only what was just being handed over may have been taken again.
    assert sum(taken.values()) - len(taken) <= 1


def test_a_lost_gpu_costs_its_running_job_only(machine: Machine) -> None:
    killer = machine.kills(30, "GPU-b", dies=True)
    result = machine.search()
    killer.join()
    assert all(a.outcome is Outcome.OK for a in result.attempts)
    assert machine.journaled == machine.everything
    (lost,) = [w for w in machine.progress.warnings if "is lost" in w]
    assert lost.startswith("GPU 1 is lost: ")
    assert "another GPU takes over" in lost
    again = {(w, r) for (_, w, r), n in samples(machine).items() if n > 1}
    assert len({w for w, _ in again}) <= 1, "only the workload that was running"


def test_when_all_gpus_are_lost_one_line_says_so_and_nothing_is_lost(machine: Machine) -> None:
    killers = [machine.kills(30 + 4 * i, f"GPU-{b}", dies=True) for i, b in enumerate("abc")]
    with pytest.raises(GpusLost) as raised:
        machine.search()
    for killer in killers:
        killer.join()
    text = str(raised.value)
    assert text.startswith("all 3 GPUs are lost, the last one GPU ")
    assert "no CUDA-capable device" in text
    assert "\n" not in text
    kept = machine.journaled
    finished = {w for (_, w), _ in kept.items()}
    for dead in machine.folder.glob("dead-*"):
        dead.unlink()
    done = len(machine.log("sample"))
    assert machine.search().reused == sum(kept.values())
    assert not finished & {w for _, _, _, w, _ in machine.log("sample")[done:]}
    assert machine.journaled == machine.everything


def test_a_gpu_lost_while_it_verifies_is_not_used_to_measure(machine: Machine) -> None:
    (machine.folder / "dead-GPU-c").touch()
    assert all(a.outcome is Outcome.OK for a in machine.search().attempts)
    assert {gpu for gpu, *_ in machine.log("sample")} == {"GPU-a", "GPU-b"}
    verdicts = [r.subject for r in machine.journal.records() if isinstance(r, VerdictRecord)]
    assert sorted(verdicts) == [f"{key} @ plain" for key in sorted(fakes.keys(N_CONFIGS))]
    assert sum("is lost" in w for w in machine.progress.warnings) == 1


def test_a_job_that_no_gpu_can_do_is_not_the_gpus_fault(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimeJob, "handler", "tests.tune.fleet.gpu_child:too_large")
    with pytest.raises(WorkerUnusable, match="the inputs do not fit"):
        machine.search()
    assert not [w for w in machine.progress.warnings if "is lost" in w]


def test_ctrl_c_ends_the_workers_of_all_gpus(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupting(Stages):
        def advance(self, text: str = "") -> None:
            super().advance(text)
            if len(self.steps) > 40:
                raise KeyboardInterrupt

    machine.progress = Interrupting()
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        machine.search()
    pids = {pid for _, pid, *_ in machine.log("sample")}
    assert pids
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert set(threading.enumerate()) <= before
    count = len(machine.log("sample"))
    kept = machine.journaled
    machine.progress = Stages()
    machine.search()
    assert machine.journaled == machine.everything + once_more(kept)
    assert len(machine.log("sample")) > count


# --- other commands ------------------------------------------------------------------------


def test_verify_uses_all_gpus(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = fakes.parsed(fakes.configs(6))
    monkeypatch.setattr(single, "choose_configs", lambda *_, **__: configs)
    report = single.verify("tune", WorkloadOptions(), machine.options().machine, machine.progress)
    assert len(report.verdicts) == 6 * 2  # whole blocks and ragged lengths
    assert {gpu for gpu, *_ in machine.log("verdict")} == {"GPU-a", "GPU-b", "GPU-c"}


def test_an_exploring_search_gives_each_gpu_workloads_of_its_own(machine: Machine) -> None:
    result = machine.search(strategy="random", measurements=2)
    assert all(r.decision is not None and r.exploration is not None for r in result.results)
    assert all(len(used) == 1 for used in machine.used.values())
    assert len(set.union(*machine.used.values())) == 3


def test_a_space_is_recorded_on_all_gpus(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each workload in chunks, and whole on one of them."""
    monkeypatch.setattr(SPACE, "CHUNK", 2)
    (machine.folder / "slow-GPU-b").write_text("1.05")
    options = machine.options()
    to = machine.folder / "tune.space.csv.gz"
    configs = fakes.parsed(fakes.configs(9))
    made = SPACE.record_space(configs, options, to, machine.progress)
    assert {gpu for gpu, *_ in machine.log("sample")} == {"GPU-a", "GPU-b", "GPU-c"}
    ratios = defaultdict(set)
    for row in made.rows:
        ratio = row.samples_s[0] / time_s(row.variant, row.workload)
        ratios[row.workload].add(round(ratio, 6))
    assert all(len(found) == 1 for found in ratios.values()), "all of one GPU"
    assert len(made.rows) == 9 * len(LENGTHS)


def test_what_another_gpu_measured_is_measured_again_beside_what_is_new(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other GPU is gone: none of its times stands beside those of this one."""
    (machine.folder / "slow-GPU-b").write_text("1.05")
    original = devices.find_devices

    def search_on(number: int, n_configs: int) -> SearchResult:
        monkeypatch.setattr(devices, "find_devices", lambda n: original(n)[number : number + 1])
        found = fakes.parsed(fakes.configs(n_configs))
        monkeypatch.setattr(plan, "choose_configs", lambda *_, **__: found)
        return machine.search(1024)

    def measured_since(done: int) -> set[str]:
        return {subject for _, _, subject, *_ in machine.log("sample")[done:]}

    search_on(0, N_CONFIGS)
    done = len(machine.log("sample"))
    assert search_on(1, N_CONFIGS).measured == 0, "complete, and of one GPU"
    assert measured_since(done) == set()
    result = search_on(1, N_CONFIGS + 1)
    assert measured_since(done) == set(fakes.keys(N_CONFIGS + 1))
    assert {a.gpu_uuid for a in result.attempts} == {"GPU-b"}
