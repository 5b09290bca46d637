"""Write the resource tables of the installed NVRTC anew: `python -m tests.tools.record_resources`,
of all architectures or of those named behind it (`sm_90a` is the sm90 family's).

Run it after a change to the kernels, and look at the diff: it is what the change costs or
saves in registers, spills and occupancy.  Then every test of many kernels runs on all of them,
and tests/data/proven.json notes which passed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from fa_tune.build import nvrtc
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.compile import BuildRequest, BuildResult, build
from tests.project_files import ROOT
from tests.tools import required, required_sm90
from tests.tools.proven import ALL, RECORD
from tests.tools.resource_table import table_of, table_path, write_table

ARCHS = (*required.FULL_ARCHS, *required.SAMPLE_ARCHS, required_sm90.ARCH)


def main(archs: Sequence[str]) -> int:
    """Build everything that has to compile; 1 and no table if something does not."""
    store = ArtifactStore()
    for arch in archs or ARCHS:
        start = time.monotonic()
        results = build(_builds(arch), store)
        for failed in (r for r in results if r.artifact is None):
            print(f"{failed.request.variant.key}: {failed.outcome}: {failed.reason}")
        if not all(r.artifact for r in results):
            return 1
        path = table_path(nvrtc.version(), arch)
        write_table(path, table_of(results))
        print(f"{path}: {len(results)} kernels, {time.monotonic() - start:.1f} s")
        for line in _worth_knowing(results):
            print(f"    {line}")
    return _prove(store)


def _prove(store: ArtifactStore) -> int:
    """Run every test of many kernels on all of them, and note what passed; pytest's status."""
    more = {ALL: "1", RECORD: "1", "FA_TUNE_TEST_CACHE": str(store.path.parent)}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "all_kernels", "tests"]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **more}, check=False).returncode


def _builds(arch: str) -> list[BuildRequest]:
    return required_sm90.builds() if arch == required_sm90.ARCH else required.builds_for(arch)


def _worth_knowing(results: Sequence[BuildResult]) -> list[str]:
    """The slowest compilation, and what ptxas had to say."""
    artifacts = [r.artifact for r in results if r.artifact is not None]
    slowest = max(artifacts, key=lambda a: a.compile_s)
    lines = [f"slowest: {slowest.compile_s:.2f} s, {slowest.variant.config} {slowest.traits}"]
    for a in artifacts:
        spilled = a.resources.spill_store_bytes + a.resources.spill_load_bytes
        if spilled or a.diagnostics:
            lines.append(f"{a.variant.config} {a.traits}: spills {spilled}, {a.diagnostics}")
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
