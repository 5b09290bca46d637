"""The registry's schema: what it takes, what it refuses and how it says so."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from fa_tune.core import codec
from fa_tune.core.errors import RegistryError
from fa_tune.core.model import CaseError, Variant, Verdict
from fa_tune.core.stats import Interval, Ratio
from fa_tune.core.workload import Workload
from fa_tune.operations import flops
from fa_tune.store.registry.schema import (
    SCHEMA,
    Entry,
    Registry,
    VerdictSummary,
    from_json,
    to_json,
)
from tests.store.registry.conftest import MakeEntry

DATA = Path(__file__).parent / "data"
DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture
def raw(make_entry: MakeEntry) -> dict[str, Any]:
    """A registry file's content, to be spoilt."""
    content: dict[str, Any] = json.loads(to_json(Registry.of([make_entry(), make_entry(1024)])))
    return content


def test_a_registry_comes_back_as_it_went_in(make_entry: MakeEntry) -> None:
    registry = Registry.of(
        [
            make_entry(),
            make_entry(1024, interval_s=None, n=1, verdict=None),
            make_entry(
                2048, source="replay", recording="profiles/nvidia_h200/a.csv", tie_set=(), traits=""
            ),
            make_entry(512, default=None, ratio_to_default=None, ratio_to_references={}),
            make_entry(method="events", causal=True, runners_up=()),
        ]
    )
    assert from_json(to_json(registry), "r") == registry
    assert from_json(to_json(registry).encode(), "r") == registry
    entries = [make_entry(s, method=m) for s in (512, 4096) for m in ("ncu", "events")]
    assert to_json(Registry.of(entries)) == to_json(Registry.of(entries[::-1]))


positive = st.floats(min_value=1e-12, max_value=1e12)


@given(st.tuples(positive, positive, positive).map(sorted), st.integers(1, 10**6))
@settings(max_examples=60)
def test_every_figure_survives_to_the_last_bit(
    make_entry: MakeEntry, figures: list[float], n: int
) -> None:
    low, value, high = figures
    interval = (low, high)
    entry = make_entry(
        median_s=value, interval_s=interval, n=n, ratio_to_default=Ratio(value, interval)
    )
    assert from_json(to_json(Registry.of([entry])), "r").entries == (entry,)


# Kept forms


def test_every_schema_version_has_a_fixture_that_still_reads() -> None:
    fixtures = sorted(DATA.glob("schema-*.json"))
    assert [f.name for f in fixtures] == [f"schema-{n}.json" for n in range(1, SCHEMA + 1)]
    for fixture in fixtures:
        registry = from_json(fixture.read_bytes(), str(fixture))
        assert len(registry.entries) == 3
        for entry in registry.entries:
            flop = flops.matmul_flop(entry.workload)
            assert entry.tflops == pytest.approx(flops.tflops(flop, entry.median_s), rel=1e-3)
    text = (DATA / f"schema-{SCHEMA}.json").read_text()
    assert json.loads(to_json(from_json(text, "fixture"))) == json.loads(text)


def test_what_older_schemas_do_not_tell_is_the_usual_or_none() -> None:
    first, second, third = (
        from_json((DATA / f"schema-{n}.json").read_bytes(), "old").entries for n in (1, 2, 3)
    )
    assert {(e.inputs, len(e.per_inputs)) for e in (*first, *second)} == {("normal", 0)}
    figures = [found for entry in third for found in entry.per_inputs.values()]
    assert {found.ratio_to_own_inputs for found in figures} == {None}
    verdicts = [entry.verdict for entry in first if entry.verdict]
    assert {(v.rms_error, v.rms_limit) for v in verdicts} == {(None, None)}
    assert {entry.confirmation for entry in first} == {None}
    assert any(entry.confirmation for entry in second)
    assert tuple(dataclasses.replace(e, confirmation=None) for e in second) == first


def test_the_documented_example_reads() -> None:
    blocks = re.findall(r"```json\n(.*?)```", (DOCS / "registry.md").read_text(), re.S)
    assert len(blocks) == 1
    (entry,) = from_json(blocks[0], "docs/registry.md").entries
    flop = flops.matmul_flop(entry.workload)
    assert entry.tflops == pytest.approx(flops.tflops(flop, entry.median_s), rel=1e-3)
    text = (DOCS / "registry.md").read_text()
    for f in dataclasses.fields(Entry):
        assert f"`{f.name}`" in text, f.name


def test_the_published_json_schema_is_that_of_the_code() -> None:
    published = json.loads((DOCS / "registry.schema.json").read_text())
    assert published == codec.schema(Registry), (
        "fa-tune schema registry > docs/registry.schema.json"
    )
    Draft202012Validator.check_schema(published)
    text = (DATA / f"schema-{SCHEMA}.json").read_text()
    Draft202012Validator(published).validate(json.loads(text))


