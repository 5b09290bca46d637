"""What a mask is in truth: the simplest rule that hides the same keys.

    full         nothing is hidden
    causal       query i sees keys to i
    causal_br    the same, aligned so that the last query sees every key
    window_N     causal_br, and no key more than N before a query's own
    blocks       sequences one after another, each of which sees itself
    blocks_causal  the same, and no later key
    bias         a number other than 0 is added to scores that are seen
    other        none of these

`+padding` behind one of the first four: of a batch element some keys are seen by no query, and else
it is that.  Rows that see nothing, or of padded keys everything, say nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

FULL, CAUSAL, CAUSAL_BR, WINDOW = "full", "causal", "causal_br", "window_"
BLOCKS, BLOCKS_CAUSAL, BIAS, OTHER = "blocks", "blocks_causal", "bias", "other"
PADDING = "+padding"

Seen = np.ndarray[Any, np.dtype[np.bool_]]
Places = np.ndarray[Any, np.dtype[np.int_]]


def truth(seen: Seen, n_q: int, rows: Places | None = None) -> str:
    """The rule of `seen` [elements, rows, keys], True where a key is seen; one row is that of
    every query.  `rows`: which of the `n_q` queries these are, the last one among them; None:
    all."""
    n_kv = seen.shape[2]
    if 0 in seen.shape:
        return FULL
    where = np.arange(seen.shape[1]) if rows is None else rows
    if seen.shape[1] == 1:
        where = np.array([n_q - 1])
    telling = seen.any(2) & ~seen.all(2)
    last = where + n_kv - n_q
    reach = int((last - seen.argmax(2))[telling].max(initial=-1))
    for name, rule in _rules(where, last, reach, n_kv):
        padded = [_is_padded(element, rule, last) for element in seen]
        if None not in padded:
            return name + PADDING * any(padded)
    found = {_blocks(element, where) for element in seen} if n_q == n_kv else {OTHER}
    return found.pop() if len(found) == 1 else OTHER


def _is_padded(seen: Seen, rule: Seen, last: Places) -> bool | None:
    """Whether keys are hidden that the rule shows; None where it is not this rule."""
    blind = ~seen.any(1)
    shown = seen.all(1) & ~rule.all(1)  # perhaps of keys that are padded on the left
    known = ~blind & ~shown
    seen_by_any = seen[known].any(0)
    of_padding = shown & (last < seen_by_any.argmax())
    if not (((rule & seen_by_any) == seen).all(1) | blind | of_padding).all():
        return None
    padded = bool((rule[known].any(0) & ~seen_by_any).any()) or not known.any()
    return None if of_padding.any() and not padded else padded


def _rules(rows: Places, last: Places, reach: int, n_kv: int) -> Iterator[tuple[str, Seen]]:
    """The rules that hide keys by their place, the simplest first."""
    yield FULL, np.ones((len(rows), n_kv), bool)
    keys, rows, last = np.arange(n_kv), rows[:, None], last[:, None]
    yield CAUSAL, keys <= rows
    yield CAUSAL_BR, keys <= last
    if reach >= 0:
        yield f"{WINDOW}{reach}", (keys <= last) & (keys >= last - reach)


def _blocks(seen: Seen, rows: Places) -> str:
    """Sequences are read off where rows begin and end."""
    seeing, n_kv = seen.any(1), seen.shape[1]
    seen, rows = seen[seeing], rows[seeing]
    first, end = seen.argmax(1), n_kv - seen[:, ::-1].argmax(1)
    keys = np.arange(n_kv)
    in_one_piece = np.array_equal((keys >= first[:, None]) & (keys < end[:, None]), seen)
    if not in_one_piece or (first > rows).any() or (end <= rows).any():
        return OTHER
    begins = first[1:] != first[:-1]
    if np.array_equal(end, rows + 1):
        return BLOCKS_CAUSAL if (first[1:] > rows[:-1])[begins].all() else OTHER
    apart = np.where(begins, first[1:] >= end[:-1], end[1:] == end[:-1])
    return BLOCKS if apart.all() else OTHER
