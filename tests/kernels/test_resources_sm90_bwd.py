"""The sm90_bwd kernels have registers for what they hold, but for a few words, and no serialised
wgmma.  Where all have with the present sources, some defaults alone are compiled
(tests/tools/proven.py)."""

import pytest

from fa_tune import families
from fa_tune.build.cache import ArtifactStore
from tests.gpu.cases import compiled
from tests.tools.proven import due, passed
from tests.tools.required_sm90_bwd import builds, quick_builds

# Of a thread; of persistent CTAs and clusters in one pass, and of those that keep lengths as well.
MOST_SPILLED_BYTES, PERSISTENT_SPILLED_BYTES, PACKED_SPILLED_BYTES = 32, 64, 160


@pytest.mark.all_kernels
def test_the_fast_set_compiles_without_serialised_products(artifacts: ArtifactStore) -> None:
    """C75xx is what ptxas calls wgmma that it had to serialise."""
    requests, note = builds(), "sm90_bwd fast"
    for artifact in compiled(due(note, requests, quick_builds()), artifacts):
        assert not artifact.diagnostics, artifact
        found = artifact.resources
        spilled = max(found.spill_store_bytes, found.spill_load_bytes)
        config = families.config_of(artifact.variant)
        persistent = (config.dynamic or config.cluster > 1) and not config.two_pass
        most = PERSISTENT_SPILLED_BYTES if persistent else MOST_SPILLED_BYTES
        if persistent and "packed" in artifact.traits:
            most = PACKED_SPILLED_BYTES
        assert spilled <= most, artifact
        assert found.ctas_per_sm > 0, artifact
    passed(note, requests)
