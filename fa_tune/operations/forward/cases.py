"""The problems that a forward kernel is verified on, for the traits that it is compiled for."""

from __future__ import annotations

import math
from collections.abc import Iterator
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
        return _packed_cases(blocks, heads, traits, thorough=thorough)
    d_head, dtype, d_head_v = heads
    found = (
        CheckCase(
            example(
                traits,
                (*shape, *lengths, d_head, dtype),
                number,
                bottom_right=bottom_right,
                softmax_scale=scale,
                d_head_v=d_head_v,
            ),
            inputs,
        )
        for number, (shape, lengths, bottom_right, scale, kinds) in enumerate(
            _dense(math.lcm(*blocks), d_head, traits, thorough=thorough)
        )
        for inputs in kinds
    )
    return tuple(dict.fromkeys(found))


# Batch, heads and kv heads; lengths of queries and keys; bottom_right; the scale; kinds of inputs.
Dense = tuple[tuple[int, int, int], tuple[int, int], bool, float | None, tuple[str, ...]]


def _dense(block: int, d_head: int, traits: Traits, *, thorough: bool) -> Iterator[Dense]:
    """The problems of a batch that is not packed.  Without the ragged trait lengths are whole
    blocks of `block` queries and keys; with it they are odd."""
    aligned, root = has_alignment(traits), math.sqrt(d_head)
    # Head counts that are no power of two, and unequal lengths, in both alignments.
    lengths = [(block, block), (3 * block, 2 * block), (2 * block, 5 * block)]
    usual = (2 * block, 3 * block)
    if traits.ragged:
        least = fewest_queries(traits)
        lengths = [(least, least), (113, 203), (3 * block + 1, block - 1), (257, 1023)]
        usual = (257, 509)
    shapes = [(2, 3, 3), (1, 6, 2), (3, 5, 1), (2, 4, 4)]
    for these, shape, scale in zip(lengths, shapes, (None, None, 1.5 / root, None), strict=False):
        for bottom_right in (False, True) if aligned else (False,):
            yield shape, these, bottom_right, scale, (NORMAL,)
    # Scores of 1e5, a scale at which all weights are alike, and a sink at either end.
    for scale in (float(round(LARGE_SCORE / (LARGEST_NORMAL * root))), FAR_SCALE):
        yield (1, 4, 2), usual, aligned, scale, (NORMAL,)
    yield (1, 4, 2), usual, aligned, None, (SINK_FIRST, SINK_LAST)
    if thorough:
        for scale in (*WIDE_SCALES, PEAKED_NATS / root):
            yield (2, 6, 2), usual, aligned, scale, (NORMAL,)
        rest = 17 if traits.ragged else 0
        middle, long = (n // block * block - block * bool(rest) + rest for n in LONG)
        yield (1, 2, 1), (middle, middle), False, None, (NORMAL,)
        stretched = (2 * block + rest, long)
        yield (1, 2, 1), stretched, aligned, None, (NORMAL, SINK_FIRST, SINK_LAST)


def _packed_cases(
    blocks: tuple[int, int], heads: tuple[int, DType, int], traits: Traits, *, thorough: bool
) -> tuple[CheckCase, ...]:
    """Sequences without queries, without keys and without either, of one row, of whole blocks and
    of parts; more of them than are ordered; a few long ones among many short ones; scores of 1e5.
    Thorough: 16384 keys beside a few."""
    rows, keys = blocks
    d_head, dtype, d_head_v = heads
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
                d_head_v=d_head_v,
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
