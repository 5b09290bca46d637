"""Defaults by size: what a library runs for few queries that nobody tuned."""

import dataclasses
import itertools

import pytest

from fa_tune import families
from fa_tune.core.arch import limits, smallest_served
from fa_tune.core.workload import DType, Workload
from fa_tune.export.sizes import KEYS, ROWS, TILES, SizedDefault, nearest, sized_defaults
from fa_tune.families.decode.config import DecodeConfig

pytestmark = pytest.mark.xdist_group("sizes")  # defaults by size are chosen once
ARCHS = ((9, 0), (8, 0))


@pytest.fixture(scope="module", params=ARCHS, ids=str)
def capability(request: pytest.FixtureRequest) -> tuple[int, int]:
    found: tuple[int, int] = request.param
    return found


@pytest.fixture(scope="module")
def sized(capability: tuple[int, int]) -> tuple[SizedDefault, ...]:
    like = Workload(1, 1, 1, 1, 1, 128, DType.BF16)
    return sized_defaults(like, limits(capability))


def key_of_default(workload: Workload, capability: tuple[int, int]) -> str:
    (default, *_) = families.defaults_for(workload, smallest_served(limits(capability)))
    return families.variant(default).key


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("lengths", ["", "equal"])
def test_where_there_is_a_size_its_default_is_found(
    sized: tuple[SizedDefault, ...], capability: tuple[int, int], rows: int, lengths: str
) -> None:
    number = 10 * capability[0] + capability[1]
    sizes = itertools.product(TILES, KEYS, ((1, False), (2, True)))
    for n, keys, (batch, causal) in itertools.islice(sizes, rows // 16 % 3, None, 3):
        if n < batch or rows * n > 65535:
            continue
        queries, kv_heads = (4, n // batch) if causal else (1, n // batch)
        asked = Workload(
            *(batch, kv_heads * rows // queries, kv_heads, queries, keys, 128, DType.BF16),
            causal=causal,
            bottom_right=causal,
            cache_lengths=lengths,
        )
        found = nearest(sized, asked, number)
        assert found[0] == key_of_default(asked, capability), asked.key


def test_other_numbers_of_heads_and_keys_run_what_is_near(sized: tuple[SizedDefault, ...]) -> None:
    asked = Workload(3, 21, 3, 2, 5000, 128, DType.BF16)  # 9 tiles of 14 rows
    near = Workload(1, 128, 8, 1, 4096, 128, DType.BF16)
    assert nearest(sized, asked, 90)[0] == nearest(sized, near, 90)[0]
    wider, near = dataclasses.replace(asked, heads=27), dataclasses.replace(near, heads=256)
    assert nearest(sized, wider, 90)[0] == nearest(sized, near, 90)[0], "18 rows"


def test_many_rows_other_kinds_and_earlier_gpus_have_none(
    sized: tuple[SizedDefault, ...], capability: tuple[int, int]
) -> None:
    number = 10 * capability[0] + capability[1]
    few = Workload(4, 64, 8, 1, 5000, 128, DType.BF16)
    assert nearest(sized, few, number)
    assert not nearest(sized, dataclasses.replace(few, seq_len_q=17), number), "136 rows"
    assert not nearest(sized, dataclasses.replace(few, dtype=DType.FP16), number)
    assert not nearest(sized, dataclasses.replace(few, kv_e4m3=True), number)
    assert not nearest(sized, few, number - 5)


def test_more_rows_than_a_tile_has_count_as_several(sized: tuple[SizedDefault, ...]) -> None:
    several = Workload(2, 64, 4, 11, 5000, 128, DType.BF16)  # 3 tiles of 59 rows for each head
    one_each = dataclasses.replace(several, heads=59 * 12, kv_heads=12, seq_len_q=1)
    assert nearest(sized, several, 90) == nearest(sized, one_each, 90)


def test_what_is_of_the_latest_gpu_comes_first(sized: tuple[SizedDefault, ...]) -> None:
    few = Workload(4, 64, 8, 1, 5000, 128, DType.BF16)
    config = DecodeConfig(DType.BF16, 128, 16, 64, 4)
    own = SizedDefault(95, dataclasses.replace(few, seq_len_kv=100), config)
    assert nearest([*sized, own], few, 95)[0] == own.key
    assert nearest([*sized, own], few, 94)[0] != own.key