# Refusals


def test_what_was_chosen_is_as_accurate_as_the_entry_says(make_entry: MakeEntry) -> None:
    workload = dataclasses.replace(make_entry().workload, accuracy="exact")
    rescaled = Variant("sm80", f"{make_entry().chosen.config}+rescale_8")
    assert make_entry(workload=workload)
    assert make_entry(chosen=rescaled)
    with pytest.raises(ValueError, match="is not for"):
        make_entry(workload=workload, chosen=rescaled)


def refused(content: dict[str, Any] | str | bytes) -> str:
    text = json.dumps(content) if isinstance(content, dict) else content
    with pytest.raises(RegistryError) as e:
        from_json(text, "r.json")
    message = str(e.value)
    assert message.startswith("r.json: ")
    assert "\n" not in message
    assert len(message) < 300
    return message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"median_s": 0}, "entries[0].median_s: 0 is not above 0"),
        ({"n": 0}, "entries[0].n"),
        ({"interval_s": [2.0, 1.0]}, "entries[0].interval_s: [2.0, 1.0] is no interval"),
        ({"method": "events"}, "provenance.method"),
        ({"gpu": {"name": "A100", "compute_capability": [8, 0]}}, "provenance.gpu"),
        ({"gpu": {"name": "NVIDIA H200", "compute_capability": "9.0"}}, "compute_capability"),
        ({"workload": "b16"}, "entries[0].workload: not a workload key: 'b16'"),
        ({"workload": "b16_h16_kv3_q1_k1_d64_fp16_full"}, "do not divide"),
        ({"source": "replay"}, "a replay names its recording"),
        ({"chosen": {"family": "sm80", "config": "c", "run": "x"}}, "entries[0].chosen.run"),
        ({"verdict": {"correct": False, "cases": 1, "max_abs_error": 1, "limit": 0}}, "failed"),
        ({"ratio_to_references": {"fa2": 0.9}}, "entries[0].ratio_to_references.fa2"),
        ({"surprise": 1}, "entries[0].surprise"),
    ],
)
def test_a_field_that_does_not_fit_is_named(
    raw: dict[str, Any], change: dict[str, Any], said: str
) -> None:
    raw["entries"][0] |= change
    assert said in refused(raw)


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(Entry)])
def test_every_field_is_required(raw: dict[str, Any], name: str) -> None:
    del raw["entries"][1][name]
    assert f"entries[1].{name}: " in refused(raw)


def test_provenance_is_checked_too(raw: dict[str, Any]) -> None:
    twice = {**raw, "entries": [raw["entries"][0]] * 2}
    assert "two entries for b16_h16_kv16_q" in refused(twice)
    raw["entries"][0]["provenance"]["recorded_at"] = "yesterday"
    assert "not an ISO 8601 time: 'yesterday'" in refused(raw)
    raw["entries"][0]["provenance"]["surprise"] = 1
    assert "entries[0].provenance.surprise" in refused(raw)
    del raw["entries"][0]["provenance"]["surprise"], raw["entries"][0]["provenance"]["driver"]
    assert "entries[0].provenance.driver" in refused(raw)


def test_an_entry_of_a_workload_that_has_another_key_today_gives_way_to_its_own(
    raw: dict[str, Any],
) -> None:
    (own,) = raw["entries"] = raw["entries"][:1]
    workload = Workload.from_key(own["workload"])
    own["workload"] = dataclasses.replace(workload, seq_len_q=1, causal=False).key
    restated = {**own, "workload": own["workload"].replace("full", "causal_br"), "n": 7}
    for entries in ([restated, own], [own, restated]):
        (read,) = from_json(json.dumps({**raw, "entries": entries}), "registry.json").entries
        assert read.n == own["n"] != 7
    (read,) = from_json(json.dumps({**raw, "entries": [restated]}), "registry.json").entries
    assert (read.n, read.workload.key) == (7, own["workload"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1, column 1: not JSON"),
        ('{\n "schema": 1,\n "entries": [,]\n}', "line 3, column 14: not JSON"),
        (b'{"schema": 1, "entries": [\xff]}', "not UTF-8 at byte 26"),
        ('{"entries": []}', 'no "schema" number'),
        ('{"schema": true, "entries": []}', 'no "schema" number'),
        ('{"schema": 1}', "entries: "),
        ('{"schema": 1, "entries": [], "more": 1}', "more: "),
        ('{"schema": 1, "schema": 1, "entries": []}', "field 'schema' is given twice"),
        ('{"schema": 1, "entries": [NaN]}', "NaN is not a number"),
        ('{"schema": 1, "entries": [' + "1" * 5000 + "]}", ""),
        ("[" * 200_000, "nested too deeply"),
        ('{"schema": 1, "entries": ' + "[" * 500 + "]" * 500 + "}", "nested too deeply"),
    ],
)
def test_a_damaged_file_is_one_line_with_the_place(text: str | bytes, said: str) -> None:
    message = refused(text)
    assert said in message
    assert message.endswith("it was left unchanged")


