"""What serves beside tuned problems of few queries after many keys."""

from __future__ import annotations

import dataclasses

import pytest

from fa_tune.core.arch import limits
from fa_tune.core.model import Variant
from fa_tune.core.stats import Ratio
from fa_tune.core.workload import DType, Workload
from fa_tune.store.registry.between import Tuned, between, default_of, distance, filled
from fa_tune.store.registry.lookup import Target, matches, serving
from fa_tune.store.registry.schema import Entry, Registry, RunnerUp
from tests.store.registry.conftest import MakeEntry

H200 = Target("NVIDIA H200")
A, B, SAFE = (
    Variant("decode", f"decode(FP16, 128, 16, 128, 8): {words}")
    for words in ("stages_2", "stages_2+aligned", "aligned")
)


def decode(keys: int, batch: int = 4, **more: object) -> Workload:
    return Workload(batch, 64, 8, 1, keys, 128, DType.FP16, **more)  # type: ignore[arg-type]


def tuned(keys: int, chosen: Variant, batch: int = 4, **ratios: float) -> Tuned:
    names = {"a": A, "b": B, "safe": SAFE}
    known = {names[name]: ratio for name, ratio in ratios.items()}
    return Tuned(decode(keys, batch), chosen, {chosen: 1.0} | known)


def chosen(given: list[Tuned], asked: Workload) -> Variant:
    found = between(given, asked)
    return found.variant


def test_the_choice_of_the_nearer_problem_weighs_more() -> None:
    given = [tuned(1024, A, b=1.1), tuned(65536, B, a=1.1)]
    assert chosen(given, decode(2048)) == A
    assert chosen(given, decode(32768)) == B
    given = [tuned(1024, A, b=1.2, safe=1.01), tuned(16384, B, a=1.2, safe=1.02)]
    assert chosen(given, decode(4096)) == SAFE
    given = [tuned(1024, A, safe=1.3), tuned(16384, B, safe=1.01)]
    assert chosen(given, decode(3500)) == A


def test_the_same_work_in_other_tiles_is_no_neighbour() -> None:
    given = [
        tuned(1024, A, batch=128, b=1.1),
        tuned(32768, B, batch=4, a=1.1),
        tuned(1024, B, batch=4, a=1.1),
    ]
    assert chosen(given, decode(1024, batch=64)) == A
    many_rows = dataclasses.replace(decode(4096), seq_len_q=8)
    given = [Tuned(many_rows, B, {B: 1.0, A: 2.0}), tuned(65536, A, b=1.1)]
    assert chosen(given, decode(4096)) == A
    assert between([], decode(4096)) is None


def of_defaults(*losses: float | None) -> list[Tuned]:
    """Problems of 1024 and 16384 keys, and what their own defaults lose there."""
    made = [tuned(1024, A, b=1.2), tuned(16384, B, a=1.2)]
    return [dataclasses.replace(t, default=d) for t, d in zip(made, losses, strict=True)]


@pytest.mark.parametrize(
    ("losses", "serves"),
    [((1.0, 1.02), SAFE), ((1.15, 1.3), A), ((None, None), A), ((1.0, None), SAFE)],
)
def test_a_default_is_as_good_as_the_defaults_nearby(
    losses: tuple[float | None, float | None], serves: Variant
) -> None:
    found = between(of_defaults(*losses), decode(3500), SAFE)
    assert found.variant == serves


def test_the_default_stays_unless_another_config_is_clearly_faster() -> None:
    for lost, serves in ((1.008, SAFE), (1.03, A)):
        given = [dataclasses.replace(tuned(4096, A, b=1.2), default=lost)]
        found = between(given, decode(4097), SAFE)
        assert found.variant == serves
    near = dataclasses.replace(tuned(1024, A, safe=1.01), default=1.5)
    further = dataclasses.replace(tuned(16384, B, a=1.3, safe=1.05), default=1.5)
    assert chosen([near, further], decode(4096)) == SAFE


