"""The sm80_bwd defaults have registers for what they hold, but for a few words, on every device.
Where all have with the present sources, a few alone are compiled (tests/tools/proven.py)."""

import pytest

from fa_tune.build.cache import ArtifactStore
from tests.gpu.cases import compiled
from tests.tools.proven import due, passed
from tests.tools.required_sm80_bwd import builds, quick_builds

MOST_SPILLED_BYTES = 80  # of a thread


@pytest.mark.all_kernels
def test_the_defaults_compile_with_few_spills(artifacts: ArtifactStore) -> None:
    requests, note = builds(), "sm80_bwd defaults"
    for artifact in compiled(due(note, requests, quick_builds()), artifacts):
        found = artifact.resources
        spilled = max(found.spill_store_bytes, found.spill_load_bytes)
        assert spilled <= MOST_SPILLED_BYTES, artifact
        assert found.stack_bytes <= 2 * MOST_SPILLED_BYTES, artifact  # arrays in memory
    passed(note, requests)
