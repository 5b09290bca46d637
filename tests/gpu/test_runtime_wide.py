"""A program's attention on odd shapes and strides, by the product's criterion; see
runtime_child.py."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fa_tune import families
from fa_tune.core.arch import parse_arch
from fa_tune.core.model import Outcome
from fa_tune.core.options import MachineOptions
from fa_tune.core.workload import DType
from fa_tune.workers.supervisor import run_items
from tests.gpu.cases import request
from tests.gpu.conftest import Built

if not TYPE_CHECKING:
    pytest.importorskip("torch", reason="torch is not installed: there is nothing to judge with")

from tests.gpu.runtime_problems import problems

D_HEADS = (32, 64, 128, 256)
DEADLINE_S = 60.0  # of a head dimension and type, whose kernels are compiled already


@pytest.mark.gpu
@pytest.mark.xdist_group("gpu")
def test_attention_as_programs_call_it(
    tmp_path: Path, arch: str, machine: MachineOptions, built: Built
) -> None:
    limits = parse_arch(arch)
    # Here on all cores; a program would compile them one by one.
    built(
        list(
            dict.fromkeys(
                request(families.variant(found[0]), workload, limits)
                for d_head, dtype in itertools.product(D_HEADS, DType)
                if (found := families.defaults(d_head, dtype, limits))
                for workload, _ in problems(d_head, dtype)
            )
        )
    )
    items = {
        f"{d_head} {dtype.name}": {"d_head": d_head, "dtype": dtype.name}
        for d_head, dtype in itertools.product(D_HEADS, DType)
        if families.defaults(d_head, dtype, limits)
    }
    shared = {"device": 0, "folder": str(tmp_path), "cache_dir": str(machine.cache_dir)}
    handler = "tests.gpu.runtime_child:handle"
    results = list(run_items(handler, shared, items, item_timeout_s=DEADLINE_S))
    lost = [f"{r.item}: {r.outcome}: {r.reason}" for r in results if r.outcome is not Outcome.OK]
    wrong = [text for r in results for text in r.value or ()]
    assert len(results) == len(items)
    assert not lost + wrong, "\n".join((lost + wrong)[:25])
