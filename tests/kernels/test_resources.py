"""Everything that has to compile does, and uses what the committed table says.

Where all of it has passed with the present sources, a few are compiled again:
tests/tools/proven.py.

An NVRTC without a table is no failure (the checks that need none still run) but a warning:
`python -m tests.tools.record_resources` adds one.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

from fa_tune.build import nvrtc
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.compile import BuildRequest, BuildResult, build
from fa_tune.core.arch import parse_arch
from fa_tune.core.model import Outcome
from tests.tools.proven import due, passed
from tests.tools.required import FULL_ARCHS, SAMPLE_ARCHS, TURNS_ARCH, builds_for, code_path_builds
from tests.tools.resource_table import (
    differences,
    read_table,
    recorded_versions,
    row_name,
    table_of,
    table_path,
    write_table,
)

RECORD = "if that is meant, run: python -m tests.tools.record_resources"


def few_builds(arch: str) -> list[BuildRequest]:
    """Of the sample, every fourth where most of it can run, and every eighth elsewhere."""
    return code_path_builds(arch)[:: 4 if arch == TURNS_ARCH else 8]


@pytest.mark.all_kernels
@pytest.mark.parametrize("arch", FULL_ARCHS + SAMPLE_ARCHS)
def test_everything_required_compiles_to_what_the_table_says(
    arch: str, artifacts: ArtifactStore
) -> None:
    everything = builds_for(arch)
    results = build(due(arch, everything, few_builds(arch)), artifacts)
    _check_sanity(results)
    path = table_path(nvrtc.version(), arch)
    if path.exists():
        found = table_of(results)
        expected = read_table(path)
        assert set(expected) == {row_name(request) for request in everything}, RECORD
        changed = differences({name: expected[name] for name in found}, found)
        assert not changed, "\n".join([f"{path} says otherwise; {RECORD}", *changed])
        passed(arch, everything)
    else:
        known = ", ".join(recorded_versions())
        warnings.warn(
            f"no resource table for NVRTC {nvrtc.version()} and {arch} (there are {known}); "
            "compiled and checked for sanity only",
            stacklevel=1,
        )


def _check_sanity(results: Sequence[BuildResult]) -> None:
    """What must hold whatever the compiler's version."""
    failed = [
        f"{r.request.variant.key} {r.request.traits}: {r.outcome}: {r.reason}"
        for r in results
        if r.outcome is not Outcome.OK
    ]
    assert not failed, "\n".join(failed)
    for result in results:
        artifact = result.artifact
        name = f"{artifact.variant.key} {artifact.traits} {artifact.arch}"
        assert not artifact.diagnostics, f"{name}: {artifact.diagnostics}"
        resources = artifact.resources
        assert 0 < resources.registers <= 255, name
        assert resources.registers * resources.threads <= 65536, name
        assert resources.ctas_per_sm >= 1, name
        limit_bytes = parse_arch(artifact.arch).smem_per_block_bytes
        assert resources.static_smem_bytes + resources.dynamic_smem_bytes <= limit_bytes, name
        if resources.spill_store_bytes or resources.spill_load_bytes:
            assert resources.stack_bytes > 0, name
        cubin = Path(artifact.cubin).read_bytes()
        assert artifact.symbol.encode() in cubin, name
        assert "FlashForwardKernelConfig" in artifact.symbol, "the name shows the config"


def test_there_is_a_table_for_every_architecture_of_a_recorded_version() -> None:
    assert recorded_versions()
    for version in recorded_versions():
        for arch in FULL_ARCHS + SAMPLE_ARCHS:
            table = read_table(table_path(version, arch))
            assert len(table) == len(builds_for(arch)), (version, arch)


def test_tables_survive_their_file_and_name_what_changed(tmp_path: Path) -> None:
    table = {"a | plain": (1, 0, 0, 0, 0, 6, 7, 8), "b | plain": (2,) * 8, "c | lse": (3,) * 8}
    path = tmp_path / "13.0.88" / "sm_90.json"
    write_table(path, table)
    assert read_table(path) == table
    assert differences(table, table) == []
    found = {"a | plain": (9, 4, 0, 0, 0, 6, 7, 8), "b | plain": (2,) * 8, "d | lse": (3,) * 8}
    assert differences(table, found) == [
        "a | plain: registers 1 -> 9, spill_store_bytes 0 -> 4",
        "c | lse: in the table only",
        "d | lse: not in the table",
    ]
