"""K and V as caches in host memory: in one piece or in pages, in the type of Q or in e4m3, with new
keys that a launch is to write to their places, and NaN wherever nobody's keys are."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.kernels.emulated.problems import NAN, Bits, Problem, Room, to_bits

NO_PAGE = 1 << 30  # in the table, where a sequence has ended
SPARE_PAGES = 4
E4M3 = np.array(
    [
        sign * (m / 8 * 2.0**-6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7))
        for sign in (1, -1)
        for e in range(16)
        for m in range(8)
    ]
)  # the last of each sign is NaN


@dataclass(frozen=True)
class Narrow(Problem):
    """K and V as e4m3, pairs of numbers by their bits, with fp32 scales [batch, kv_heads]."""

    scales: tuple[np.ndarray, np.ndarray]

    def tensors(self) -> dict[str, np.ndarray]:
        return super().tensors() | dict(zip(("k_scale", "v_scale"), self.scales, strict=True))

    def out(self) -> Room:
        return Room.of((*self.q.shape[:3], self.workload.d_v), self.out_layout)


def narrow(problem: Problem, seed: int = 11) -> tuple[Narrow, Problem]:
    """The problem with other K and V, as e4m3, and the same in the type of Q."""
    dice = np.random.default_rng(seed)
    w, wide, pairs, scales = problem.workload, [], [], []
    for tensor in (problem.k, problem.v):
        numbers = dice.integers(0, 256, tensor.shape, np.uint8)
        numbers = np.where(numbers % 128 >= 80, numbers - 40, numbers)  # to 4
        scale = np.exp2(dice.integers(-1, 2, (w.batch, w.kv_heads))).astype(np.float32)
        nobodys = tensor == NAN
        wide.append(to_bits(E4M3[numbers] * scale[:, None, :, None], w.dtype))
        wide[-1][nobodys] = NAN
        numbers[nobodys] = NAN & 0xFF
        pairs.append(np.ascontiguousarray(numbers).view(np.uint16))
        scales.append(scale)
    found = Narrow(
        dataclasses.replace(w, kv_e4m3=True),
        *(problem.q, *pairs, problem.out_layout, problem.sink, problem.slopes),
        scales=(scales[0], scales[1]),
    )
    return found, dataclasses.replace(problem, k=wide[0], v=wide[1])


def paged(
    tensor: Bits, lengths: Sequence[int] | np.ndarray, page: int, seed: int = 7
) -> tuple[Bits, np.ndarray]:
    """A cache [batch, whole pages, heads, columns] in pages of a pool, in no order, and the table
    of them; pages that no sequence owns are NaN, and the table has nonsense where a sequence has
    ended."""
    batch, capacity, heads, columns = tensor.shape
    each = capacity // page
    n_pages = batch * each + SPARE_PAGES
    order = np.random.default_rng(seed).permutation(n_pages)[: batch * each]
    pool = np.full((n_pages, page, heads, columns), NAN, np.uint16)
    pool[order] = tensor.reshape(batch * each, page, heads, columns)
    table = order.reshape(batch, each).astype(np.int32)
    for row, length in zip(table, lengths, strict=True):
        row[-(-int(length) // page) :] = NO_PAGE
    return pool, table


@dataclass(frozen=True)
class CacheInputs:
    """What a launch is given of K and V beside them, see fa_tune_tensors: `lengths`, the `table` of
    pages, and new keys and values."""

    lengths: np.ndarray
    added: int = 0
    table: np.ndarray | None = None
    page_size: int = 0
    new: tuple[Bits, ...] = ()

    def tensors(self) -> dict[str, np.ndarray]:
        """These by their names."""
        found = {
            "cache_seqlens": self.lengths,
            **dict(zip(("new_k", "new_v"), self.new, strict=False)),
        }
        return found if self.table is None else found | {"page_table": self.table}


@dataclass(frozen=True)
class Cache:
    """How a launch is given K and V, `whole` [batch, capacity, kv_heads, columns] each:
    sequence i has `lengths[i]` keys, the last `added` of which are not in `lengths`' tensor, and
    with `appends` not in the caches but in tensors of their own.  `page` 0: no pages."""

    whole: tuple[Bits, Bits]
    lengths: np.ndarray
    added: int = 0
    appends: bool = False
    page: int = 0
    seed: int = 7

    @dataclass(frozen=True)
    class Given:
        """Caches as a launch finds them, what it is given, and what must be there afterwards."""

        k: Bits
        v: Bits
        inputs: CacheInputs
        after: tuple[Bits, Bits]

        def is_right(self) -> bool:
            """Whether the caches are what they must be, to the bit."""
            return all(
                np.array_equal(a, b) for a, b in zip((self.k, self.v), self.after, strict=True)
            )

    def given(self) -> Given:
        """For a launch; each has memory of its own."""
        before = (self.lengths - self.added).astype(np.int32)
        caches, news = [tensor.copy() for tensor in self.whole], []
        if self.appends:
            for cache in caches:
                news.append(
                    np.stack([c[n : n + self.added] for c, n in zip(cache, before, strict=True)])
                )
                for sequence, n in zip(cache, before, strict=True):
                    sequence[n : n + self.added] = NAN
        after = [tensor.copy() for tensor in self.whole]
        table = None
        if self.page:
            caches, after = (
                [paged(t, self.lengths, self.page, self.seed)[0] for t in tensors]
                for tensors in (caches, after)
            )
            _, table = paged(self.whole[0], self.lengths, self.page, self.seed)
        inputs = CacheInputs(before, self.added, table, self.page, tuple(news))
        return self.Given(caches[0], caches[1], inputs, (after[0], after[1]))
