"""Tensors of more than 2³¹ elements; needs 48 GB of GPU memory."""

from typing import Any

import pytest

from fa_tune import families
from fa_tune.core import devices
from fa_tune.core.arch import parse_arch
from fa_tune.core.workload import DType, Workload
from fa_tune.families.base import KernelFamily
from tests.gpu.cases import item_of, request
from tests.gpu.conftest import Built, faults_of

NEEDED_BYTES = 48 << 30
# Whole blocks and odd lengths, which copy in different ways.
STRIDES = {
    dimension: [Workload(*shape, n, n, 128, DType.FP16) for n in (256, 259)]
    for dimension, shape in {"batch": (2, 2, 1), "seq": (1, 2, 1), "head": (1, 4, 4)}.items()
}
LONG_LSE = Workload(2048, 1024, 1024, 1025, 1, 64, DType.FP16, lse=True)


@pytest.mark.gpu
def test_offsets_beyond_32_bits(family: KernelFamily, built: Built, arch: str) -> None:
    found = devices.find_device()
    assert found is not None
    if found.memory_bytes is not None and found.memory_bytes < NEEDED_BYTES:
        pytest.skip(f"needs {NEEDED_BYTES >> 30} GB of GPU memory")
    wanted = [("lse", LONG_LSE), *((d, w) for d, ws in STRIDES.items() for w in ws)]
    requests = [
        request(families.variant(family.default_config(w.d_head, w.dtype)), w, parse_arch(arch))
        for _, w in wanted
    ]
    items: dict[str, dict[str, Any]] = {
        f"{dimension} {w.key}": item_of(a) | {"workload": w.key, "dimension": dimension}
        for (dimension, w), a in zip(wanted, built(requests), strict=True)
    }
    assert not faults_of("judging_children:offsets", items, 120)


@pytest.mark.parametrize("dimension", list(STRIDES))
def test_a_spread_view_reaches_beyond_and_overlaps_nowhere(dimension: str) -> None:
    pytest.importorskip("torch", reason="torch is not installed: there are no views")
    from tests.gpu.offsets import BEYOND, spread

    view = spread((3, 5, 4, 32), dimension, device="meta")
    strides = dict(zip(("batch", "seq", "head"), view.stride(), strict=False))
    extent = {"batch": 3, "seq": 5, "head": 4}
    assert strides[dimension] * (extent[dimension] - 1) > BEYOND
    assert all(s % 8 == 0 for s in strides.values())
    ordered = sorted(zip(view.stride(), view.shape, strict=True))
    reach = 0
    for stride, size in ordered:
        assert stride > reach, "each stride steps over all that lies below it"
        reach += stride * (size - 1)
