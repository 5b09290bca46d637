"""Packed batches: random mixtures of lengths, zero among them, with NaN between the sequences."""

import pytest

from fa_tune.core.arch import parse_arch
from fa_tune.core.workload import DType, Workload
from fa_tune.families.base import KernelFamily
from tests.gpu.cases import named, requests_of, takes
from tests.gpu.conftest import Built, faults_of
from tests.gpu.score_hooks import HOOKS

pytestmark = pytest.mark.gpu
TRAITS = ("ragged+packed", "causal+ragged+lse+packed")
_, PLACES, CAP_BY_FOUR, _ = HOOKS
# Of a few kernels only.
MASKED = (
    "ragged+lse+window+packed",
    "causal+ragged+lse+window+sink+packed",
    "causal+ragged+lse+window+softcap+alibi+packed",
    "ragged+lse+sink+alibi+packed",
    f"causal+ragged+lse+window+packed+hook_{PLACES}",
    f"ragged+lse+sink+alibi+packed+hook_{PLACES}",
    f"causal+ragged+lse+sink+packed+hook_{CAP_BY_FOUR}",
)


def test_random_mixtures_are_right(family: KernelFamily, arch: str, built: Built) -> None:
    limits = parse_arch(arch)
    listed = Workload(3, 1, 1, 9, 9, 64, DType.FP16, lengths="9+0+4")
    if not takes(family, family.default_config(64, DType.FP16), listed):
        pytest.skip(f"{family.name} kernels take no packed batches")
    configs = [family.default_config(d, dtype) for d in (64, 128, 256) for dtype in DType]
    if limits.compute_capability == (9, 0):  # other schedulers, turns and products
        for d_head in (64, 128):
            configs += family.configs("fast", dtypes=[DType.FP16], d_head=d_head)
    requests = requests_of(configs, TRAITS, limits)
    few = [family.default_config(d, dtype) for d, dtype in ((64, DType.BF16), (128, DType.FP16))]
    if limits.compute_capability == (9, 0):
        few += family.configs("fast", dtypes=[DType.BF16], d_head=128)[:3]
    requests += requests_of(few, MASKED, limits)
    assert not faults_of("packed_child:handle", named(built(requests)), 60)
