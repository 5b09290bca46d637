"""Exchange with other auto-tuners: T4 results both ways, and Kernel Tuner on our spaces."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from fa_tune.core.errors import InvalidConfig, ProfileFormatError, ToolMissing
from fa_tune.core.model import DeviceInfo, Outcome
from fa_tune.lab import kernel_tuner
from fa_tune.lab.replay import random_score, score
from fa_tune.lab.space_table import (
    SUFFIX,
    RecordedWorkload,
    SpaceMeta,
    SpaceRow,
    SpaceTable,
    recorded,
)
from fa_tune.lab.t4 import export, read_t4, to_kernel_tuner, to_t4
from tests.store.full_disk import refused_with_room

WORKLOAD = "b16_h16_kv16_q4096_k4096_d128_fp16_full"
FAILURES = (
    Outcome.REJECTED,
    Outcome.COMPILE_FAILED,
    Outcome.WRONG_RESULT,
    Outcome.CRASHED,
    Outcome.TIMED_OUT,
)
META = SpaceMeta(
    {"tiles": "int", "flag": "bool", "word": "str"},
    DeviceInfo("NVIDIA H200", (9, 0), "580"),
    units={"l2": "%"},
)

needs_kernel_tuner = pytest.mark.skipif(
    importlib.util.find_spec("kernel_tuner") is None, reason="Kernel Tuner is not installed"
)


def small() -> RecordedWorkload:
    """30 configs, five of them failures of every kind."""
    rows = []
    for i in range(30):
        failed = FAILURES[i] if i < len(FAILURES) else None
        rows.append(
            SpaceRow(
                f"v{i}",
                WORKLOAD,
                failed or Outcome.OK,
                {"tiles": (1, 2, 4, 8, 16)[i % 5], "flag": i // 5 % 2 == 1, "word": "abc"[i // 10]},
                () if failed else (1e-3 + 1e-5 * i, 1.1e-3 + 1e-5 * i, 1.2e-3 + 1e-5 * i),
                facts={"registers": 100.0},
                counters={} if failed else {"l2": 50.0 + i},
            )
        )
    (one,) = recorded(SpaceTable(Path(f"small{SUFFIX}"), META, tuple(rows)))
    return one


def test_t4_is_read_back_as_it_was(tmp_path: Path) -> None:
    space = small()
    results, _ = export(space, META, tmp_path / "made")
    table = read_t4(results, WORKLOAD)
    (read,) = recorded(table)
    assert [r.outcome for r in read.rows] == [r.outcome for r in space.rows]
    assert [r.facts for r in read.rows] == [r.facts for r in space.rows]
    assert [r.counters for r in read.rows] == [r.counters for r in space.rows]
    assert [r.samples_s for r in read.rows] == [pytest.approx(r.samples_s) for r in space.rows]
    assert [r.knobs["tiles"] for r in read.rows] == [r.knobs["tiles"] for r in space.rows]
    assert {r.knobs["flag"] for r in read.rows} == {0, 1}
    assert table.meta.units == {"l2": "%"}
    assert table.meta.knobs == {"tiles": "int", "flag": "int", "word": "str"}


def test_a_full_disk_leaves_both_old_files(tmp_path: Path) -> None:
    made = export(small(), META, tmp_path)
    before = [path.read_bytes() for path in made]
    room = min(map(len, before)) // 2
    message = refused_with_room(room, lambda: export(small(), META, tmp_path))
    assert message.startswith("cannot write to ")
    assert [path.read_bytes() for path in made] == before


def test_t4_times_are_milliseconds() -> None:
    document = to_t4(small(), {})
    assert document["schema_version"] == "1.0.0"
    found = document["results"][10]
    assert found["configuration"] == {"tiles": 1, "flag": 0, "word": "b"}
    assert found["times"]["runtimes"] == pytest.approx([1.1, 1.2, 1.3])
    assert found["measurements"][0] == {"name": "time", "value": pytest.approx(1.2), "unit": "ms"}
    assert (found["invalidity"], found["correctness"]) == ("correct", 1)
    words = [r["invalidity"] for r in document["results"][:5]]
    assert words == ["constraints", "compile", "correctness", "runtime", "timeout"]
    assert document["results"][2]["correctness"] == 0


MEASURED = {"name": "time", "value": 5, "unit": "s"}


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"invalidity": "tired"}, "results[1]"),
        ({"times": {"runtimes": [-1.0]}}, "results[1]"),
        ({"times": {"runtime": [1.0]}}, "results[1].times.runtime"),
        ({"configuration": {"a": [1]}}, "results[1].configuration.a"),
        ({"configuration": {"a": "\ud800"}}, "surrogates"),
        ({"objective": ["time"]}, "results[1].objective"),
        ({"measurements": [MEASURED, MEASURED]}, "results[1]"),
        ({"measurements": [MEASURED]}, "results[1]"),  # its runtimes are of milliseconds
        ({"measurements": [{"name": "l2", "value": 5, "unit": "byte"}]}, "results[1]"),
    ],
)
def test_damaged_t4_is_named(tmp_path: Path, change: dict[str, Any], place: str) -> None:
    document = to_t4(small(), {})
    document["results"] = document["results"][9:]
    document["results"][1] |= change
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ProfileFormatError) as caught:
        read_t4(path, WORKLOAD)
    assert place in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"results": []}', "\xff", '{"results": 3}', "[" * 5000, "9" * 5000),
        '{"results": [{"configuration": {"a": 1, "a": 2}}]}',
        '{"metdata": {"timeunit": "seconds"}, "results": [{"configuration": {}}]}',
        '{"metadata": {"timeunit": []}, "results": [{"configuration": {}}]}',
        '{"schema_version": "2.0.0", "results": [{"configuration": {}}]}',
    ],
)
def test_what_is_no_t4_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ProfileFormatError, match=r"x\.json"):
        read_t4(path, WORKLOAD)


def objective(tmp_path: Path, name: str, value: float, unit: str, timeunit: str) -> float:
    """The seconds of a result without runtimes."""
    measured = {"name": name, "value": value, "unit": unit}
    result = {"configuration": {"a": 1}, "objectives": [name], "measurements": [measured]}
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"metadata": {"timeunit": timeunit}, "results": [result]}))
    (seconds,) = read_t4(path, WORKLOAD).rows[0].samples_s
    return seconds


@pytest.mark.parametrize(
    ("name", "unit", "timeunit", "seconds"),
    [
        ("time", "s", "milliseconds", 5.0),
        ("time", "us", "seconds", 5e-6),
        ("time", "", "seconds", 5.0),
        ("time", "", "miliseconds", 5e-3),
        ("time", "", "microseconds", 5e-6),
        ("elapsed", "milliseconds", "seconds", 5e-3),
    ],
)
def test_a_time_has_its_own_unit_or_the_file_s(
    tmp_path: Path, name: str, unit: str, timeunit: str, seconds: float
) -> None:
    assert objective(tmp_path, name, 5, unit, timeunit) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("name", "unit", "timeunit"),
    [
        ("GFLOP/s", "GFLOP/s", "milliseconds"),
        ("GFLOP/s", "", "milliseconds"),
        ("rate", "1/s", "milliseconds"),
        ("time", "fortnights", "milliseconds"),
        ("time", "", "fortnights"),
    ],
)
def test_what_is_no_time_is_not_taken_for_one(
    tmp_path: Path, name: str, unit: str, timeunit: str
) -> None:
    with pytest.raises(ProfileFormatError):
        objective(tmp_path, name, 5, unit, timeunit)


def test_runtimes_are_in_the_file_s_unit(tmp_path: Path) -> None:
    document = to_t4(small(), {})
    document["metadata"]["timeunit"] = "seconds"
    for result in document["results"]:
        result["measurements"] = []
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document))
    assert read_t4(path, WORKLOAD).rows[10].samples_s == pytest.approx((1.1, 1.2, 1.3))


def test_kernel_tuner_cache_has_every_point_under_its_key() -> None:
    space = small()
    cache = to_kernel_tuner(space, "NVIDIA H200")
    assert len(cache["cache"]) == len(space.rows)
    assert cache["tune_params"] == {
        "tiles": [1, 2, 4, 8, 16],
        "flag": [0, 1],
        "word": ["a", "b", "c"],
    }
    assert cache["cache"]["1,0,b"]["time"] == pytest.approx(1.2)
    assert cache["cache"]["2,0,a"]["time"] == "CompilationFailedConfig"
    assert cache["cache"]["8,0,a"]["time"] == "RuntimeFailedConfig"


def test_without_kernel_tuner_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolMissing, match="Kernel Tuner is not installed"):
        kernel_tuner.replay(small(), ["pso"], seeds=1, limit=5, jobs=1)


@needs_kernel_tuner
def test_kernel_tuner_s_strategies_run_on_our_spaces() -> None:
    space = small()
    names = ("random_sample", "genetic_algorithm")
    orders = kernel_tuner.replay(space, names, seeds=2, limit=12, jobs=1)
    assert list(orders) == ["KT random_sample", "KT genetic_algorithm"]
    chance = random_score(space, 12)
    for name, runs in orders.items():
        assert len(runs) == 2
        for run in runs:
            assert len(run) == len(set(run)) <= 12
        assert score(space, name, runs, 12, chance).curve[0.5][-1] > 0.8
    assert orders == kernel_tuner.replay(space, names, seeds=2, limit=12, jobs=2)


@needs_kernel_tuner
def test_kernel_tuner_s_own_call_takes_the_exported_cache(tmp_path: Path) -> None:
    import kernel_tuner as kt

    space = small()
    _, cache = export(space, META, tmp_path)
    results, _ = kt.interface.tune_cache(
        str(cache), strategy="brute_force", verbose=False, quiet=True
    )
    best = min(results, key=lambda r: r["time"])
    assert best["time"] == pytest.approx(1e3 * min(t for t in space.times_s if t))
    assert len(results) == 25  # it leaves the failures out


@needs_kernel_tuner
def test_exported_t4_satisfies_the_published_schema() -> None:
    from kernel_tuner.file_utils import output_file_schema

    version, schema = output_file_schema("results")
    document = to_t4(small(), {"l2": "%"})
    assert document["schema_version"] == version
    jsonschema.validate(document, schema)


@needs_kernel_tuner
def test_a_strategy_that_kernel_tuner_does_not_have_is_one_line() -> None:
    with pytest.raises(InvalidConfig, match="Kernel Tuner's magic does not run"):
        kernel_tuner.replay(small(), ["magic"], seeds=1, limit=5, jobs=1)


@needs_kernel_tuner
def test_a_strategy_that_does_not_run_may_be_left_out() -> None:
    told: list[str] = []
    orders = kernel_tuner.replay(
        small(), ["magic", "mls"], seeds=1, limit=5, jobs=1, on_refusal=told.append
    )
    assert list(orders) == ["KT mls"]
    (line,) = told
    assert line.startswith("Kernel Tuner's magic does not run: ValueError")
