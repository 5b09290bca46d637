"""What families are offered: workloads of fields that they name, and no others."""

from dataclasses import replace
from typing import Any

import pytest

from fa_tune import families
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import OPTIONAL, DType, Workload

FEW = Workload(2, 8, 2, 4, 512, 128, DType.BF16)
USING = {
    "lse": replace(FEW, lse=True),
    "window_left": replace(FEW, window_left=2),
    "sink": replace(FEW, sink=True),
    "softcap": replace(FEW, softcap=20.0),
    "alibi": replace(FEW, alibi=True),
    "packed": Workload(2, 8, 2, 4, 512, 128, DType.BF16, packed=True, total_q=6, total_kv=900),
    "d_head_v": replace(FEW, d_head_v=64),
    "cache_lengths": replace(FEW, cache_lengths="equal"),
    "page_size": replace(FEW, page_size=16),
}


@pytest.mark.parametrize("name", families.family_names())
def test_what_a_family_computes_are_fields(name: str) -> None:
    family: Any = families.get(name)
    assert family.computes <= set(OPTIONAL)


@pytest.mark.parametrize("field", sorted(USING))
@pytest.mark.parametrize("name", families.family_names())
def test_a_field_is_offered_where_it_is_named(
    name: str, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    family: Any = families.get(name)
    workload = replace(USING[field], op=family.operation)
    assert field in workload.unusual
    assert family.suits(FEW)
    assert family.suits(workload) == (field in family.computes)
    monkeypatch.setattr(type(family), "computes", family.computes - {field})
    assert not family.suits(workload), "as it is with a field that is new"
    config = family.default_config(128, DType.BF16, d_head_v=workload.d_head_v)
    with pytest.raises(InvalidConfig, match=rf"{name} kernels do not compute .*\b{field}\b"):
        family.traits(config, workload)