@pytest.mark.parametrize(
    "workload",
    [
        "b900000000_h16_kv16_q1_k4096_d128_fp16_full_page16",
        "b900000000_h16_kv16_q1_k4096_d128_fp16_full_cacheequal",
        "b900000000_h16_kv16_q1_k4096_d128_fp16_full_lenuniform-0",
        f"b1_h16_kv16_q1_k{'9' * 400}_d128_fp16_full",
    ],
)
def test_a_workload_of_any_size_is_refused_at_once(raw: dict[str, Any], workload: str) -> None:
    raw["entries"][0]["workload"] = workload
    assert "must be at most" in refused(raw) or "more than" in refused(raw)


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_that_has_no_utc_is_refused(raw: dict[str, Any], time: str) -> None:
    raw["entries"][0]["provenance"]["recorded_at"] = time
    assert "not an ISO 8601 time" in refused(raw)


def test_a_byte_order_mark_does_no_harm() -> None:
    assert from_json('\ufeff{"schema": 1, "entries": []}'.encode(), "r") == Registry.of()
    message = refused(f'{{"schema": {SCHEMA + 1}, "whatever": []}}')
    assert f"schema {SCHEMA + 1} is newer than this fa-tune reads ({SCHEMA})" in message


@given(st.binary(max_size=40))
@settings(max_examples=100)
def test_no_input_whatever_gives_another_error(data: bytes) -> None:
    with pytest.raises(RegistryError):
        from_json(data, "r")


# Values made by a program


def test_what_could_not_be_read_back_is_not_written(make_entry: MakeEntry) -> None:
    spoilt: dict[str, Any]
    for spoilt in (
        {"median_s": float("nan")},
        {"tflops": float("inf")},
        {"n": 0},
        {"interval_s": (0.0, 1.0)},
    ):
        registry = Registry.of([dataclasses.replace(make_entry(), **spoilt)])
        (name,) = spoilt
        with pytest.raises(RegistryError, match=rf"not fit its schema: entries\[0\].{name}: "):
            to_json(registry)
    with pytest.raises(RegistryError, match="control character"):
        to_json(Registry.of([make_entry(gpu="NVIDIA\x1b[2J H200")]))
    with pytest.raises(RegistryError, match=r"provenance\.extra: .*not JSON compliant"):
        to_json(Registry.of([make_entry(extra={"x": float("nan")})]))


def test_contradictions_are_refused_on_construction(make_entry: MakeEntry) -> None:
    for outside in (
        {"interval_s": (7e-3, 8e-3)},
        {"interval_s": (5e-3, 6e-3)},
        {"ratio_to_default": Ratio(0.9, Interval(0.91, 0.92))},
        {"ratio_to_references": {"fa2": Ratio(0.93, Interval(0.91, 0.92))}},
    ):
        with pytest.raises(ValueError, match="outside its interval"):
            make_entry(**outside)
    with pytest.raises(ValueError, match="two entries"):
        Registry.of([make_entry(), make_entry(median_s=1.0)])
    with pytest.raises(ValueError, match="failed verification"):
        make_entry(verdict=VerdictSummary(False, 1, 1.0, 0.1))
    with pytest.raises(ValueError, match="names its recording"):
        make_entry(source="replay")


def test_a_verdict_is_summarised_by_the_case_nearest_its_limit() -> None:
    def case(error: float, limit: float) -> CaseError:
        return CaseError("w", error, error, limit, True)

    verdict = Verdict(True, (case(5e-4, 1e-3), case(3e-4, 4e-4), case(0.0, 0.0)))
    assert VerdictSummary.of(verdict) == VerdictSummary(True, 3, 3e-4, 4e-4)
    assert VerdictSummary.of(Verdict(True, ())) is None
    far = CaseError("w", 5e-4, 1e-3, 1e-3, True, 1e-5, 1e-5, 1e-4)
    near = CaseError("w", 1e-4, 1e-3, 1e-3, True, 9e-5, 8e-5, 1e-4)
    found = VerdictSummary.of(Verdict(True, (far, near)))
    assert found == VerdictSummary(True, 2, 1e-4, 1e-3, 9e-5, 1e-4)


def test_a_confirmation_leaves_the_one_that_is_chosen(make_entry: MakeEntry) -> None:
    found = make_entry().confirmation
    with pytest.raises(ValueError, match="not the one that the confirmation leaves"):
        make_entry(confirmation=dataclasses.replace(found, upheld=False))
    kept = make_entry(chosen=found.default, confirmation=dataclasses.replace(found, upheld=False))
    assert kept.chosen == found.default
