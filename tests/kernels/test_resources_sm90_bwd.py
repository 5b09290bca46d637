"""The sm90_bwd kernels have registers for what they hold, but for a few words, and no serialised
wgmma.  Where all have with the present sources, the defaults alone are compiled
(tests/tools/proven.py)."""

import pytest

from fa_tune import families
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.compile import build
from fa_tune.core.model import Outcome
from tests.tools.proven import due, passed
from tests.tools.required_sm90_bwd import builds, quick_builds

# Of a thread; of persistent CTAs and clusters in one pass, and of those that keep lengths as well.
MOST_SPILLED_BYTES, PERSISTENT_SPILLED_BYTES, PACKED_SPILLED_BYTES = 32, 64, 160


@pytest.mark.all_kernels
def test_the_fast_set_compiles_without_serialised_products(artifacts: ArtifactStore) -> None:
    """C75xx is what ptxas calls wgmma that it had to serialise."""
    requests, note = builds(), "sm90_bwd fast"
    for result in build(due(note, requests, quick_builds()), artifacts):
        assert result.outcome is Outcome.OK, result.reason
        assert result.artifact is not None
        assert not result.artifact.diagnostics, result.request
        found = result.artifact.resources
        spilled = max(found.spill_store_bytes, found.spill_load_bytes)
        config = families.config_of(result.request.variant)
        persistent = (config.dynamic or config.cluster > 1) and not config.two_pass
        most = PERSISTENT_SPILLED_BYTES if persistent else MOST_SPILLED_BYTES
        if persistent and "packed" in result.request.traits:
            most = PACKED_SPILLED_BYTES
        assert spilled <= most, result.request
        assert found.ctas_per_sm > 0, result.request
    passed(note, requests)
