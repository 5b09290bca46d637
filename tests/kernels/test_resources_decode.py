"""The decode kernels that run without tuning have registers for what they hold, on architectures
that differ in shared memory.  Where all have them with the present sources, one of some kinds of
heads is compiled (tests/tools/proven.py)."""

import pytest

from fa_tune import families
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.compile import BuildRequest
from fa_tune.core.arch import limits
from fa_tune.core.workload import DType
from fa_tune.families.decode.bounds import bounds_of
from fa_tune.families.decode.config import KVType
from fa_tune.families.decode.defaults import default_config
from fa_tune.families.decode.reading import Tiles
from fa_tune.families.decode.tiles import ROWS, Heads, double_tile
from tests.gpu.cases import compiled
from tests.tools.proven import due, passed

TRAITS = "causal+ragged+lse"  # the most that a kernel does


@pytest.mark.all_kernels
@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (9, 0)])
def test_defaults_do_not_spill(capability: tuple[int, int], artifacts: ArtifactStore) -> None:
    arch = limits(capability)
    configs = [
        default_config(heads, dtype, rows, Tiles(1, 0, arch, bounds_of(capability)))
        for heads, dtype in (
            (Heads(64), DType.FP16),
            (Heads(128), DType.BF16),
            (Heads(192, 128), DType.BF16),
            (Heads(128, kv_type=KVType.E4M3), DType.BF16),
        )
        for rows in ROWS
        if capability >= (8, 9) or heads.kv_type is KVType.SAME
    ]
    if capability >= (9, 0):
        configs += [double_tile(dtype) for dtype in DType]
    requests = [BuildRequest(families.variant(c), TRAITS, arch.arch) for c in configs]
    note = f"decode defaults, {arch.arch}"
    for artifact in compiled(due(note, requests, requests[:: 2 * len(ROWS)]), artifacts):
        config = families.config_of(artifact.variant)
        found = artifact.resources
        assert found.spill_store_bytes == found.spill_load_bytes == 0, config
        assert found.registers * config.threads * config.ctas_per_sm <= 65536, config
        assert found.ctas_per_sm >= config.ctas_per_sm, config
    passed(note, requests)
