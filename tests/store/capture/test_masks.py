"""The rule that is found hides what the mask hides, and no simpler one does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_tune.store.capture.masks import PADDING, truth

SIZES = st.integers(1, 12)


def meant(rule: str, n_q: int, n_kv: int, cuts: tuple[int, ...] = ()) -> Any:
    """[n_q, n_kv] of a rule, written once more."""
    i, j = np.arange(n_q)[:, None], np.arange(n_kv)
    d = n_kv - n_q
    if rule.startswith("window"):
        return (j <= i + d) & (j >= i + d - int(rule.removeprefix("window_")))
    if rule.startswith("blocks"):
        number = np.searchsorted(cuts, np.arange(n_q), side="right")
        same = number[:, None] == number
        return same & (j <= i) if rule == "blocks_causal" else same
    return {"full": j >= 0 * i, "causal": j <= i, "causal_br": j <= i + d}[rule]


@st.composite
def masks(draw: st.DrawFn) -> tuple[str, Any]:
    n_q, n_kv = draw(SIZES), draw(SIZES)
    rule = draw(
        st.sampled_from(["full", "causal", "causal_br", "window", "blocks", "blocks_causal"])
    )
    cuts: tuple[int, ...] = ()
    if rule == "window":
        rule = f"window_{draw(st.integers(0, 12))}"
    if rule.startswith("blocks"):
        n_kv = n_q
        cuts = tuple(sorted(draw(st.sets(st.integers(1, 11), min_size=1))))
    return rule, np.broadcast_to(meant(rule, n_q, n_kv, cuts), (n_q, n_kv))


@given(masks())
def test_a_rule_is_found_or_a_simpler_one_that_is_the_same(given: tuple[str, Any]) -> None:
    rule, seen = given
    found = truth(seen[None], len(seen))
    if found.startswith("blocks") and rule.startswith("blocks"):
        return
    assert found != "other"
    if not found.startswith("blocks"):
        base = found.removesuffix(PADDING)
        kept = np.ones_like(seen[0]) if base == found else seen.any(0)
        alike = (meant(base, *seen.shape) & kept) == seen
        assert (alike.all(1) | ~seen.any(1)).all()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.booleans(), st.booleans())
def test_padding_is_seen_in_any_element(
    lengths: list[int], left: bool, shows_padded_rows: bool
) -> None:
    n = 9
    each = []
    for length in lengths:
        keys = np.arange(n) >= n - length if left else np.arange(n) < length
        seen = meant("causal", n, n) & keys
        if shows_padded_rows:
            seen = seen | ~seen.any(1)[:, None]
        each.append(seen)
    expected = "causal" + PADDING * (min(lengths) < n)
    single = set(lengths) == {1}  # one key for all rows is full, too
    found = truth(np.stack(each), n)
    assert found == expected or (single and found.endswith(PADDING))
    broad = np.stack([np.arange(n) < length for length in lengths])[:, None]
    assert truth(broad, 5) == "full" + PADDING * (min(lengths) < n)


@given(st.sets(st.integers(1, 15), max_size=5), st.booleans(), st.booleans())
def test_packed_sequences_are_blocks(cuts: set[int], causal: bool, sampled: bool) -> None:
    rule = "blocks_causal" if causal else "blocks"
    seen = meant(rule, 16, 16, tuple(sorted(cuts)))
    rows = np.unique([0, 2, 3, 7, 12, 15]) if sampled else np.arange(16)
    found = truth(seen[None][:, rows], 16, rows)
    if not cuts:
        assert found == ("causal" if causal else "full")
    elif len(cuts) < 3 and not sampled:
        assert found == rule or meant(found, 16, 16).tolist() == seen.tolist()
    else:
        assert found != "other"


@given(masks(), st.data())
def test_one_key_more_or_less_is_no_rule_or_its_own(
    given: tuple[str, Any], data: st.DataObject
) -> None:
    """What is found never says that a key is hidden that a query sees."""
    _, seen = given
    seen = seen.copy()
    i, j = data.draw(st.integers(0, len(seen) - 1)), data.draw(st.integers(0, seen.shape[1] - 1))
    seen[i, j] ^= True
    found = truth(seen[None], len(seen))
    base = found.removesuffix(PADDING)
    if base == "other" or base.startswith("blocks"):
        return
    rule = meant(base, *seen.shape)
    shown = seen.all(1) & (base != found)  # rows of padded keys
    assert not ((seen & ~rule).any(1) & ~shown).any()
    if base == found:
        assert not ((rule & ~seen).any(1) & seen.any(1)).any()


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_no_rule(seed: int) -> None:
    seen = np.random.default_rng(seed).random((2, 9, 11)) < 0.5
    assert truth(seen, 9) == "other"


def test_elements_of_different_rules_have_none() -> None:
    both = np.stack([meant("causal", 5, 5), meant("full", 5, 5)])
    assert truth(both, 5) == "other"
    assert truth(both[:, :, :0], 5) == "full", "nothing to hide"
