"""A variant of two kernels is one variant: compiled together, stored together, one artifact."""

from dataclasses import replace
from pathlib import Path

import pytest

from fa_tune import families
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.compile import BuildRequest, build
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Resources
from fa_tune.core.workload import DType, benchmark_workload

CONFIG = families.parse("decode(BF16, 128, 16, 64, 4): stages_2+combine_kernel")
REQUEST = BuildRequest(families.variant(CONFIG), "plain", "sm_90")


def test_both_kernels_are_in_one_cubin_and_both_are_known(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    (result,) = build([REQUEST], store)
    artifact = result.artifact
    assert artifact is not None, result.log
    first, second = artifact.symbols
    assert first != second
    code = Path(artifact.cubin).read_bytes()
    assert first.encode() in code
    assert second.encode() in code
    (again,) = build([REQUEST], store)
    assert again.cached
    assert again.artifact == artifact
    entries, _ = store.size()
    assert entries == 1
    assert artifact.resources.dynamic_smem_bytes == CONFIG.smem_bytes, "of the first"


def test_the_largest_resources() -> None:
    few = Resources(100, 8, 0, 0, 0, 1024, 128, 4)
    many = Resources(40, 0, 16, 0, 512, 0, 256, 8)
    assert Resources.largest([few]) == few
    assert Resources.largest([few, many]) == Resources(100, 8, 16, 0, 512, 1024, 256, 4)


@pytest.mark.parametrize("name", ["sm80", "sm90"])
def test_kernels_of_one_operation_do_not_compute_another(name: str) -> None:
    family = families.get(name)
    config = family.default_config(128, DType.FP16)
    workload = replace(benchmark_workload(1024, 128, DType.FP16), op="backward")
    with pytest.raises(InvalidConfig, match="kernels of forward do not compute backward_b16"):
        family.traits(config, workload)
