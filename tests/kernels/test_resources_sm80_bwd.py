"""The sm80_bwd defaults have registers for what they hold, but for a few words, on every device.
Where all have with the present sources, a few alone are compiled (tests/tools/proven.py)."""

import pytest

from fa_tune.build.cache import ArtifactStore
from fa_tune.build.compile import build
from fa_tune.core.model import Outcome
from tests.tools.proven import due, passed
from tests.tools.required_sm80_bwd import builds, quick_builds

MOST_SPILLED_BYTES = 80  # of a thread


@pytest.mark.all_kernels
def test_the_defaults_compile_with_few_spills(artifacts: ArtifactStore) -> None:
    requests, note = builds(), "sm80_bwd defaults"
    for result in build(due(note, requests, quick_builds()), artifacts):
        assert result.outcome is Outcome.OK, result.reason
        found = result.artifact.resources
        spilled = max(found.spill_store_bytes, found.spill_load_bytes)
        assert spilled <= MOST_SPILLED_BYTES, result.request
        assert found.stack_bytes <= 2 * MOST_SPILLED_BYTES, result.request  # arrays in memory
    passed(note, requests)
