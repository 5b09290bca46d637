"""The answer at the top of a page, recounted from the rows."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import pytest

from fa_tune.core.model import BARE_READ, Measurement, reference_subject
from fa_tune.core.workload import DType, benchmark_workload
from fa_tune.report.page.headline import Headline
from fa_tune.report.page.sections import contents_of
from fa_tune.report.page.source import Source
from fa_tune.store.table.from_attempts import rows_from_measurements
from fa_tune.store.table.rows import completed

OURS = "sm80:(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles"
KEYS = [benchmark_workload(length, 128, DType.FP16).key for length in (512, 1024, 2048)]
FACTS = {"gpu": "NVIDIA H200", "driver": "580.1", "recorded_at": "2026-11-26", "inputs": "normal"}
Times = Mapping[str, Sequence[float]]  # of a round each, by subject


def found(*of_workloads: Times, facts: Mapping[str, str] = FACTS) -> Headline:
    """The headline over one workload for each set of times."""
    measured = [
        Measurement(subject, key, "events", tuple(times))
        for key, several in zip(KEYS, of_workloads, strict=False)
        for subject, times in several.items()
    ]
    rows = completed(rows_from_measurements(measured))
    return contents_of([Source("x", rows, facts=facts)]).answer


def beside(ours: float, **libraries: float) -> Times:
    """Five rounds of each, the clock a little slower in every one."""
    names = {reference_subject(name): time for name, time in libraries.items()}
    return {
        subject: [time * (1 + 0.01 * i) for i in range(5)]
        for subject, time in {OURS: ours, **names}.items()
    }


def test_it_names_the_range_over_the_fastest_library_of_each_workload() -> None:
    shown = found(
        beside(1.0, fa2=2.0, cudnn=1.3), beside(1.0, fa2=1.1, cudnn=1.3), beside(1.0, fa2=1.2)
    )
    assert "1.10 to 1.30" in shown.title
    mean = statistics.geometric_mean([1.3, 1.1, 1.2])
    assert f"{mean:.2f}" in shown.sentences[0]
    assert "NVIDIA H200" in shown.sentences[0]
    assert "faster on 3" in shown.sentences[0]


def test_it_says_where_a_library_is_faster_or_level() -> None:
    level = {OURS: [1.0, 1.0, 1.0, 1.0, 1.0], "ref:fa2": [0.98, 1.02, 1.0, 0.99, 1.01]}
    text = found(beside(1.0, fa2=0.8), level, beside(1.0, fa2=1.5)).sentences[0]
    assert "faster on 1" in text
    assert "level on 1" in text
    assert "slower on 1" in text
    shown = found(beside(1.0, fa2=1.5, **{BARE_READ: 0.5}))
    assert shown.title.startswith("1.50 times as fast as FA2")
    assert "beside no library" in found(beside(1.0)).title
    assert "none of a config" in found({"ref:fa2": [1.0]}).title


@pytest.mark.parametrize("lacking", list(FACTS))
def test_what_no_file_says_is_said(lacking: str) -> None:
    known = {name: value for name, value in FACTS.items() if name != lacking}
    assert not found(beside(1.0, fa2=1.5)).missing
    assert found(beside(1.0, fa2=1.5), facts=known).missing
