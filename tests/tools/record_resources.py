"""Write the resource tables of the installed NVRTC anew: `python -m tests.tools.record_resources`.

Run it after a change to the kernels, and look at the diff: it is what the change costs or
saves in registers, spills and occupancy.
"""

from __future__ import annotations

import sys
import time

from fa_tune import nvrtc
from fa_tune.artifacts import ArtifactStore
from fa_tune.compile import build
from tests.tools.required import FULL_ARCHS, SAMPLE_ARCHS, builds_for
from tests.tools.resource_table import table_of, table_path, write_table


def main() -> int:
    """Build everything that has to compile; 1 and no table if something does not."""
    store = ArtifactStore()
    for arch in FULL_ARCHS + SAMPLE_ARCHS:
        start = time.monotonic()
        results = build(builds_for(arch), store)
        for failed in (r for r in results if r.artifact is None):
            print(f"{failed.request.variant.key}: {failed.outcome}: {failed.reason}")
        if not all(r.artifact for r in results):
            return 1
        path = table_path(nvrtc.version(), arch)
        write_table(path, table_of(results))
        print(f"{path}: {len(results)} kernels, {time.monotonic() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
