"""An entry gives way only to a choice that was measured beside it, and takes on what is new."""

from __future__ import annotations

import dataclasses

import pytest

from fa_tune.core.model import Variant
from fa_tune.core.stats import Ratio
from fa_tune.store.registry.combine import FoundEntry, combined
from fa_tune.store.registry.schema import RunnerUp
from tests.store.registry.conftest import MakeEntry, variant

A, B, C, D, E = (variant(16 * i) for i in range(1, 6))


def searched(
    make_entry: MakeEntry, chosen: Variant, ratios: dict[Variant, float], *tied: Variant
) -> FoundEntry:
    """A search that measured `chosen` and the others, each with its time over the chosen one's."""
    runners = {v: RunnerUp(v, 6e-3 * r, Ratio(r, None)) for v, r in ratios.items()}
    entry = make_entry(
        chosen=chosen,
        tie_set=(chosen, *tied),
        runners_up=tuple(runners.values()),
        confirmation=None,
    )
    return FoundEntry(entry, runners)


def test_a_choice_that_was_not_measured_beside_the_entry_does_not_replace_it(
    make_entry: MakeEntry,
) -> None:
    wide = searched(make_entry, A, {B: 1.1}).entry
    kept, why = combined(wide, searched(make_entry, C, {B: 1.2}))
    assert kept == wide
    assert why is not None
    assert A.config in why
    wide = searched(make_entry, A, {B: 1.1}).entry
    narrow = dataclasses.replace(searched(make_entry, C, {B: 1.2}), failed=(A,))
    kept, why = combined(wide, narrow)
    assert (kept, why) == (narrow.entry, None)


def test_the_same_choice_of_fewer_keeps_what_is_known_of_the_others(make_entry: MakeEntry) -> None:
    wide = searched(make_entry, A, {B: 1.001, C: 1.2, D: 1.3}, B).entry
    narrow = searched(make_entry, A, {E: 1.25, C: 1.21})
    kept, why = combined(wide, narrow)
    assert why is None
    assert kept.median_s == narrow.entry.median_s
    assert [r.variant for r in kept.runners_up] == [B, C, E, D]
    assert set(kept.tie_set) == {A, B}
    wide = searched(make_entry, A, {B: 1.001, C: 1.2}, B).entry
    narrow = searched(make_entry, E, {A: 1.002, D: 1.2}, A)
    kept, why = combined(wide, narrow)
    assert kept.chosen == A
    assert kept.median_s == wide.median_s
    assert why is not None
    known = {r.variant: r.ratio.value for r in kept.runners_up}
    assert known[E] == pytest.approx(1 / 1.002)
    assert known[C] == 1.2
    assert known[D] == pytest.approx(1.2 / 1.002)
    assert set(kept.tie_set) == {A, B, E}


def test_a_faster_choice_takes_over_what_the_entry_knew(make_entry: MakeEntry) -> None:
    wide = searched(make_entry, A, {B: 1.1, C: 1.2}).entry
    narrow = searched(make_entry, E, {A: 1.5})
    kept, why = combined(wide, narrow)
    assert why is None
    assert kept.chosen == E
    known = {r.variant: r.ratio for r in kept.runners_up}
    assert known[A].value == 1.5
    assert known[B].value == pytest.approx(1.65)
    assert known[B].interval is None, "it was not measured beside the new choice"
    wide = searched(make_entry, A, {B: 1.1, C: 1.2}, B).entry
    again = searched(make_entry, B, {A: 1.1, C: 1.2, D: 1.3})
    assert combined(wide, again) == (again.entry, None)


def test_evidence_of_other_kernels_is_none(make_entry: MakeEntry) -> None:
    wide = dataclasses.replace(searched(make_entry, A, {B: 1.1, C: 1.2}).entry)
    older = dataclasses.replace(
        wide, provenance=dataclasses.replace(wide.provenance, kernel_source_sha256="0" * 64)
    )
    narrow = searched(make_entry, E, {A: 1.5})
    assert combined(older, narrow) == (narrow.entry, None)
