"""Which workloads share a kernel, and who compiles it."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_tune import families
from fa_tune.core.arch import limits
from fa_tune.core.errors import RegistryError
from fa_tune.core.workload import DType, Workload
from fa_tune.op import chooser
from fa_tune.op.chooser import Chooser
from fa_tune.store.registry import file as registry_file
from fa_tune.store.registry.buckets import representative
from fa_tune.store.registry.lookup import distance
from fa_tune.store.registry.schema import Registry
from tests.store.registry.conftest import MakeEntry, make_entry  # noqa: F401 - a fixture

SIZES = st.integers(1, 1 << 20)
WORKLOADS = st.builds(
    lambda batch, kv_heads, group, q, kv, causal, lse: Workload(
        *(batch, kv_heads * group, kv_heads, q, kv, 128, DType.FP16), causal=causal, lse=lse
    ),
    st.integers(1, 300),
    st.integers(1, 64),
    st.sampled_from((1, 2, 3, 4, 7, 8, 16, 71)),
    st.integers(1, 200) | SIZES,
    SIZES,
    st.booleans(),
    st.booleans(),
)


@given(WORKLOADS)
def test_a_representative_is_near_and_stands_for_itself(workload: Workload) -> None:
    found = representative(workload)
    assert found.heads // found.kv_heads == workload.heads // workload.kv_heads
    assert (found.causal, found.lse) == (workload.causal, workload.lse)
    assert found.decode_shape == workload.decode_shape
    for n in (found.seq_len_kv, *(() if workload.decode_shape else (found.seq_len_q,))):
        assert n & (n - 1) == 0
    if workload.decode_shape:
        assert found.batch * found.kv_heads == workload.batch * workload.kv_heads
        assert found.seq_len_q == workload.seq_len_q
    # Half a doubling for each of lengths and batch·heads; a group that is no power of two, more.
    assert distance(found, workload) <= 2.6
    assert representative(found).seq_len_q == found.seq_len_q


@pytest.mark.parametrize(
    ("heads", "kv_heads", "queries", "keys", "stands"),
    [
        (3200, 800, 16, 8192, (16, 8192)),
        (3200, 800, 17, 8192, (32, 8192)),
        (2400, 800, 22, 8192, (32, 8192)),
        (800, 800, 32, 8192, (32, 8192)),
        (800, 800, 33, 8192, (64, 8192)),
        (1600, 800, 45, 8192, (32, 8192)),
        (71, 1, 1, 8192, (1, 8192)),
        (71, 1, 36, 8192, (36, 8192)),
        (71, 1, 37, 8192, (64, 8192)),  # 2627 rows, which would count as 2272
        (22, 22, 117, 8192, (128, 8192)),  # 2574 rows
        (2, 2, 91, 363, (256, 512)),  # which would count as a quarter as many queries as keys
        (2, 2, 90, 361, (90, 512)),  # which would count as 256
    ],
)
def test_few_rows_count_as_few_and_many_as_many(
    heads: int, kv_heads: int, queries: int, keys: int, stands: tuple[int, int]
) -> None:
    workload = Workload(1, heads, kv_heads, queries, keys, 128, DType.FP16)
    found = representative(workload)
    assert (found.seq_len_q, found.seq_len_kv) == stands
    asked, counted = (families.defaults_for(w, limits((9, 0)))[0] for w in (workload, found))
    assert families.of(asked) is families.of(counted)


@given(st.integers(1, 1 << 30))
def test_growing_lengths_need_a_choice_per_doubling(n: int) -> None:
    stands = [
        representative(Workload(1, 8, 8, 1, m, 128, DType.FP16)).seq_len_kv for m in (n, n + 1)
    ]
    assert stands[0] <= stands[1] <= 2 * stands[0]


@given(WORKLOADS)
def test_lengths_of_their_own_leave_few_rows_few_and_many_many(workload: Workload) -> None:
    found = chooser._with_lengths_of(workload, representative(workload))
    assert found.decode_shape == workload.decode_shape


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is compiled."""
    result = SimpleNamespace(artifact="made", reason="")
    monkeypatch.setattr(chooser, "build", lambda *_, **__: [result])


@pytest.fixture
def made(built: None, tmp_path: Path) -> Chooser:
    """Without a registry."""
    return chooser_of(tmp_path / "none.json", tmp_path)


def chooser_of(registry: Path, cache_dir: Path) -> Chooser:
    return Chooser("NVIDIA H200", limits((9, 0)), registry, cache_dir=cache_dir)


