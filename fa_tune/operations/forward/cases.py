"""The problems that a forward kernel is verified on, for the traits that it is compiled for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fa_tune.core.workload import FIELDS, DType, Workload
from fa_tune.operations.base import NORMAL, SINK_FIRST, SINK_LAST, CheckCase
from fa_tune.operations.traits import OF_FIELDS, Traits

LARGE_SCORE = 1e5
# With normal inputs of variance 1 the largest of some hundred scores is about this many times
# scale · sqrt(d_head).
LARGEST_NORMAL = 3.5
FAR_SCALE = 1e-4  # every weight is nearly the same
WIDE_SCALES = (1e-6, 1e-3, 30.0, 1e6)
PEAKED_NATS = 12.0
LONG = (16384, 131072)
# Of verification's windows and soft caps.
LEFTS = (70, 0, 5, 200)
RIGHTS = (3, 100)
PACKED_LEFTS = (9, 70, 0, 33, 5)
SHAPE = ("batch", "heads", "kv_heads", "seq_len_q", "seq_len_kv", "d_head", "dtype")


def cases(
    blocks: tuple[int, int],
    heads: tuple[int, DType, int],
    traits: Traits,
    *,
    thorough: bool,
) -> tuple[CheckCase, ...]:
    """See `Forward.verification_cases`; `heads`: d_head, dtype and d_head_v."""
    if traits.packed:
        return _packed_cases(blocks, heads[0], heads[1], traits, thorough=thorough)
    dense = _DenseCases(math.lcm(*blocks), *heads, traits)
    found = [*dense.of_lengths(), *dense.of_scores()]
    if thorough:
        found += dense.of_far_scores_and_lengths()
    return tuple(dict.fromkeys(found))


@dataclass
class _DenseCases:
    """Those of a batch that is not packed.  Without the ragged trait lengths are whole blocks of
    `block` queries and keys; with it they are odd."""

    block: int
    d_head: int
    dtype: DType
    d_head_v: int
    traits: Traits
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def _aligned(self) -> bool:
        return has_alignment(self.traits)

    @property
    def _usual_lengths(self) -> tuple[int, int]:
        return (257, 509) if self.traits.ragged else (2 * self.block, 3 * self.block)

    def _workload(
        self,
        heads: tuple[int, int, int],
        lengths: tuple[int, int],
        *,
        bottom_right: bool,
        scale: float | None = None,
    ) -> Workload:
        """`heads`: batch, heads and kv_heads."""
        return example(
            self.traits,
            (*heads, *lengths, self.d_head, self.dtype),
            next(self._numbers),
            bottom_right=bottom_right,
            softmax_scale=scale,
            d_head_v=self.d_head_v,
        )

    def of_lengths(self) -> Iterator[CheckCase]:
        """Head counts that are no power of two, and unequal lengths, in both alignments."""
        block = self.block
        lengths = [(block, block), (3 * block, 2 * block), (2 * block, 5 * block)]
        if self.traits.ragged:
            least = fewest_queries(self.traits)
            lengths = [(least, least), (113, 203), (3 * block + 1, block - 1), (257, 1023)]
        heads = [(2, 3, 3), (1, 6, 2), (3, 5, 1), (2, 4, 4)]
        scales = (None, None, 1.5 / math.sqrt(self.d_head), None)
        for these, shape, scale in zip(lengths, heads, scales, strict=False):
            for bottom_right in (False, True) if self._aligned else (False,):
                yield CheckCase(
                    self._workload(shape, these, bottom_right=bottom_right, scale=scale)
                )

    def of_scores(self) -> Iterator[CheckCase]:
        """Scores of 1e5, a scale at which all weights are alike, and a sink at either end."""
        large = round(LARGE_SCORE / (LARGEST_NORMAL * math.sqrt(self.d_head)))
        for scale in (float(large), FAR_SCALE):
            yield CheckCase(self._of_usual_lengths((1, 4, 2), scale))
        sunk = self._of_usual_lengths((1, 4, 2), None)
        for inputs in (SINK_FIRST, SINK_LAST):
            yield CheckCase(sunk, inputs)

    def of_far_scores_and_lengths(self) -> Iterator[CheckCase]:
        """Scales from 1e-6 to 1e6, scores of 12 nats of standard deviation, and lengths to
        131072."""
        for scale in (*WIDE_SCALES, PEAKED_NATS / math.sqrt(self.d_head)):
            yield CheckCase(self._of_usual_lengths((2, 6, 2), scale))
        block, rest = self.block, 17 if self.traits.ragged else 0
        middle, long = (n // block * block - block * bool(rest) + rest for n in LONG)
        yield CheckCase(self._workload((1, 2, 1), (middle, middle), bottom_right=False))
        stretched = self._workload((1, 2, 1), (2 * block + rest, long), bottom_right=self._aligned)
        for inputs in (NORMAL, SINK_FIRST, SINK_LAST):
            yield CheckCase(stretched, inputs)

    def _of_usual_lengths(self, heads: tuple[int, int, int], scale: float | None) -> Workload:
        return self._workload(heads, self._usual_lengths, bottom_right=self._aligned, scale=scale)


def _packed_cases(
    blocks: tuple[int, int], d_head: int, dtype: DType, traits: Traits, *, thorough: bool
) -> tuple[CheckCase, ...]:
    """Sequences without queries, without keys and without either, of one row, of whole blocks and
    of parts; more of them than are ordered; a few long ones among many short ones; scores of 1e5.
    Thorough: 16384 keys beside a few."""
    rows, keys = blocks
    large = round(LARGE_SCORE / (LARGEST_NORMAL * math.sqrt(d_head)))
    listed = (
        f"1+0+{rows}+{2 * rows + 17}+3x1+7+{keys}+{3 * keys + 5}+0",
        f"0+0+{3 * rows + 1}+64+0+{rows - 1}x0+5+{keys - 1}+0+{keys}+{2 * keys + 1}",
    )
    found = [
        ((5, 6, 2), (1, 1), listed[0], None),
        ((6, 3, 3), (1, 1), listed[1], 1.5 / math.sqrt(d_head)),
        ((24, 4, 1), (3 * rows + 9, 5 * keys + 9), "lognormal-1.2-1", None),
        ((9, 4, 2), (rows + 1, rows + 1), "uniform-2", float(large)),
        ((301, 2, 1), (40, 40), "uniform-5", None),
    ]
    if thorough:
        found.append(((12, 4, 2), (16384, 16384), "lognormal-2-7", None))
        found.append(((4, 2, 1), (100, 100), f"16384+1+0+{rows}x{keys}+16384+3+777", None))
    return tuple(
        CheckCase(
            Workload(
                *(*shape, *longest, d_head, dtype),
                causal=traits.causal and not (traits.window and number % 2),
                softmax_scale=scale,
                score_hook=traits.hook or None,
                **_packed_window(traits, number) | _of_traits(traits, 0),
                lengths=lengths,
            )
        )
        for number, (shape, longest, lengths, scale) in enumerate(found)
    )


def _of_traits(traits: Traits, number: int) -> dict[str, Any]:
    """The fields that traits ask for, with the example of that number, or another one again; the
    lengths of a packed batch say that it is one."""
    wanted = {n: FIELDS[n].examples for n in OF_FIELDS if getattr(traits, n) and n != "packed"}
    return {name: examples[number % len(examples)] for name, examples in wanted.items()}


def _packed_window(traits: Traits, number: int) -> dict[str, Any]:
    """The sides of a window that hide keys of the cases of `_packed_cases`."""
    if not traits.window:
        return {}
    right = RIGHTS[0] if traits.causal and number % 2 else None
    return {"window_left": PACKED_LEFTS[number % len(PACKED_LEFTS)], "window_right": right}


def has_alignment(traits: Traits) -> bool:
    """Whether it matters to workloads with these traits how queries and keys are aligned."""
    return traits.causal or traits.window or traits.alibi


def fewest_queries(traits: Traits) -> int:
    """Of as many keys or more: a causal mask hides nothing from the last one."""
    return 2 if traits.causal else 1


def example(
    traits: Traits, shape: tuple[Any, ...], number: int, *, bottom_right: bool, **fields: Any
) -> Workload:
    """A workload with these traits but `ragged`: windows, caps and what else there is to choose
    differ from `number` to number.  `shape`: the fields of SHAPE.  A window that
    would hide nothing is left out."""
    if traits.window:
        fields["window_left"] = LEFTS[number % len(LEFTS)]
    plain: dict[str, Any] = {
        **dict(zip(SHAPE, shape, strict=True)),
        "bottom_right": bottom_right,
        **_of_traits(traits, number),
        "score_hook": traits.hook or None,
        "lengths": "uniform-3" if traits.packed else "",
        **fields,
    }
    if traits.causal and traits.window and number % 2:
        found = Workload(window_right=RIGHTS[number // 2 % len(RIGHTS)], **plain)
        if found.window_right is not None:
            return found
    return Workload(causal=traits.causal, **plain)
