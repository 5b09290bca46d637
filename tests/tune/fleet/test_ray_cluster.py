"""Boards behind Ray: a real local cluster whose GPUs are a number, and actors that are killed.

Skipped without ray; one cluster serves all tests, since starting one takes half a minute.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextvars import copy_context
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock

from fa_tune.build.compile import BuildResult
from fa_tune.core.errors import InvalidConfig, ToolMissing
from fa_tune.core.jobs import TimeJob
from fa_tune.core.model import Outcome
from fa_tune.tune.fleet import ray_actor as remote
from fa_tune.tune.fleet import ray_cluster
from tests.project_files import ROOT
from tests.tune.fakes import FakeCompiler, Stages
from tests.tune.fleet.gpu_machine import Machine, pretend_work
from tests.tune.fleet.ray_child import FakeGpu

pytestmark = pytest.mark.xdist_group("ray")  # one cluster serves all


def test_without_ray_one_line_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ToolMissing, match="--ray needs the package ray"):
        ray_cluster.ray_gpus("auto", Stages())


def test_kernels_travel_as_bytes_and_keep_their_places(tmp_path: Path) -> None:
    path = tmp_path / "a.cubin"
    path.write_bytes(b"a kernel")
    items = {"x": {"cubin": str(path), "pair": [{"cubin": str(path), "symbol": "s"}]}, "y": {}}
    files = remote.read_files(remote.files_of(items))
    assert files == {str(path): b"a kernel"}
    folder = tmp_path / "there"
    folder.mkdir()
    there = remote.renamed(items, remote._written(files, folder).__getitem__)
    assert there["x"]["pair"][0]["symbol"] == "s"
    assert len(list(remote.files_of(there))) == 2
    for found in remote.files_of(there):
        assert Path(found).parent == folder
        assert Path(found).read_bytes() == b"a kernel"


def test_a_worker_waits_over_there(monkeypatch: pytest.MonkeyPatch) -> None:
    tests = ROOT / "tests"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tests), str(ROOT)]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(TimeJob, "handler", TimeJob.handler)  # which it changes
    gpu = FakeGpu()
    gpu.host()
    waiting = gpu._prefork._waiting
    items = {"a": {"do": "ok"}}
    results = gpu.run_items("job_handlers:work", {}, items, (20, 20), {})
    (result,) = copy_context().run(list, results)  # that of an actor's process ends with it
    gpu._prefork.end()
    assert isinstance(result.value, dict)
    assert result.value["pid"] == waiting.pid


# --- a cluster -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that all workers know."""
    ray = pytest.importorskip("ray", reason="ray is not installed: no GPUs beyond this machine")
    folder = tmp_path_factory.mktemp("cluster")
    # One test process at a time has a cluster.
    here = FileLock(tmp_path_factory.getbasetemp().parent / "ray-cluster.lock")
    with here, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUS", str(folder))
        patch.setenv("PYTHONPATH", f"{ROOT}:{os.environ.get('PYTHONPATH', '')}")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        start = ray.init

        def init(address: str = "", **settings: Any) -> None:
            if address:
                raise ConnectionError  # there is none yet
            start(num_gpus=3, num_cpus=4, **settings)

        patch.setattr(ray, "init", init)
        assert ray_cluster._connected("auto") is ray
        yield folder
        ray.shutdown()


def test_a_cluster_of_its_own_is_reached_from_this_machine_alone(cluster: Path) -> None:
    ray = import_module("ray")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no other address")
        host = asked.getsockname()[0]
    ports = {ray.get_runtime_context().gcs_address.rpartition(":")[2]}
    ports |= {node["NodeManagerPort"] for node in ray.nodes()}
    for port in map(int, ports):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, port), timeout=5)
        socket.create_connection(("127.0.0.1", port), timeout=5).close()


@pytest.mark.parametrize(("host", "stays"), [("127.0.0.1", True), ("192.0.2.7", False)])
def test_a_cluster_that_others_would_reach_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, host: str, stays: bool
) -> None:
    ended: list[bool] = []
    ray = SimpleNamespace(
        init=lambda **_: None,
        shutdown=lambda: ended.append(True),
        util=SimpleNamespace(get_node_ip_address=lambda: host),
    )
    monkeypatch.setitem(sys.modules, "ray._private.ray_constants", SimpleNamespace())
    with contextlib.nullcontext() if stays else pytest.raises(ToolMissing, match=host):
        ray_cluster._start(ray, {})
    assert bool(ended) is not stays


@pytest.fixture
def machine(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only_sm80: None
) -> Machine:
    kernel = tmp_path / "kernel.cubin"
    kernel.write_bytes(b"a kernel")
    compiler = FakeCompiler()

    def build(*args: Any) -> list[BuildResult]:
        return [
            replace(r, artifact=replace(r.artifact, cubin=str(kernel)))
            for r in compiler(*args)
            if r.artifact is not None
        ]

    monkeypatch.setattr(ray_cluster, "ACTOR", "tests.tune.fleet.ray_child:FakeGpu")
    pretend_work(monkeypatch, build)
    shutil.rmtree(cluster)
    cluster.mkdir()
    return Machine(cluster, lengths=(256, 512, 768, 1024), gpus={"ray": "auto"})


def test_every_gpu_of_the_cluster_measures(machine: Machine) -> None:
    assert machine.search().source == "measured on the cluster's 3 x NVIDIA H200"
    assert machine.journaled == machine.everything
    assert all(len(used) == 1 for used in machine.used.values())
    assert set.union(*machine.used.values()) == {"GPU-a", "GPU-b", "GPU-c"}
    again = machine.search()
    assert (again.measured, again.reused) == (0, len(machine.everything))


@pytest.mark.parametrize("victim", ["actor", "worker"])
def test_what_is_killed_costs_only_its_running_job(machine: Machine, victim: str) -> None:
    killed: list[str] = []

    def kill() -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until and not killed:
            if len(machine.log("sample")) >= 15:
                _, pid, _, workload, _ = machine.log("sample")[-1]
                try:
                    os.kill(_parent(pid) if victim == "actor" else pid, signal.SIGKILL)
                except (ProcessLookupError, FileNotFoundError):
                    continue
                killed.append(workload)
            time.sleep(0.005)

    killer = threading.Thread(target=kill)
    killer.start()
    result = machine.search()
    killer.join()
    assert killed
    assert all(a.outcome is Outcome.OK for a in result.attempts)
    assert machine.journaled == machine.everything
    taken = Counter((subject, workload, n) for _, _, subject, workload, n in machine.log("sample"))
    twice = {workload for (_, workload, _), n in taken.items() if n > 1}
    assert twice <= set(killed)


def _parent(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def test_a_node_with_another_fa_tune_is_refused(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "package_sources", lambda: "0" * 12)
    with pytest.raises(InvalidConfig, match=r"has fa-tune .* and this machine .*install the same"):
        machine.search()


def test_gpus_of_different_models_are_refused(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "ACTOR", "tests.tune.fleet.ray_child:OddGpu")
    with pytest.raises(InvalidConfig, match="name GPUs of one model"):
        machine.search()
