"""What is started ahead for a GPU of several is what its jobs find."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fa_tune.core import devices
from fa_tune.core.options import MachineOptions
from fa_tune.tune import session
from fa_tune.tune.fleet.gpu import WorkerGpu
from fa_tune.tune.fleet.pool import LANES, Pool, kept_lanes
from fa_tune.tune.session import open_machine, ready_workers
from fa_tune.workers.prefork import PREFORK, warm_up
from fa_tune.workers.supervisor import run_items
from tests.tune.fakes import H200, Stages

TESTS = Path(__file__).parents[2]
GPUS = tuple(WorkerGpu(f"GPU {n}", replace(H200, uuid=f"GPU-{n}"), n) for n in range(2))


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Pool:
    """Two GPUs, on which the tests' own jobs run."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), str(TESTS.parent)]))
    return Pool(GPUS)


def pid_of_job(gpu: WorkerGpu, *_: Any) -> tuple[str, int]:
    (result,) = run_items(
        "job_handlers:work", {}, {"a": {"do": "ok"}}, item_timeout_s=20, env={"GPU": gpu.label}
    )
    assert isinstance(result.value, dict)
    return gpu.label, result.value["pid"]


def waiting(found: dict[str, int]) -> Any:
    """What notes who waits for each GPU."""

    def note(gpu: WorkerGpu) -> None:
        warm_up()
        prefork = PREFORK.get()
        found[gpu.label] = prefork._waiting.pid

    return note


def each(pool: Pool, work: Any) -> list[Any]:
    """`work` once on each GPU: neither begins before both are there."""
    both = threading.Barrier(2)

    def one(gpu: WorkerGpu, *rest: Any) -> Any:
        both.wait(20)
        return work(gpu, *rest)

    return pool.each(["a", "b"], one, Stages())


def test_a_job_is_done_by_the_worker_that_waits_for_its_gpu(pool: Pool) -> None:
    ahead: dict[str, int] = {}
    with kept_lanes():
        pool.on_each(waiting(ahead))
        assert dict(each(pool, pid_of_job)) == ahead
        first = dict(ahead)
        pool.on_each(waiting(ahead))
        assert not set(first.values()) & set(ahead.values())
        assert dict(each(pool, pid_of_job)) == ahead
        pool.on_each(waiting(ahead))
    for pid in ahead.values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_gpu_keeps_its_thread(pool: Pool) -> None:
    def where(gpu: WorkerGpu, *_: Any) -> tuple[str, int]:
        return gpu.label, threading.get_ident()

    with kept_lanes():
        first, second = dict(each(pool, where)), dict(each(pool, where))
    assert first == second
    assert len(set(first.values())) == 2
    assert threading.get_ident() not in first.values()


def test_nothing_is_started_where_no_thread_would_end_it(pool: Pool) -> None:
    ahead: dict[str, int] = {}
    pool.on_each(waiting(ahead))
    assert not ahead
    assert {label for label, _ in each(pool, pid_of_job)} == {"GPU 0", "GPU 1"}


def test_a_command_on_several_gpus_has_a_worker_waiting_for_each(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "find_device", lambda _: H200)
    monkeypatch.setattr(devices, "find_devices", lambda _: tuple(g.device for g in GPUS))
    monkeypatch.setattr(session, "WARM_UP_MODULES", ())
    options = MachineOptions(cache_dir=tmp_path, devices="all")
    with ready_workers(options):
        machine = open_machine(options, Stages())
        lanes = LANES.get()
        there = {g.label: lanes[g.label]._prefork for g in machine.pool.gpus}
        machine.pool.on_each(lambda _: None)  # whatever was asked of the threads is done
        ahead = {label: p._waiting.pid for label, p in there.items() if p._waiting is not None}
        assert dict(each(machine.pool, pid_of_job)) == ahead