def test_one_of_several_compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Choosers of one cache folder, as in several processes, compile a variant after each other."""
    inside, most = [0], [0]

    def build(requests: Any, *_: object, **__: object) -> list[Any]:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.05)
        inside[0] -= 1
        return [SimpleNamespace(artifact="made", reason="")]

    monkeypatch.setattr(chooser, "build", build)
    workload = Workload(1, 4, 4, 64, 64, 128, DType.FP16)
    made = [chooser_of(tmp_path / "none.json", tmp_path) for _ in range(4)]
    running = [threading.Thread(target=one.choose, args=(workload,)) for one in made]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert most == [1]


def test_a_folder_that_cannot_be_written_is_no_obstacle(built: None, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    workload = Workload(1, 4, 4, 64, 64, 128, DType.FP16)
    made = chooser_of(tmp_path / "none.json", tmp_path / "file")
    found = made.choose(workload, representative(workload))
    assert found.artifact == "made"
    assert "counts as" in found.why


def test_the_default_of_a_bucket_goes_by_whether_tiles_are_whole(made: Chooser) -> None:
    whole = Workload(16, 16, 16, 1024, 1024, 64, DType.FP16)
    ragged = replace(whole, seq_len_q=1000, seq_len_kv=1000)
    assert representative(whole) == representative(ragged)
    for workload in (whole, ragged):
        found = made.choose(workload, representative(workload))
        (default, *_) = families.defaults_for(workload, limits((9, 0)))
        assert found.variant == families.variant(default)
    like = Workload(64, 1, 1, 256, 4096, 128, DType.BF16, cache_lengths="equal")
    queries = range(182, 363)
    found = {
        made.choose(w, representative(w)).variant
        for w in (replace(like, seq_len_q=n) for n in queries)
    }
    assert {representative(replace(like, seq_len_q=n)) for n in queries} == {representative(like)}
    assert len(found) == 1


@pytest.mark.parametrize(("batch", "keys"), [(1, 8000), (1, 70_000), (3, 2000), (9, 8000)])
@pytest.mark.parametrize(("heads", "kv_heads"), [(64, 8), (8, 1), (32, 32)])
def test_the_default_of_a_bucket_of_caches_is_that_of_its_problems(
    batch: int, keys: int, heads: int, kv_heads: int
) -> None:
    """One sequence has one length, several may have several."""
    w = Workload(batch, heads, kv_heads, 1, keys, 128, DType.BF16, cache_lengths="equal")
    stands = representative(w)
    assert (stands.batch == 1) == (batch * kv_heads == 1 or batch == 1)
    of_both = (families.get("decode").default_for(one, limits((9, 0))) for one in (w, stands))
    one, other = ((c.cluster > 1, c.combine, c.tile_keys > 0) for c in of_both)
    assert one == other


def test_what_was_tuned_with_lengths_on_the_device_serves_calls_with_them(
    make_entry: MakeEntry,  # noqa: F811
    built: None,
    tmp_path: Path,
) -> None:
    """Such calls are looked up by what the cache has room for; many queries are another matter, and
    what was tuned for one length serves no sequences of several."""
    few = Workload(8, 32, 8, 1, 8192, 128, DType.FP16)
    (config, *_) = families.get("decode").configs("fast", dtypes=(DType.FP16,))
    cache = replace(few, cache_lengths="equal")
    chosen = families.variant(config)
    tuned = replace(make_entry(), workload=cache, chosen=chosen, confirmation=None)
    assert tuned.gpu.name == "NVIDIA H200"
    path = tmp_path / "registry.json"
    registry_file.save(path, Registry.of([tuned]))
    made = chooser_of(path, tmp_path)
    found = made.choose(cache)
    assert found.from_registry
    assert found.variant == tuned.chosen
    assert made.choose(few).from_registry
    assert not made.choose(replace(few, seq_len_q=1024)).from_registry
    registry_file.save(path, Registry.of([replace(tuned, workload=few)]))
    made = chooser_of(path, tmp_path)
    assert not made.choose(cache).from_registry
    assert made.choose(replace(cache, batch=1)).from_registry


@pytest.mark.parametrize(
    ("op", "length", "near", "far"),
    [("forward", 4096, 3000, 257), ("backward", 4096, 3000, 300), ("forward", 197, 250, 300)],
)
def test_an_entry_serves_lengths_that_the_same_kind_of_kernel_suits(
    op: str,
    length: int,
    near: int,
    far: int,
    make_entry: MakeEntry,  # noqa: F811
    built: None,
    tmp_path: Path,
) -> None:
    d_head = 64 if op == "forward" else 128
    tuned = Workload(64, 16, 16, length, length, d_head, DType.BF16, op=op)
    family = families.get("sm90" if op == "forward" else "sm90_bwd")
    chosen = families.variant(families.default_for(family, tuned))
    entry = replace(make_entry(), workload=tuned, chosen=chosen, confirmation=None)
    registry_file.save(tmp_path / "registry.json", Registry.of([entry]))
    made = chooser_of(tmp_path / "registry.json", tmp_path)
    for n, serves in ((near, True), (far, False)):
        workload = replace(tuned, seq_len_q=n, seq_len_kv=n)
        assert made.choose(workload, representative(workload)).from_registry == serves


def test_a_damaged_registry_is_told_at_the_first_choice(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("{")
    with pytest.raises(RegistryError):
        chooser_of(tmp_path / "r.json", tmp_path).choose(Workload(1, 4, 4, 64, 64, 128, DType.FP16))


@given(
    st.integers(1, 300),
    st.integers(1, 32),
    st.sampled_from((1, 2, 3, 4, 5, 7, 8, 10, 16, 71)),
    st.integers(1, 200),
    st.integers(0, 17),
    st.booleans(),
)
def test_a_bucket_of_few_rows_has_the_default_of_its_problems(
    batch: int, kv_heads: int, group: int, queries: int, keys: int, cached: bool
) -> None:
    """Clusters for 64 tiles that all run at a time would be two waves for 90."""
    w = Workload(
        *(batch, kv_heads * group, kv_heads, queries, 1 << keys, 128, DType.BF16),
        cache_lengths="equal" if cached else "",
    )
    stands = representative(w)
    assert stands.decode_shape == w.decode_shape
    if cached:
        assert (stands.batch == 1) == (batch == 1)
    if w.decode_shape:
        default_for = families.get("decode").default_for
        assert default_for(stands, limits((9, 0))) == default_for(w, limits((9, 0)))
