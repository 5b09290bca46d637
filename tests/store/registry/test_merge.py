"""Merging keeps the better evidence, whatever the order."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_tune.core.model import Variant
from fa_tune.store.registry.merge import conflicts, evidence, merge_registries
from fa_tune.store.registry.schema import Entry, Registry, VerdictSummary, to_json
from tests.store.registry.conftest import MakeEntry


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({}, {"verdict": None, "n": 500, "recorded_at": "2030-01-01T00:00:00+00:00"}),
        ({"n": 6}, {"n": 5, "interval_s": (6.31e-3, 6.32e-3)}),
        # The wider in seconds is the narrower for its time.
        (
            {"median_s": 6e-3, "interval_s": (5.94e-3, 6.06e-3)},
            {"median_s": 3e-3, "interval_s": (2.955e-3, 3.045e-3), "source": "measured"},
        ),
        ({"interval_s": (6.31e-3, 6.32e-3)}, {"recorded_at": "2030-01-01T00:00:00+00:00"}),
        ({}, {"interval_s": None, "recorded_at": "2030-01-01T00:00:00+00:00"}),
        ({"recorded_at": "2026-01-03T00:00:00"}, {"source": "measured"}),
        # The same instant twice, then an hour between texts that sort the other way round.
        ({"recorded_at": "2026-01-02T02:30:00-01:00"}, {}),
        ({}, {"source": "replay", "recording": "profiles/a.csv"}),
    ],
)
def test_evidence_counts_in_the_documented_order(
    make_entry: MakeEntry, better: dict[str, Any], worse: dict[str, Any]
) -> None:
    good, bad = make_entry(**better), make_entry(**worse)
    assert evidence(good) > evidence(bad)
    for a, b in ((good, bad), (bad, good)):
        assert merge_registries(Registry.of([a]), Registry.of([b])).entries == (good,)


def test_methods_gpus_and_workloads_stay_side_by_side(make_entry: MakeEntry) -> None:
    entries = [
        make_entry(),
        make_entry(method="events", n=50),
        make_entry(gpu="NVIDIA A100-SXM4-80GB", compute_capability=(8, 0)),
        make_entry(causal=True),
        make_entry(1024),
    ]
    merged = merge_registries(*(Registry.of([e]) for e in entries))
    assert merged == Registry.of(entries)
    registry = Registry.of([make_entry()])
    assert merge_registries() == Registry.of()
    assert (
        merge_registries(registry, Registry.of())
        == merge_registries(Registry.of(), registry)
        == registry
    )


@st.composite
def registries(draw: st.DrawFn, make: MakeEntry) -> Registry:
    """Up to four entries from few keys and few qualities, so that clashes and ties abound."""
    entries: dict[object, Entry] = {}
    for _ in range(draw(st.integers(0, 4))):
        entry = make(
            draw(st.sampled_from([1024, 4096])),
            method=draw(st.sampled_from(["ncu", "events"])),
            verdict=draw(st.sampled_from([None, VerdictSummary(True, 4, 1e-4, 1e-3)])),
            n=draw(st.integers(1, 2)),
            interval_s=draw(st.sampled_from([None, (1.0, 1.1), (1.0, 1.2)])),
            median_s=draw(st.sampled_from([1.0, 1.05])),
            recorded_at=draw(
                st.sampled_from(["2026-01-02T03:04:05Z", "2026-01-02T03:04:05", "2026-01-03"])
            ),
            **draw(
                st.sampled_from([{}, {"source": "replay", "recording": "a"}, {"reason": "other"}])
            ),
        )
        entries[entry.key] = entry
    return Registry.of(list(entries.values()))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_merge_is_commutative_associative_and_idempotent(
    make_entry: MakeEntry, data: st.DataObject
) -> None:
    a, b, c = (data.draw(registries(make_entry)) for _ in range(3))
    assert merge_registries(a, b) == merge_registries(b, a)
    assert merge_registries(merge_registries(a, b), c) == merge_registries(
        a, merge_registries(b, c)
    )
    assert merge_registries(a, a) == a
    assert merge_registries(merge_registries(a, b), b) == merge_registries(a, b)
    results = {to_json(merge_registries(*order)) for order in permutations((a, b, c))}
    assert len(results) == 1
    assert {e.key for e in merge_registries(a, b, c).entries} == {
        e.key for r in (a, b, c) for e in r.entries
    }


# Disagreement ------------------------------------------------------------------------------------

OTHER = Variant("sm80", "(FP16, 128, 128, 64, 4): async+load_0_0_0_tiles")


@pytest.mark.parametrize(
    ("better", "worse", "why"),
    [
        ({}, {"verdict": None, "n": 500}, "it was verified"),
        ({"n": 6}, {"n": 5}, "6 samples against 5"),
        ({"interval_s": (6.31e-3, 6.32e-3)}, {}, "its interval is narrower"),
        ({"recorded_at": "2027-01-01T00:00:00+00:00"}, {}, "it is newer"),
    ],
)
def test_entries_that_choose_differently_are_named_with_what_decided(
    make_entry: MakeEntry, better: dict[str, Any], worse: dict[str, Any], why: str
) -> None:
    good, bad = make_entry(**better), make_entry(**worse, chosen=OTHER)
    for a, b in ((good, bad), (bad, good)):
        (found,) = conflicts(Registry.of([a]), Registry.of([b]), Registry.of([b]))
        assert (found.kept, found.dropped, found.why) == (good, bad, why)
        assert found.differences == ()


def test_a_conflict_says_which_conditions_differ(make_entry: MakeEntry) -> None:
    good, bad = make_entry(n=9), make_entry(n=5, chosen=OTHER)
    other = replace(bad.provenance, driver="590.1", kernel_source_sha256="f" * 64)
    (found,) = conflicts(Registry.of([good]), Registry.of([replace(bad, provenance=other)]))
    assert found.differences == ("driver", "kernel sources")
    both = Registry.of([make_entry(n=9)]), Registry.of([make_entry(n=5)])
    assert conflicts(*both) == ()
    assert conflicts() == ()
    slow, fast = make_entry(n=9), make_entry(n=5, median_s=1e-6)
    assert merge_registries(Registry.of([slow]), Registry.of([fast])).entries == (slow,)
