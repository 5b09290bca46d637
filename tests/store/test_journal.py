"""The journal gives back what was put in, and quickly."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_tune.core.model import (
    Attempt,
    Measurement,
    Outcome,
    Quantity,
)
from fa_tune.store.journal import (
    AttemptRecord,
    Fingerprint,
    Journal,
    VerdictRecord,
    explain_difference,
)
from fa_tune.store.journal_records import decode_body, encode_record, parse_line
from tests.store.journal_records import (
    FP,
    WORKLOAD,
    attempt,
    build_failure,
    failed,
    fill,
    older,
    sealed,
    subject,
    verdict,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "run.jsonl"


# Round trips


def test_every_kind_of_record_comes_back_as_it_went_in(path: Path) -> None:
    records = (attempt(1), failed(2), verdict(), build_failure(), attempt(1, time_s=2.0))
    written = fill(path, *records)
    assert written.records() == records
    assert Journal(path).records() == records


def test_a_missing_journal_is_empty_and_reading_creates_nothing(path: Path) -> None:
    assert Journal(path).records() == ()
    assert not path.parent.exists()


def test_one_line_per_record_after_the_header_and_the_fingerprint(path: Path) -> None:
    fill(path, attempt(1), failed(2), attempt(3))
    kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    assert kinds == ["fa-tune journal", "fingerprint", "attempt", "attempt", "attempt"]


def test_find_returns_the_last_attempt_under_that_fingerprint_only(path: Path) -> None:
    other = dataclasses.replace(FP, driver="590.1")
    fill(path, attempt(1, time_s=1.0), attempt(1, time_s=2.0), attempt(1, other, 3.0), failed(2))
    journal = Journal(path)
    found = journal.find(FP.digest, subject(1), WORKLOAD)
    assert found is not None
    assert found.measurement is not None
    assert found.measurement.samples_s[0] == 2.0
    assert journal.find(FP.digest, subject(3), WORKLOAD) is None
    assert journal.find(FP.digest, subject(1), "b1_h1_kv1_q1_k1_d64_fp16_full") is None
    assert journal.find(dataclasses.replace(FP, runs=6).digest, subject(1), WORKLOAD) is None
    crashed = journal.find(FP.digest, subject(2), WORKLOAD)
    assert crashed is not None
    assert crashed.outcome is Outcome.CRASHED
    history = journal.history(subject(1), WORKLOAD)
    assert [r.fingerprint.driver for r in history] == ["580.65", "580.65", "590.1"]


def test_verdicts_and_build_failures_are_found_by_what_they_depend_on(path: Path) -> None:
    journal = fill(path, verdict(), build_failure())
    events = dataclasses.replace(FP, method="events", runs=50, metrics=())
    assert journal.find_verdict(events.for_verify().digest, subject(1)) == verdict().verdict
    elsewhere = dataclasses.replace(FP, gpu="NVIDIA A100", driver="1")
    found = journal.find_build_failure(elsewhere.for_build().digest, subject(2), "traits")
    assert found is not None
    assert found.reason == "static_assert: no"
    assert journal.find_build_failure(FP.for_build().digest, subject(2), "other") is None
    assert journal.find_verdict(elsewhere.for_verify().digest, subject(1)) is None


def test_a_verdict_keeps_figures_that_are_not_finite(path: Path) -> None:
    fill(path, verdict(float("nan")), verdict(float("inf")))
    nan, inf = Journal(path).records()
    assert isinstance(nan, VerdictRecord)
    assert isinstance(inf, VerdictRecord)
    assert nan.verdict.cases[0].max_abs_error != nan.verdict.cases[0].max_abs_error
    assert inf.verdict.cases[0].max_abs_error == float("inf")


texts = st.text(st.characters(), max_size=20)  # lone surrogates included
finite = st.floats(allow_nan=False, allow_infinity=False)


@given(
    texts,
    st.lists(finite, max_size=5).map(tuple),
    st.dictionaries(texts, st.builds(Quantity, finite, texts), max_size=3),
    st.dictionaries(texts, texts, max_size=3),
    st.sampled_from(Outcome),
)
@settings(max_examples=150)
def test_any_attempt_round_trips_through_its_line(
    text: str,
    samples: tuple[float, ...],
    counters: dict[str, Quantity],
    conditions: dict[str, str],
    outcome: Outcome,
) -> None:
    m = Measurement(text, WORKLOAD, "events", samples, counters, conditions)
    record = AttemptRecord(FP, Attempt(text, WORKLOAD, outcome, text, m))
    line = encode_record(record)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode_body(parse_line(line), {FP.digest: FP}) == record


def measured_line(measurement: Measurement) -> tuple[AttemptRecord, bytes]:
    attempted = Attempt(measurement.subject, WORKLOAD, Outcome.OK, "", measurement)
    record = AttemptRecord(FP, attempted, "2026-01-02")
    return record, encode_record(record)


EVERY_FIELD = Measurement(
    "sm80:a",
    WORKLOAD,
    "events",
    (1e-3, 2e-3),
    {},
    {"clocks": "unlocked"},
    relative=(0.98, 1.01),
    preference=0,
    host_launch_s=1.2e-05,
    search="heat 0a",
    gpu_uuid="GPU-1",
    scaled_by=0.952381,
    replayed_from="nvidia_h200/tune.csv",
    default_s=(1.1e-3, 2e-3),
    held_out_s=(1.05e-3,),
    held_out_relative=(0.99,),
    versions={"torch": "2.11.0", "cudnn": "9.13.0"},
    baseline=subject(2),
)


def test_every_field_of_a_measurement_round_trips() -> None:
    record, line = measured_line(EVERY_FIELD)
    assert decode_body(parse_line(line), {FP.digest: FP}) == record


def test_a_line_of_an_older_version_gives_the_same_measurement() -> None:
    """There the fields were texts among the conditions, and some were not kept."""
    older = dataclasses.replace(
        EVERY_FIELD, versions={}, held_out_s=(), held_out_relative=(), baseline=""
    )
    record, line = measured_line(older)
    body = parse_line(line)
    body["measurement"] = {
        "method": "events",
        "samples_s": [1e-3, 2e-3],
        "counters": {},
        "conditions": {
            "clocks": "unlocked",
            "relative": "[0.98, 1.01]",
            "preference": "0",
            "host_launch_s": "1.2e-05",
            "search": "heat 0a",
            "board": "GPU-1",
            "calibrated": "0.952381",
            "replayed_from": "nvidia_h200/tune.csv",
            "default_s": "[0.0011, 0.002]",
        },
    }
    assert decode_body(body, {FP.digest: FP}) == record


@pytest.mark.parametrize(
    ("name", "value"),
    [("relative", "1"), ("preference", "x"), ("calibrated", "NaN"), ("default_s", '["1"]')],
)
def test_an_older_field_that_is_none_of_its_kind_is_refused(name: str, value: str) -> None:
    body = parse_line(measured_line(EVERY_FIELD)[1])
    del body["measurement"]["fields"]
    body["measurement"]["conditions"] = {name: value}
    with pytest.raises(ValueError, match=r"is not a|Expecting value"):
        decode_body(body, {FP.digest: FP})


def test_a_condition_with_the_name_of_an_older_field_stays_a_condition() -> None:
    record, line = measured_line(dataclasses.replace(EVERY_FIELD, conditions={"board": "x"}))
    assert decode_body(parse_line(line), {FP.digest: FP}) == record


@pytest.mark.parametrize(
    "measurement",
    [
        Measurement(subject(1), WORKLOAD, "ncu", (float("nan"),)),
        Measurement(subject(1), WORKLOAD, "ncu", (float("inf"),)),
        Measurement(subject(1), WORKLOAD, "ncu", ("1.5",)),  # type: ignore[arg-type]
        Measurement(subject(1), WORKLOAD, "ncu", (1.0,), {"m": Quantity(float("nan"), "s")}),
        Measurement(subject(2), WORKLOAD, "ncu", (1.0,)),
    ],
)
def test_a_record_that_could_not_be_read_back_never_reaches_the_file(
    path: Path, measurement: Measurement
) -> None:
    journal = fill(path, attempt(1))
    before = path.read_bytes()
    bad = AttemptRecord(FP, Attempt(subject(1), WORKLOAD, Outcome.OK, "", measurement))
    with pytest.raises((ValueError, TypeError)):
        journal.append(bad)
    assert path.read_bytes() == before


# Fingerprints


def test_a_fingerprint_ignores_the_order_of_metrics_and_nothing_else() -> None:
    a = dataclasses.replace(FP, metrics=("x", "y"))
    assert a == dataclasses.replace(FP, metrics=("y", "x", "x"))
    assert a.digest == dataclasses.replace(FP, metrics=("y", "x")).digest
    digests = {FP.digest}
    for f in dataclasses.fields(Fingerprint):
        changed = {"metrics": ("other",), "runs": 6, "after": 1}.get(f.name, "other")
        other = dataclasses.replace(FP, **{f.name: changed})  # type: ignore[arg-type]
        digests.add(other.digest)
        assert explain_difference(FP, other) == [f.name]
    assert len(digests) == 1 + len(dataclasses.fields(Fingerprint))
    assert explain_difference(FP, FP) == []


def test_what_differs_can_be_explained_from_a_journal_read_back(path: Path) -> None:
    fill(path, attempt(1))
    now = dataclasses.replace(FP, driver="590.1", runs=9)
    (past,) = Journal(path).history(subject(1), WORKLOAD)
    assert explain_difference(past.fingerprint, now) == ["driver", "runs"]


# Speed


def test_ten_thousand_lines_load_about_as_fast_as_json_alone(path: Path) -> None:
    fill(path, attempt(0))
    header, fingerprint, line = path.read_bytes().splitlines(keepends=True)
    lines = [sealed(older(line).replace(b" 0):", b" %d):" % i)) for i in range(10_000)]
    path.write_bytes(header + fingerprint + b"".join(lines))

    def best_cpu_s(work: Callable[[], object]) -> float:
        def once() -> float:
            start = time.process_time()
            work()
            return time.process_time() - start

        return min(once() for _ in range(3))

    json_s = best_cpu_s(lambda: [json.loads(line) for line in lines])
    assert best_cpu_s(lambda: Journal(path)) < max(0.3, 3 * json_s)
    assert len(Journal(path).records()) == 10_000