@pytest.mark.parametrize("loss", [1.02, 1.05])
def test_a_tuned_problem_says_little_of_sizes_that_are_far_from_it(loss: float) -> None:
    given = [dataclasses.replace(tuned(4096, A, b=1.001, safe=1.3), default=loss)]
    for keys, serves in ((4200, A), (1 << 20, SAFE), (128, SAFE)):
        found = between(given, decode(keys), SAFE)
        assert found.variant == serves


def test_clusters_that_all_ran_at_a_time_tell_nothing_of_more_than_can() -> None:
    clusters = Variant("decode", "decode(FP16, 128, 16, 128, 8): stages_2+cluster_4")
    given = [tuned(8192, clusters, batch=2, safe=1.1), tuned(8192, B, batch=16, safe=1.02)]
    assert chosen(given, decode(8192, batch=3)) == clusters  # 24 of 30
    assert chosen(given, decode(8192, batch=4)) == SAFE, "known on both sides"
    alone = [Tuned(decode(8192, 2), clusters, {clusters: 1.0})]
    assert between(alone, decode(8192, batch=4)) is None
    found = between(alone, decode(8192, batch=4), SAFE)
    assert found.variant == SAFE


def test_an_entry_tells_what_its_default_loses(make_entry: MakeEntry) -> None:
    entry = dataclasses.replace(
        make_entry(1024), chosen=A, tie_set=(A,), runners_up=(), confirmation=None
    )
    for default, ratio, lost in ((A, None, 1.0), (B, Ratio(0.8, None), 1.25), (None, None, None)):
        made = dataclasses.replace(entry, default=default, ratio_to_default=ratio)
        assert Tuned.of(made).default == lost


@pytest.fixture
def registry(make_entry: MakeEntry) -> Registry:
    def entry(keys: int, chosen: Variant, other: Variant) -> Entry:
        return dataclasses.replace(
            make_entry(1024),
            workload=decode(keys),
            chosen=chosen,
            tie_set=(chosen,),
            ratio_to_default=Ratio(0.8, None),
            runners_up=(
                RunnerUp(SAFE, 1e-3, Ratio(1.06, None)),
                RunnerUp(other, 1e-3, Ratio(1.2, None)),
            ),
            confirmation=None,
        )

    return Registry.of([entry(1024, A, B), entry(16384, B, A), make_entry(4096)])


def test_a_lookup_between_lengths_says_what_it_is_expected_to_lose(registry: Registry) -> None:
    (first, second, *_) = serving(registry, H200, decode(4096))
    assert first.chosen == SAFE
    assert second.chosen == first.entry.chosen, "the nearest entry comes next"
    assert " 6.0 %" in first.explanation
    assert serving(registry, H200, decode(1024))[0].chosen == A, "what was tuned is taken"
    more = Registry.of(filled(registry.entries))
    for keys in (1024, 2048, 4096, 8192, 16384):
        nearest = matches(more, H200, decode(keys))[0]
        assert nearest.exact
        assert nearest.chosen == serving(registry, H200, decode(keys))[0].chosen


def test_a_workload_that_two_methods_measured_counts_once(registry: Registry) -> None:
    first, second, _ = registry.entries
    nearer = (
        dataclasses.replace(first, workload=decode(keys), runners_up=()) for keys in (1500, 2000)
    )
    once = [first, *nearer, second]
    by_events = dataclasses.replace(first.provenance, method="events")
    changes = {"method": "events", "provenance": by_events}
    twice = [*once, *(dataclasses.replace(e, **changes) for e in once)]
    asked = decode(8000)
    (of_once, *_), (of_twice, *_) = (serving(Registry.of(e), H200, asked) for e in (once, twice))
    assert (of_twice.chosen, of_twice.explanation) == (of_once.chosen, of_once.explanation)
    named = [e.workload.seq_len_kv for e in once if e.workload.key in of_once.explanation]
    assert named == [2000, 16384], "the two nearest"


