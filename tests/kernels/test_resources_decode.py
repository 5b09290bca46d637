"""The decode kernels that run without tuning have registers for what they hold, on architectures
that differ in shared memory.  Where all have them with the present sources, one of each kind of
heads is compiled (tests/tools/proven.py)."""

from __future__ import annotations

import pytest

from fa_tune import families
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.compile import BuildRequest, build
from fa_tune.core.arch import limits
from fa_tune.core.model import Outcome
from fa_tune.core.workload import DType
from fa_tune.families.decode.config import KVType
from fa_tune.families.decode.reading import Tiles
from fa_tune.families.decode.sets import ROWS, Heads, default_config
from fa_tune.operations.traits import Traits
from tests.tools.covering import pairs_of
from tests.tools.proven import due, passed
from tests.tools.required_decode import axes, code_path_builds, code_path_sample

TRAITS = "causal+ragged+lse"  # the most that a kernel does
HOPPER = "sm_90"


@pytest.mark.all_kernels
@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (9, 0)])
def test_defaults_do_not_spill(capability: tuple[int, int], artifacts: ArtifactStore) -> None:
    arch = limits(capability)
    configs = [
        default_config(heads, dtype, rows, Tiles(1, 0, arch))
        for heads, dtype in (
            (Heads(64), DType.FP16),
            (Heads(128), DType.BF16),
            (Heads(192, 128), DType.BF16),
            (Heads(128, kv_type=KVType.E4M3), DType.BF16),
        )
        for rows in ROWS
        if capability >= (8, 9) or heads.kv_type is KVType.SAME
    ]
    requests = [BuildRequest(families.variant(c), TRAITS, arch.arch) for c in configs]
    note = f"decode defaults, {arch.arch}"
    for result in build(due(note, requests, requests[:: len(ROWS)]), artifacts):
        config = families.config_of(result.request.variant)
        assert result.outcome is Outcome.OK, result.reason
        assert result.artifact is not None
        found = result.artifact.resources
        assert found.spill_store_bytes == found.spill_load_bytes == 0, config
        assert found.registers * config.threads * config.ctas_per_sm <= 65536, config
        assert found.ctas_per_sm >= config.ctas_per_sm, config
    passed(note, requests)


# The sample -------------------------------------------------------------------------------------


def test_the_sample_takes_every_value_of_every_knob_and_trait() -> None:
    sample = code_path_sample(HOPPER)
    for name, values in axes().items():
        found = {getattr(t if name in vars(Traits()) else c, name) for c, t in sample}
        assert found == set(values), name
    assert [r.variant.config for r in code_path_builds(HOPPER)] == [str(c) for c, _ in sample]


@pytest.mark.parametrize(
    ("a", "b", "impossible"),
    [
        ("by_rows", "tile_keys", 0),
        ("by_rows", "kv_type", 0),
        ("by_rows", "cluster", 3),  # these have a way of their own
        ("tile_keys", "combine", 0),
        ("tile_keys", "aligned", 0),
        ("dependent", "cluster", 0),
        ("kv_type", "d_head", 0),
        ("causal", "cluster", 0),
    ],
)
def test_the_sample_takes_every_pair_that_can_run(a: str, b: str, impossible: int) -> None:
    space = axes()
    found = {pair for c, t in code_path_sample(HOPPER) for pair in pairs_of(c, t, (a, b))}
    assert len(space[a]) * len(space[b]) - len(found) <= impossible
