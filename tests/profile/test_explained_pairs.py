"""Pairs whose difference is known, by counters that an H200 gave under ncu 2025.3.1: what
`fa-tune profile --metrics explain --seq-lens 1024 --batch 4 --ref none --json` wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_tune.profile.profile_json import load
from tests.gpu.explained_pairs import PAIRS, Pair, check

RECORDED = load(Path(__file__).parent / "data" / "pairs_explain_h200.json")


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_the_recorded_pair_is_explained_by_the_right_counter(pair: Pair) -> None:
    check(pair, RECORDED)