def test_other_problems_are_looked_up_among_their_like(registry: Registry) -> None:
    asked = dataclasses.replace(registry.entries[-1].workload, seq_len_q=2048, seq_len_kv=2048)
    assert not asked.decode_shape
    found = serving(registry, H200, asked)
    assert found == tuple(
        m for m in matches(registry, H200, asked) if not m.entry.workload.decode_shape
    )
    assert found
    window = dataclasses.replace(
        registry.entries[0], workload=decode(8192, window_left=1023, bottom_right=True)
    )
    plain = {e.key for e in filled(registry.entries)}
    assert {e.key for e in filled([*registry.entries, window])} == plain | {window.key}


def test_of_a_cache_the_room_counts_and_different_lengths_come_first(
    make_entry: MakeEntry,
) -> None:
    def entry(chosen: Variant, **cache: object) -> Entry:
        workload = decode(4096, batch=8, **cache)
        return dataclasses.replace(
            make_entry(1024), workload=workload, chosen=chosen, confirmation=None
        )

    known, equal = entry(A), entry(A, cache_lengths="equal")
    paged = entry(SAFE, cache_lengths="lognormal-1-0", page_size=16)
    made = {e.workload: e.chosen for e in filled([known, equal, paged])}
    assert made == {known.workload: A, equal.workload: SAFE}


def test_a_window_is_as_far_off_as_the_keys_that_it_leaves() -> None:
    given = [tuned(1024, A, b=1.1), tuned(65536, B, a=1.1)]
    assert chosen(given, decode(65536, window_left=1023, bottom_right=True)) == A
    assert distance(decode(65536, window_left=1023, bottom_right=True), decode(1024)) == 0


def test_a_config_of_another_version_serves_nothing_and_is_in_nobodys_way(
    registry: Registry,
) -> None:
    later = Variant("decode", "decode(FP16, 128, 16, 128, 8): stages_2+word_of_tomorrow")
    first, last, other = registry.entries
    runners = (RunnerUp(later, 1e-3, Ratio(1.001, None)), *last.runners_up)
    for entry in (
        dataclasses.replace(first, chosen=later, tie_set=(later,)),
        dataclasses.replace(first, runners_up=runners),
    ):
        given = Registry.of([entry, last, other])
        for keys in (2048, 4096, 8192):
            assert serving(given, H200, decode(keys))[0].interpolated not in (None, later)
        made = [e for e in filled(given.entries) if given.get(e.key) is None]
        assert len(made) == 3
        assert all(e.chosen != later for e in made)


def test_entries_of_a_gpu_that_is_not_known_here_are_looked_up(registry: Registry) -> None:
    unknown = Registry.of(
        [
            dataclasses.replace(e, gpu=dataclasses.replace(e.gpu, compute_capability=(99, 0)))
            for e in registry.entries
        ]
    )
    assert serving(unknown, H200, decode(4096))[0].chosen == SAFE
    assert len(filled(unknown.entries)) > len(unknown.entries)


def test_a_card_with_fewer_multiprocessors_has_another_default_and_room_for_fewer_clusters(
    registry: Registry, make_entry: MakeEntry
) -> None:
    few = dataclasses.replace(H200, multiprocessors=60)
    asked = decode(2048, batch=2)
    untuned = default_of(asked, limits((9, 0), multiprocessors=60, gpu=few.gpu))
    assert untuned not in (None, default_of(asked, limits((9, 0))))
    # The default is as good as the choice where entries were tuned.
    entries = [dataclasses.replace(e, default=e.chosen) for e in registry.entries]
    assert serving(Registry.of(entries), few, asked)[0].chosen == untuned
    clusters = Variant("decode", "decode(FP16, 128, 16, 128, 8): stages_2+cluster_4")
    entry = dataclasses.replace(
        make_entry(1024),
        workload=decode(8192, batch=1),
        chosen=clusters,
        tie_set=(clusters,),
        runners_up=(RunnerUp(SAFE, 1e-3, Ratio(1.1, None)),),
        confirmation=None,
    )
    for here, serves in ((H200, True), (few, False)):
        (found, *_) = serving(Registry.of([entry]), here, decode(8192, batch=3))
        assert (found.chosen == clusters) == serves
