"""Terms of few tiles are what a script makes of a recording, and defaults by them are near the
fastest of other problems."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import fit_few_tiles
from fa_tune import families
from fa_tune.core.arch import limits
from fa_tune.core.workload import DType, Workload
from fa_tune.families.sm90 import defaults, few_tiles
from fa_tune.families.sm90.config import Sm90Config
from fa_tune.families.sm90.few_tiles import DECODE, PERSISTENT, Terms
from fit_few_tiles import LIBRARY, fitted, main
from fit_many_tiles import read

BETWEEN = fit_few_tiles.RECORDING.with_name("few_tiles_between_h200.tsv")
H200 = limits((9, 0))
FEW = Workload(1, 8, 8, 512, 30000, 128, DType.BF16)


def _default(workload: Workload) -> Sm90Config:
    config, *_ = families.defaults_for(workload, H200)
    assert isinstance(config, Sm90Config)
    return config


def test_the_table_is_that_of_the_recording() -> None:
    result = CliRunner().invoke(main, ["--check"])
    assert result.exit_code == 0, result.output


@given(
    st.tuples(*[st.floats(0.1, 5)] * 3),
    st.lists(st.tuples(st.integers(1, 500), st.integers(2, 8)), min_size=9, unique=True),
)
def test_terms_are_found_again(terms: tuple[float, ...], problems: list[tuple[int, int]]) -> None:
    work = [Terms(blocks, 1, 0, splits) for blocks, splits in problems]
    exact = Terms(terms[0], terms[1], 0, terms[2])
    times = [float(np.dot(each, exact)) for each in work]
    found = fitted(list(zip(work, times, strict=True)))
    again = [float(np.dot(each, found)) for each in work]
    assert min(found) >= 0
    assert again == pytest.approx(times, rel=0.02)


@pytest.mark.parametrize(
    ("path", "mean", "behind"), [(fit_few_tiles.RECORDING, 1.02, 3), (BETWEEN, 1.035, 2)]
)
def test_defaults_are_near_the_fastest_that_was_measured(
    path: Path, mean: float, behind: int
) -> None:
    """Of the problems that terms were fitted to, and of others: how many times as long as the
    fastest, and how many are behind the library."""
    losses, slower = [], []
    for problem in read(path):
        config, *_ = families.defaults_for(problem.workload, H200)
        name = DECODE if families.of(config).name == "decode" else str(config)
        if config == defaults.default_for(problem.workload):
            name = PERSISTENT
        time = problem.times[name]
        losses.append(time / min(t for c, t in problem.times.items() if c != LIBRARY))
        if problem.times.get(LIBRARY, math.inf) < 0.99 * time:
            slower.append(problem.workload.key)
    assert len(losses) > 100
    assert statistics.fmean(losses) <= mean
    assert len(slower) <= behind, slower


@given(
    heads=st.integers(1, 40),
    queries=st.integers(1, 4000),
    keys=st.integers(1, 100_000),
    d_head=st.sampled_from(range(32, 257, 8)),
    dtype=st.sampled_from(DType),
    causal=st.booleans(),
)
def test_a_default_can_run_and_all_of_its_clusters_at_a_time(
    *, heads: int, queries: int, keys: int, d_head: int, dtype: DType, causal: bool
) -> None:
    w = Workload(1, heads, heads, queries, keys, d_head, dtype, causal=causal)
    for arch in (H200, replace(H200, multiprocessors=78)):
        config = families.get("sm90").default_for(w, arch)
        assert isinstance(config, Sm90Config)
        assert families.constraints(config, arch) is None
        assert config.splits * few_tiles.tiles_of(config, w) <= arch.multiprocessors or (
            config.splits == 1 and config.persistent
        )
        assert config.splits <= -(-keys // config.B_c)


def test_few_tiles_divide_keys_where_a_cluster_has_more_than_it_costs() -> None:
    assert _default(FEW).splits > 1
    assert _default(replace(FEW, heads=64, kv_heads=64)).persistent
    assert _default(replace(FEW, seq_len_kv=128)).splits == 1


@pytest.mark.parametrize(
    "other",
    [
        {"window_left": 900, "causal": True, "bottom_right": True},
        {"lengths": "uniform-1"},
        {"d_head": 192, "d_head_v": 128},
    ],
)
def test_what_was_not_measured_has_persistent_ctas(other: dict[str, object]) -> None:
    assert _default(replace(FEW, **other)).persistent  # type: ignore[arg-type]


def test_an_exact_default_has_as_many_splits() -> None:
    exact = _default(replace(FEW, accuracy="exact"))
    assert exact.exact
    assert exact.splits == _default(FEW).splits


def test_a_result_carries_over_to_as_many_splits_alone() -> None:
    family, config = families.get("sm90"), _default(FEW)
    longer, wider = replace(FEW, seq_len_kv=31000), replace(FEW, heads=16, kv_heads=16)
    assert family.carries_over(config, FEW, longer, H200)
    assert _default(wider).splits != config.splits
    assert not family.carries_over(config, FEW, wider, H200)


def test_a_search_of_many_tiles_tries_none_of_them() -> None:
    many = replace(FEW, batch=8, seq_len_q=2048)
    tried = families.worth_trying(families.get("sm90").configs("fast", d_head=128), many)
    assert {c.splits for c in tried if isinstance(c, Sm90Config)} == {1}
    some = families.worth_trying(families.get("sm90").configs("fast", d_head=128), FEW)
    assert _default(FEW) in some
