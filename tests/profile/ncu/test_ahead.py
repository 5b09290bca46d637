"""An ncu process that is started before there is work for it."""

from __future__ import annotations

import copy
import dataclasses
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fa_tune.core.model import Outcome
from fa_tune.profile.ncu import ahead
from fa_tune.profile.ncu.profiler import EARLY, NcuProfiler, ncu_profiler
from fa_tune.workers.prefork import preforked_workers
from fa_tune.workers.supervisor import WorkerUnusable
from tests.profile.ncu.ncu_bench import FakeNcu, measure, outcomes, plan, samples_ns


@pytest.fixture(autouse=True)
def _cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "MODULES", ())


@pytest.fixture
def profiler(fake: FakeNcu) -> Iterator[NcuProfiler]:
    """Inside `preforked_workers`, whose workers load nothing."""
    with preforked_workers(()):
        yield NcuProfiler(ncu=fake.path)


def started(fake: FakeNcu, n: int) -> bool:
    """Whether ncu has run a program `n` times, waited for."""
    until = time.monotonic() + 30
    while len(fake.profiled) < n and time.monotonic() < until:
        time.sleep(0.02)
    return len(fake.profiled) == n


def folders(fake: FakeNcu) -> list[Path]:
    return [Path(call["TMPDIR"]) for call in fake.profiled]


def test_the_process_that_waits_measures_and_the_next_one_waits(
    profiler: NcuProfiler, fake: FakeNcu
) -> None:
    profiler.warm_up()
    assert started(fake, 1)
    first = measure(profiler, plan("5000", "7000", runs=2))
    assert {s: samples_ns(a) for s, a in first.items()} == {
        "sm80:a": [5000, 5001],
        "sm80:b": [7000, 7001],
    }
    assert started(fake, 2), "one has measured, and one waits"
    assert not folders(fake)[0].exists()
    assert folders(fake)[1].exists()
    assert samples_ns(measure(profiler, plan("6000", runs=1))["sm80:a"]) == [6000]


def test_no_other_waits_where_none_will_be_needed(profiler: NcuProfiler, fake: FakeNcu) -> None:
    profiler.warm_up()
    alone = dataclasses.replace(plan("5000"), adaptive=False)
    assert samples_ns(measure(profiler, alone)["sm80:a"]) == [5000]
    assert profiler._ahead._waiting is None
    assert len(fake.profiled) == 1


def test_what_cannot_get_ready_measures_all_the_same(profiler: NcuProfiler, fake: FakeNcu) -> None:
    profiler.get_ready("", 0)  # nobody waits
    profiler.warm_up()
    assert started(fake, 1)
    profiler.get_ready("GPU-7", 0)  # here is none
    assert samples_ns(measure(profiler, plan("6000", runs=1))["sm80:a"]) == [6000]
    assert started(fake, 2), "it was the one that waited, and another waits now"


def test_one_gets_ready_on_the_gpu_that_it_will_measure_on(
    profiler: NcuProfiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    monkeypatch.setenv("TOLD", str(told))
    monkeypatch.setattr(ahead, "PREPARE", "tests.profile.ncu.ncu_child:prepare")
    profiler.warm_up()
    profiler.get_ready("GPU-7", 3)
    until = time.monotonic() + 30
    while not (told.exists() and told.read_text()) and time.monotonic() < until:
        time.sleep(0.02)
    assert told.read_text() == "GPU-7 0"


def test_the_first_launch_is_nobodys_sample(
    profiler: NcuProfiler, fake: FakeNcu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "PREPARE", "tests.profile.ncu.ncu_child:first_launch")
    profiler.warm_up()
    profiler.get_ready("", 0)
    found = measure(profiler, plan("5000", references=("fa2",), runs=2))
    assert samples_ns(found["sm80:a"]) == [5000, 5001]
    assert samples_ns(found["ref:fa2"]) == [9000, 9001]
    assert started(fake, 2), "it was the one that waited"


def test_one_that_was_made_early_is_the_one_that_measures(fake: FakeNcu) -> None:
    with preforked_workers(()):
        early = NcuProfiler(ncu=fake.path)
        token = EARLY.set(early)
        try:
            assert ncu_profiler(ncu=fake.path) is early
            assert ncu_profiler(ncu=fake.path, metric_list="explain") is not early
            assert ncu_profiler(ncu=fake.path, export=Path("x.ncu-rep")) is not early
        finally:
            EARLY.reset(token)
        assert ncu_profiler(ncu=fake.path) is not early


def test_the_gpu_is_told_with_the_job(profiler: NcuProfiler) -> None:
    profiler.warm_up()
    with pytest.raises(WorkerUnusable, match="no CUDA-capable device"):
        list(profiler.measure_all([plan("5000", gpu="GPU-gone")], lambda _: None))


def test_a_crash_below_ncu_costs_its_item(profiler: NcuProfiler) -> None:
    profiler.warm_up()
    found = measure(profiler, plan("5000", "7000:segfault in 0", "6000", runs=2))
    assert outcomes(found) == {"a": Outcome.OK, "b": Outcome.CRASHED, "c": Outcome.OK}


def test_one_that_died_waiting_costs_nothing(profiler: NcuProfiler, fake: FakeNcu) -> None:
    profiler.warm_up()
    waiting = profiler._ahead._waiting
    assert waiting is not None
    waiting._process.kill()
    waiting._process.wait()
    assert samples_ns(measure(profiler, plan("5000"))["sm80:a"]) == [5000]


def test_other_metrics_need_another_process(profiler: NcuProfiler, fake: FakeNcu) -> None:
    profiler.warm_up()
    assert started(fake, 1)
    fake.behave(lacks=["dram__cycles_elapsed.avg.per_second"])
    assert samples_ns(measure(profiler, plan("5000"))["sm80:a"]) == [5000]


def test_nothing_is_left_waiting(fake: FakeNcu) -> None:
    profiler = NcuProfiler(ncu=fake.path)
    with preforked_workers(()):
        profiler.warm_up()
        assert started(fake, 1)
        waiting = profiler._ahead._waiting
    assert waiting is not None
    assert waiting._process.returncode is not None
    assert not waiting.folder.exists()
    until = time.monotonic() + 10
    while _below(waiting.folder) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _below(waiting.folder)


def test_nothing_waits_where_nobody_would_end_it(fake: FakeNcu) -> None:
    profiler = NcuProfiler(ncu=fake.path)
    profiler.warm_up()
    assert not profiler._ahead._waiting
    assert samples_ns(measure(profiler, plan("5000"))["sm80:a"]) == [5000]
    assert len(fake.profiled) == 1


def _below(folder: Path) -> list[str]:
    """Processes whose environment names the folder."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            text = environ.read_bytes()
        except OSError:
            continue
        if os.fsencode(folder) in text:
            found.append(environ.parent.name)
    return found


def test_a_copy_has_processes_of_its_own(profiler: NcuProfiler, fake: FakeNcu) -> None:
    other = copy.copy(profiler)
    profiler.warm_up()
    other.warm_up()
    assert started(fake, 2)
    for one in (profiler, other):
        assert samples_ns(measure(one, plan("6000", runs=1))["sm80:a"]) == [6000]
    used = [Path(call["TMPDIR"]) for call in fake.profiled[:2]]
    assert len(set(used)) == 2
    assert not any(folder.exists() for folder in used), "both have measured"
