"""A registry as a data frame."""

from __future__ import annotations

from fa_tune.report import frames
from fa_tune.store.registry.schema import Registry
from tests.store.registry.conftest import MakeEntry


def test_it_has_one_row_per_entry(make_entry: MakeEntry) -> None:
    registry = Registry.of([make_entry(), make_entry(seq_len=512)])
    frame = frames.registry(registry)
    assert list(frame["kernel"]) == [e.chosen.config for e in registry.entries]
    assert list(frame["median_s"]) == [e.median_s for e in registry.entries]
    assert list(frame["workload"]) == [e.workload.key for e in registry.entries]
    assert list(frame["n"]) == [e.n for e in registry.entries]
    assert frame.attrs["units"]["median_s"] == "s"
