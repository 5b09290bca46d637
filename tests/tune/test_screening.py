"""GPUs that are not alike: more of them than workloads, or another one than last time."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from fa_tune.core import devices
from fa_tune.core.model import Outcome
from fa_tune.tune import asked, screening
from fa_tune.tune.results import SearchResult
from tests.tune import fakes
from tests.tune.fleet.gpu_child import time_s
from tests.tune.fleet.gpu_machine import N_CONFIGS, Machine, pretend


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only_sm80: None) -> Machine:
    return pretend(tmp_path, monkeypatch)


# --- more GPUs than workloads --------------------------------------------------------------


def screened(machine: Machine, monkeypatch: pytest.MonkeyPatch, n: int) -> SearchResult:
    monkeypatch.setattr(screening, "MIN_GROUP", 4)
    monkeypatch.setattr(asked, "choose_configs", lambda *_, **__: fakes.parsed(fakes.configs(n)))
    return machine.search(1024)


def test_one_workload_is_dealt_out_and_decided_on_one_gpu(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine.folder / "slow-GPU-b").write_text("1.07")
    (machine.folder / "slow-GPU-c").write_text("0.95")
    result = screened(machine, monkeypatch, 16)
    (one,) = result.results
    assert one.decision is not None
    times = {a.subject: time_s(a.subject, a.workload) for a in one.attempts}
    assert set(times) == set(fakes.keys(16))
    assert one.decision.leader.subject == min(times, key=lambda s: times[s])
    finalists = {s.subject for s in one.decision.standings}
    best = min(min(times.values()), times[fakes.keys(1)[0]])
    expected = {s for s, t in times.items() if t <= best * screening.WITHIN}
    assert finalists == expected | set(fakes.keys(2)), "those, and the pair"
    where = defaultdict(set)
    for attempt in one.attempts:
        assert attempt.measurement is not None
        where[attempt.subject in finalists].add(attempt.measurement.gpu_uuid)
        seen = attempt.measurement.samples_s[0] / times[attempt.subject]
        home = {"GPU-a": 1.0, "GPU-b": 1.07, "GPU-c": 0.95}
        (final,) = {
            a.measurement.gpu_uuid
            for a in one.attempts
            if a.measurement is not None and a.subject in finalists
        }
        assert seen == pytest.approx(home[final], rel=1e-3), "times are of the final's gpu"
    assert len(where[True]) == 1
    assert len(where[False]) > 1
    done = len(machine.log("sample"))
    again = screened(machine, monkeypatch, 16)
    assert len(machine.log("sample")) == done, "nothing is measured twice"
    assert again.results[0].decision == one.decision


def test_a_gpu_lost_in_a_screening_round_costs_its_group(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    killer = machine.kills(25, "GPU-b", dies=True)
    result = screened(machine, monkeypatch, 16)
    killer.join()
    (one,) = result.results
    assert {a.subject for a in one.attempts} == set(fakes.keys(16))
    assert all(a.outcome is Outcome.OK for a in one.attempts)
    assert sum("is lost" in w for w in machine.progress.warnings) == 1


def test_few_configs_are_not_worth_screening(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    screened(machine, monkeypatch, 8)
    assert len({gpu for gpu, *_ in machine.log("sample")}) == 1


# --- another GPU than last time ------------------------------------------------------------


def test_what_another_gpu_measured_is_scaled_by_the_default(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one GPU each time, as on machines that come and go."""
    (machine.folder / "slow-GPU-b").write_text("1.05")
    gpus_here = devices.find_devices("all")
    default, added = fakes.keys(1)[0], fakes.keys(N_CONFIGS + 1)[-1]

    def search_on(n: int, configs: int) -> SearchResult:
        monkeypatch.setattr(devices, "find_devices", lambda numbers: gpus_here[n : n + 1])
        found = fakes.parsed(fakes.configs(configs))
        monkeypatch.setattr(asked, "choose_configs", lambda *_, **__: found)
        return machine.search(1024)

    search_on(0, N_CONFIGS)
    done = len(machine.log("sample"))
    result = search_on(1, N_CONFIGS + 1)
    measured = {subject for gpu, _, subject, *_ in machine.log("sample")[done:]}
    assert measured == {default, added}, "the new one and the default"
    for attempt in result.attempts:
        assert attempt.measurement is not None
        seen = attempt.measurement.samples_s[0] / time_s(attempt.subject, attempt.workload)
        assert seen == pytest.approx(1.05, rel=1e-3)
        was_carried = attempt.measurement.scaled_by is not None
        assert was_carried == (attempt.subject not in measured)
    done = len(machine.log("sample"))
    search_on(0, N_CONFIGS)
    assert {s for _, _, s, *_ in machine.log("sample")[done:]} <= {default}
