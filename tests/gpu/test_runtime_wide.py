"""A program's attention on odd shapes and strides, by the product's criterion; see
runtime_child.py."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fa_tune import families
from fa_tune.core.arch import parse_arch
from fa_tune.core.model import DType, Outcome
from fa_tune.workers.supervisor import run_items

if not TYPE_CHECKING:
    pytest.importorskip("torch", reason="torch is not installed: there is nothing to judge with")

D_HEADS = (32, 64, 96, 128, 192, 256)
DEADLINE_S = 300.0  # of a head dimension and type: eight kernels are compiled, one by one


@pytest.mark.gpu
@pytest.mark.xdist_group("gpu")
def test_attention_as_programs_call_it(tmp_path: Path, arch: str) -> None:
    limits = parse_arch(arch)
    items = {
        f"{d_head} {dtype.name}": {"d_head": d_head, "dtype": dtype.name}
        for d_head, dtype in itertools.product(D_HEADS, DType)
        if families.defaults(d_head, dtype, limits)
    }
    shared = {"device": 0, "folder": str(tmp_path)}
    handler = "tests.gpu.runtime_child:handle"
    results = list(run_items(handler, shared, items, item_timeout_s=DEADLINE_S))
    lost = [f"{r.item}: {r.outcome}: {r.reason}" for r in results if r.outcome is not Outcome.OK]
    wrong = [text for r in results for text in r.value or ()]
    assert len(results) == len(items)
    assert not lost + wrong, "\n".join((lost + wrong)[:25])
