"""The decode family's kernels on the host: with lengths and pages that are known on the device
alone, with parts that a kernel of their own combines, and whatever the schedule."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fa_tune import families
from fa_tune.build.compile import BuildRequest
from fa_tune.core.workload import DType, Workload
from fa_tune.operations.traits import Traits
from tests.kernels.emulated import cached_problems
from tests.kernels.emulated.cached_problems import CacheInputs
from tests.kernels.emulated.emulation import Emulated, build, schedules
from tests.kernels.emulated.judging import judge
from tests.kernels.emulated.problems import NAN, Bits, Problem, faults

FAMILY = families.get("decode")
# Together: one warp for all rows and several, groups with a slice each and one group, a second
# k-step, both ways to combine, both types.
KERNELS = (
    ("decode(BF16, 64, 16, 64, 2): stages_2+ctas_2", "causal+ragged+lse"),
    ("decode(FP16, 96, 32, 32, 4): row_warps_2+aligned+combine_kernel", "ragged+lse"),
    ("decode(BF16, 128, 64, 16, 4): row_warps_4+stages_4+ctas_3+min_blocks_2", "causal+ragged"),
    (
        "decode(FP16, 96, 16, 32, 2): stages_2+aligned+d_head_v_64",
        "causal+ragged+lse+window+sink+softcap",
    ),
    ("decode(BF16, 64, 16, 16, 1): combine_kernel+d_head_v_96", "ragged+lse+window+sink"),
    ("decode(FP16, 64, 16, 32, 2): stages_2+cluster_4", "causal+ragged+lse+window"),
    (
        "decode(FP16, 96, 32, 32, 4): row_warps_2+d_head_v_64+cluster_2",
        "causal+ragged+lse+sink+softcap",
    ),
    ("decode(BF16, 64, 16, 32, 2): stages_2+tile_keys_64", "causal+ragged+lse+window"),
    ("decode(FP16, 64, 16, 16, 1): ctas_3+combine_kernel+tile_keys_16", "ragged+lse"),
    ("decode(FP16, 96, 32, 32, 4): row_warps_2+ctas_2+by_rows", "causal+ragged+lse+softcap"),
    ("decode(BF16, 64, 64, 16, 4): stages_2+row_warps_4+ctas_3+by_rows", "ragged+lse+sink"),
    ("decode(BF16, 96, 16, 32, 2): combine_kernel+d_head_v_64+tile_keys_32+by_rows", "ragged"),
    ("decode(BF16, 128, 32, 16, 2): row_warps_2+ctas_4+aligned+combine_all", "causal+ragged+lse"),
    ("decode(FP16, 64, 16, 16, 1): stages_2+ctas_8+combine_all+tile_keys_16", "ragged+lse+sink"),
    ("decode(BF16, 64, 16, 64, 2): stages_2+ctas_2+shared_queries", "causal+ragged+lse"),
    (
        "decode(FP16, 96, 32, 32, 4): row_warps_2+d_head_v_64+cluster_2+shared_queries",
        "causal+ragged+lse+sink+softcap",
    ),
    ("decode(BF16, 128, 64, 16, 4): stages_2+row_warps_4+ctas_3+shared_queries", "ragged"),
    ("decode(BF16, 80, 16, 64, 2): stages_2+ctas_2+combine_all+sectors", "causal+ragged+lse"),
    ("decode(FP16, 112, 32, 32, 4): row_warps_2+aligned+by_rows+shared_queries", "ragged+lse"),
    ("decode(FP16, 72, 16, 32, 2): stages_2+shared_queries+cluster_8", "causal+ragged+lse"),
    ("decode(BF16, 104, 16, 32, 2): stages_2+combine_kernel+d_head_v_40", "ragged+sink"),
    ("decode(FP16, 80, 32, 32, 4): row_warps_2+d_head_v_48+cluster_2", "causal+ragged+softcap"),
    ("decode(BF16, 64, 16, 16, 1): stages_2+whole_rounds", "causal+ragged+lse"),
    ("decode(FP16, 96, 32, 32, 4): row_warps_2+by_rows+cta_per_tile", "causal+ragged+lse+window"),
)
NARROW = (
    ("decode(BF16, 64, 16, 32, 2): stages_2+e4m3", "causal+ragged+lse+softcap"),
    ("decode(BF16, 64, 16, 16, 1): stages_2+ctas_8+combine_all+e4m3", "causal+ragged+lse+sink"),
    ("decode(FP16, 64, 16, 32, 2): stages_2+ctas_4+aligned+e4m3+by_rows", "causal+ragged+lse"),
    ("decode(FP16, 128, 32, 64, 4): row_warps_2+d_head_v_64+combine_kernel+e4m3", "ragged+lse"),
    ("decode(BF16, 64, 16, 32, 2): stages_2+e4m3+cluster_2", "causal+ragged+lse"),
    ("decode(FP16, 64, 32, 32, 2): stages_2+e4m3+shared_queries", "causal+ragged+lse"),
    ("decode(BF16, 64, 16, 32, 2): stages_2+ctas_3+e4m3+cta_per_tile", "causal+ragged+lse"),
)
LENGTHS = (0, 1, 37, 150, 64)
QUERIES, GROUP, KV_HEADS, CAPACITY, PAGE = 3, 4, 2, 160, 32
LEFT = 45


def _kernel(short_form: str, traits: str, folder: Path) -> Emulated:
    variant = families.variant(FAMILY.parse(short_form))
    return build(BuildRequest(variant, traits, "sm_90"), folder)


@pytest.mark.parametrize(("short_form", "traits"), KERNELS)
def test_no_schedule_changes_a_result(short_form: str, traits: str, libraries: Path) -> None:
    verdict = judge(_kernel(short_form, traits, libraries), repeats=2)
    assert not verdict.findings
    assert verdict.launches >= 9


def _problem(kernel: Emulated) -> Problem:
    """All keys of the cache; those beyond a sequence's length are NaN."""
    traits, config = Traits.parse(kernel.request.traits), kernel.config
    workload = Workload(
        *(len(LENGTHS), GROUP * KV_HEADS, KV_HEADS, QUERIES, CAPACITY),
        config.d_head,
        config.dtype,
        d_head_v=config.d_head_v,
        causal=traits.causal,
        bottom_right=traits.causal or traits.window,
        lse=traits.lse,
        window_left=LEFT if traits.window else None,
        sink=traits.sink,
        softcap=5.0 if traits.softcap else None,
    )
    problem = Problem.draw(workload, "plain", 3)
    for batch, length in enumerate(LENGTHS):
        problem.k[batch, length:] = NAN
        problem.v[batch, length:] = NAN
    return problem


