"""The sm90 kernels use what the committed table says: no spills in the sets, no serialised wgmma,
two seconds of NVRTC each.

A part is compiled in every run, less of it where it has passed with the present sources
(tests/tools/proven.py).  `FA_TUNE_ALL_KERNELS=1 pytest tests/kernels/test_resources_sm90.py`
compiles everything in the table, in a few minutes, and holds compilation to its two seconds: for a
machine that does nothing else.
`python -m tests.tools.record_resources sm_90a` writes the
table anew.
"""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

from fa_tune.build import nvrtc
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.compile import BuildResult, build
from fa_tune.core.model import Outcome
from tests.tools.proven import ALL, due, passed
from tests.tools.required_sm90 import ARCH, builds, quick_builds, required_builds
from tests.tools.resource_table import (
    COLUMNS,
    Table,
    differences,
    read_table,
    recorded_versions,
    row_name,
    table_of,
    table_path,
)

RECORD = f"if that is meant, run: python -m tests.tools.record_resources {ARCH}"
MAX_COMPILE_S = 2.0
MAX_COMPILE_S_BESIDE_OTHERS = 20.0  # where the machine has other work


def table() -> Table | None:
    """That of the installed NVRTC; None, with a warning, if there is none."""
    path = table_path(nvrtc.version(), ARCH)
    if path.exists():
        return read_table(path)
    known = ", ".join(recorded_versions())
    warnings.warn(
        f"no resource table for NVRTC {nvrtc.version()} (there are {known})", stacklevel=1
    )
    return None


def check(results: Sequence[BuildResult], compile_s: float) -> None:
    """What holds whatever the compiler's version, and what the table says."""
    failed = [
        f"{r.request.variant.key} {r.request.traits}: {r.outcome}: {r.reason}"
        for r in results
        if r.outcome is not Outcome.OK
    ]
    assert not failed, "\n".join(failed)
    sets = {row_name(request) for request in (*required_builds(), *quick_builds())}
    for result in results:
        artifact = result.artifact
        assert artifact is not None
        name = row_name(result.request)
        resources = artifact.resources
        assert 0 < resources.registers * resources.threads <= 65536, name
        assert resources.static_smem_bytes == 0, f"{name}: tiles must start at a multiple of 1024"
        assert b"Sm90Config" in Path(artifact.cubin).read_bytes(), "the name shows the config"
        if name in sets:
            assert artifact.diagnostics == (), f"{name}: {artifact.diagnostics}"
            spilled = resources.spill_load_bytes + resources.spill_store_bytes
            assert spilled == 0, name
            assert artifact.compile_s < compile_s, f"{name}: {artifact.compile_s:.1f} s"
    if (expected := table()) is not None:
        found = table_of(results)
        changed = differences({name: expected[name] for name in found if name in expected}, found)
        assert not changed, "\n".join([f"the table says otherwise; {RECORD}", *changed])


@pytest.mark.all_kernels
def test_what_runs_without_tuning_compiles_to_what_the_table_says(artifacts: ArtifactStore) -> None:
    requests, note = quick_builds(), "sm90 without tuning"
    check(build(due(note, requests, requests[::3]), artifacts), MAX_COMPILE_S_BESIDE_OTHERS)
    if table() is not None:
        passed(note, requests)


@pytest.mark.skipif(not os.environ.get(ALL), reason=f"takes minutes; {ALL}=1 runs it")
def test_everything_compiles_to_what_the_table_says_in_two_seconds(tmp_path: Path) -> None:
    check(build(builds(), ArtifactStore(tmp_path)), MAX_COMPILE_S)


@pytest.mark.parametrize("version", recorded_versions())
def test_the_table_has_every_build_and_no_other(version: str) -> None:
    found = read_table(table_path(version, ARCH))
    wanted = {row_name(request) for request in builds()}
    assert set(found) == wanted, f"the sets or the knobs have changed; {RECORD}"


@pytest.mark.parametrize("version", recorded_versions())
def test_no_set_has_a_kernel_that_spills_or_does_not_fit(version: str) -> None:
    found = read_table(table_path(version, ARCH))
    for request in (*required_builds(), *quick_builds()):
        facts = dict(zip(COLUMNS, found[row_name(request)], strict=True))
        spilled = facts["spill_store_bytes"] + facts["spill_load_bytes"]
        assert spilled == 0, request
        assert facts["registers"] * facts["threads"] * facts["ctas_per_sm"] <= 65536, request
        assert facts["ctas_per_sm"] >= 1, request