def _judged(
    problem: Problem, out: np.ndarray, lse: np.ndarray, lengths: Sequence[int] = LENGTHS
) -> list[str]:
    """What is wrong, sequence by sequence."""
    w, found = problem.workload, []
    rows = w.heads * w.seq_len_q
    for batch, length in enumerate(lengths):
        one = slice(batch, batch + 1)
        if length == 0:
            found += ["not 0"] if out[one].any() else []
            continue
        alone = dataclasses.replace(
            problem,
            workload=dataclasses.replace(w, batch=1, seq_len_kv=length),
            q=problem.q[one],
            k=problem.k[one, :length],
            v=problem.v[one, :length],
        )
        room, own_lse = alone.out(), alone.lse()
        room.inside[...] = out[one]
        own_lse[64:-64] = lse[64:-64][batch * rows : (batch + 1) * rows]
        found += [f"sequence {batch}: {fault}" for fault in faults(alone, room, own_lse)]
    return found


def _paged(tensor: Bits, lengths: Sequence[int] = LENGTHS) -> tuple[Bits, np.ndarray]:
    return cached_problems.paged(tensor, lengths, PAGE)


@pytest.mark.parametrize("paged", [False, True], ids=["in one piece", "in pages"])
@pytest.mark.parametrize(("short_form", "traits"), KERNELS)
def test_lengths_are_those_of_the_device(
    short_form: str, traits: str, paged: bool, libraries: Path
) -> None:
    kernel = _kernel(short_form, traits, libraries)
    problem = _problem(kernel)
    lengths = np.array(LENGTHS, np.int32) - 2
    cache = CacheInputs(lengths, added=2)
    lengths[0] = -2
    given = problem
    if paged:
        (k, table), (v, _) = _paged(problem.k), _paged(problem.v)
        given = dataclasses.replace(problem, k=k, v=v)
        cache = dataclasses.replace(cache, table=table, page_size=PAGE)
    first = None
    for schedule in itertools.islice(schedules(5), 4):
        out, lse = kernel.launch(given, schedule, cache)
        assert not _judged(problem, out.inside, lse)
        assert out.is_clean_outside()
        found = out.whole.tobytes() + lse.tobytes()
        assert first in (None, found), "other bits than the first time"
        first = found


@pytest.mark.parametrize("ctas", [1, 4, 8])
@pytest.mark.parametrize("tile_keys", [16, 40, 128])
def test_cuts_near_the_ends_of_tiles_leave_nothing_out(
    tile_keys: int, ctas: int, libraries: Path
) -> None:
    """Short tiles and long ones, some of which several CTAs share, and cuts at all places."""
    form = f"decode(FP16, 32, 16, 16, 1): stages_2+ctas_{ctas}+tile_keys_{tile_keys}"
    kernel = _kernel(form, "ragged+lse", libraries)
    dice = np.random.default_rng(100 * ctas + tile_keys)
    workload = Workload(16, 1, 1, 1, 400, 32, kernel.config.dtype, lse=True)
    problem = Problem.draw(workload, "plain", 3)
    for round_ in range(6):
        lengths = np.minimum(400, dice.lognormal(4, 1.5, 16)).astype(np.int32)
        if round_ == 0:  # tiles as long as one another count for no keys beside their own
            lengths[:] = dice.integers(1, 400)
        cache = CacheInputs(lengths)
        out, lse = kernel.launch(problem, next(iter(schedules(1))), cache)
        assert not _judged(problem, out.inside, lse, lengths)


@pytest.mark.parametrize("order", ["whole_rounds", "cta_per_tile"])
@pytest.mark.parametrize("tiles", [1, 4, 6, 7, 12, 16, 33])
def test_rounds_and_the_line_behind_them_have_every_tile(
    tiles: int, order: str, libraries: Path
) -> None:
    """Six CTAs: no tile for each, full rounds, and few and many tiles behind them."""
    kv_heads = 3 if tiles % 3 == 0 else 1
    form = f"decode(FP16, 32, 16, 16, 1): stages_2+ctas_3+{order}"
    kernel = _kernel(form, "ragged+lse", libraries)
    shape = (tiles // kv_heads, kv_heads, kv_heads, 1, 90, 32)
    problem = Problem.draw(Workload(*shape, kernel.config.dtype, lse=True), "plain", 3)
    out, lse = kernel.launch(problem, next(iter(schedules(1))))
    assert not faults(problem, out, lse)


# New keys and values ------------------------------------------------------------------------

ADDED = 3


@pytest.mark.parametrize("paged", [False, True], ids=["in one piece", "in pages"])
@pytest.mark.parametrize(("short_form", "traits"), KERNELS)
def test_new_keys_are_attended_to_and_written_to_their_places(
    short_form: str, traits: str, paged: bool, libraries: Path
) -> None:
    kernel = _kernel(short_form, traits, libraries)
    problem = _problem(kernel)
    lengths = np.array([max(0, n - ADDED) for n in LENGTHS], np.int32)
    for batch, (length, old) in enumerate(zip(LENGTHS, lengths, strict=True)):
        if length < ADDED:  # fewer than there are new ones
            for tensor in (problem.k, problem.v):
                tensor[batch, :ADDED] = tensor[-1, :ADDED]
        assert old + ADDED == max(length, ADDED)
    news = [np.stack([t[b, n : n + ADDED] for b, n in enumerate(lengths)]) for t in _kv(problem)]
    found = []
    for schedule in itertools.islice(schedules(6), 2):
        caches = [tensor.copy() for tensor in _kv(problem)]
        for cache in caches:
            for batch, old in enumerate(lengths):
                cache[batch, old : old + ADDED] = NAN
        table = None
        if paged:
            (k, table), (v, _) = (_paged(cache, lengths + ADDED) for cache in caches)
            caches = [k, v]
        inputs = CacheInputs(lengths, ADDED, table, PAGE if paged else 0, tuple(news))
        given = dataclasses.replace(problem, k=caches[0], v=caches[1])
        out, lse = kernel.launch(given, schedule, inputs)
        assert not _judged(problem, out.inside, lse, lengths + ADDED)
        for cache, whole in zip(caches, _kv(problem), strict=True):
            for batch, old in enumerate(lengths):
                places = np.arange(old + ADDED)
                at = batch, places
                if table is not None:
                    at = table[batch, places // PAGE], places % PAGE
                assert np.array_equal(cache[at], whole[batch, places])
        found.append(out.whole.tobytes() + lse.tobytes())
    assert found[0] == found[1]


# Pages that are gone ------------------------------------------------------------------------

SMALL_PAGE = 16
WINDOWS = [kernel for kernel in KERNELS if "window" in kernel[1]]


def _without_old_pages(
    problem: Problem, lengths: np.ndarray, entry: int
) -> tuple[Problem, np.ndarray]:
    """In pages, and the table, where `entry` stands for those that are wholly in front of the
    window.  Page -1 is NaN."""
    w = problem.workload
    caches = [cached_problems.paged(tensor, lengths, SMALL_PAGE) for tensor in _kv(problem)]
    table = caches[0][1]
    for row, length in zip(table, lengths, strict=True):
        row[: max(0, length - w.seq_len_q - (w.window_left or 0)) // SMALL_PAGE] = entry
    k, v = (np.concatenate((np.full_like(pool[:1], NAN), pool))[1:] for pool, _ in caches)
    return dataclasses.replace(problem, k=k, v=v), table


@pytest.mark.parametrize("entry", [-1, cached_problems.NO_PAGE], ids=["of NaN", "nowhere"])
@pytest.mark.parametrize("longest", [120, 143, 160])
@pytest.mark.parametrize(("short_form", "traits"), WINDOWS)
def test_pages_in_front_of_a_window_may_be_gone(
    short_form: str, traits: str, longest: int, entry: int, libraries: Path
) -> None:
    """Also those with keys of the window's first block."""
    kernel = _kernel(short_form, traits, libraries)
    lengths = np.array([longest, longest - 1, 64, 5, 0], np.int32)
    problem = Problem.draw(_problem(kernel).workload, "plain", 3)
    given, table = _without_old_pages(problem, lengths, entry)
    cache = CacheInputs(lengths, table=table, page_size=SMALL_PAGE)
    for schedule in itertools.islice(schedules(4), 2):
        out, lse = kernel.launch(given, schedule, cache)
        assert not _judged(problem, out.inside, lse, lengths)


@pytest.mark.parametrize(("short_form", "traits"), WINDOWS)
def test_new_keys_that_only_first_queries_see_are_written(
    short_form: str, traits: str, libraries: Path
) -> None:
    """By the tile of the last ones, which writes all."""
    kernel, queries = _kernel(short_form, traits, libraries), 40
    workload = dataclasses.replace(
        _problem(kernel).workload, batch=1, seq_len_q=queries, window_left=0
    )
    problem = Problem.draw(workload, "plain", 3)
    old = np.array([5 * SMALL_PAGE], np.int32)
    given, table = _without_old_pages(problem, old + queries, -1)
    new = tuple(tensor[:, old[0] : old[0] + queries].copy() for tensor in _kv(problem))
    places = old[0] + np.arange(queries)
    at = table[0, places // SMALL_PAGE], places % SMALL_PAGE
    for cache in _kv(given):
        cache[at] = NAN
    inputs = CacheInputs(old, queries, table, SMALL_PAGE, new)
    out, lse = kernel.launch(given, next(iter(schedules(4))), inputs)
    assert not _judged(problem, out.inside, lse, old + queries)
    for cache, written in zip(_kv(given), new, strict=True):
        assert np.array_equal(cache[at], written[0])


def _kv(problem: Problem) -> tuple[Bits, Bits]:
    return problem.k, problem.v


# e4m3 ---------------------------------------------------------------------------------------

ON_DEVICE = np.array(LENGTHS, np.int32)


def _narrow(kernel: Emulated) -> tuple[cached_problems.Narrow, Problem, CacheInputs]:
    """A problem in e4m3, the same in the type of Q, and what tells the lengths."""
    return *cached_problems.narrow(_problem(kernel)), CacheInputs(ON_DEVICE)


@pytest.mark.parametrize(("short_form", "traits"), NARROW)
def test_any_scale_is_one_of_its_head_alone(short_form: str, traits: str, libraries: Path) -> None:
    """0 of a head of zeros, a negative one, and none at all where nobody sees a key."""
    kernel = _kernel(short_form, traits, libraries)
    narrow, same, cache = _narrow(kernel)
    (k_scales, v_scales), long = narrow.scales, LENGTHS.index(150)
    k_scales[:, 0] = v_scales[:, 0] = 0
    for tensor in (same.k, same.v):
        zeros = tensor[:, :, 0]
        zeros[zeros != NAN] = 0
    for scales, tensor in ((k_scales, same.k), (v_scales, same.v)):
        scales[long, 1] *= -1
        turned = tensor[long, :, 1]
        turned[turned != NAN] ^= 0x8000
    k_scales[LENGTHS.index(0)] = np.nan, np.inf
    out, lse = kernel.launch(narrow, next(iter(schedules(9))), cache)
    assert not _judged(same, out.inside, lse)


@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("short_form", "traits"), NARROW)
def test_a_scale_that_is_no_number_makes_none_of_rows_that_see_keys(
    short_form: str, traits: str, scale: float, libraries: Path
) -> None:
    kernel = _kernel(short_form, traits, libraries)
    (narrow, same, cache), seen = _narrow(kernel), LENGTHS.index(37)
    narrow.scales[0][seen, 0] = scale
    out, lse = kernel.launch(narrow, next(iter(schedules(9))), cache)
    w = same.workload
    shape = (w.batch, w.kv_heads, GROUP, QUERIES)
    spoilt = np.zeros(shape, bool)
    spoilt[seen, 0] = True
    found = lse[64:-64].reshape(shape)
    assert np.array_equal(np.isnan(found), spoilt)
    bits = out.inside.astype(np.int32) & 0x7FFF
    beyond = bits > (0x7F80 if w.dtype is DType.BF16 else 0x7C00)
    of_heads = beyond.reshape(w.batch, QUERIES, w.kv_heads, GROUP, -1).transpose(0, 2, 3, 1, 4)
    assert np.array_equal(of_heads.all(-1), spoilt)
    assert np.array_equal(of_heads.any(-1), spoilt)


@pytest.mark.parametrize("paged", [False, True], ids=["in one piece", "in pages"])
@pytest.mark.parametrize(("short_form", "traits"), NARROW)
def test_e4m3_is_what_its_numbers_and_scales_say(
    short_form: str, traits: str, paged: bool, libraries: Path
) -> None:
    kernel = _kernel(short_form, traits, libraries)
    narrow, same, cache = _narrow(kernel)
    if paged:
        (k, table), (v, _) = _paged(narrow.k), _paged(narrow.v)
        narrow = dataclasses.replace(narrow, k=k, v=v)
        cache = dataclasses.replace(cache, table=table, page_size=PAGE)
    for schedule in itertools.islice(schedules(8), 2):
        out, lse = kernel.launch(narrow, schedule, cache)
        assert not _judged(same, out.inside, lse)
        assert out.is_clean_outside()
