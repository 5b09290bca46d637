"""A variant of two kernels is one variant: compiled together, stored together, one artifact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fa_tune import families
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.compile import BuildRequest, build
from fa_tune.core.arch import limits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Resources, Variant
from fa_tune.core.workload import DType, benchmark_workload
from tests.families.split import COMBINE_THREADS, SplitFamily, register

WORKLOAD = benchmark_workload(1024, 128, DType.FP16)


@pytest.fixture(autouse=True)
def split(monkeypatch: pytest.MonkeyPatch) -> SplitFamily:
    return register(monkeypatch)


def _request(split: SplitFamily, config: str = "") -> BuildRequest:
    return BuildRequest(Variant("split", config or split.example), "plain", "sm_90a")


def test_both_kernels_are_in_one_cubin_and_both_are_known(
    split: SplitFamily, tmp_path: Path
) -> None:
    store = ArtifactStore(tmp_path)
    (result,) = build([_request(split)], store)
    artifact = result.artifact
    assert artifact is not None, result.log
    first, second = artifact.symbols
    assert "WaveConfig" in first
    assert "combine" in second
    code = Path(artifact.cubin).read_bytes()
    assert first.encode() in code
    assert second.encode() in code
    (again,) = build([_request(split)], store)
    assert again.cached
    assert again.artifact == artifact
    entries, _ = store.size()
    assert entries == 1


def test_what_it_uses_is_the_most_that_a_launch_uses(split: SplitFamily, tmp_path: Path) -> None:
    (result,) = build([_request(split)], ArtifactStore(tmp_path))
    assert result.artifact is not None
    resources, config = result.artifact.resources, split.parse(split.example)
    assert resources.threads == split.threads(config) > COMBINE_THREADS
    assert resources.dynamic_smem_bytes == split.dynamic_smem_bytes(config)
    assert resources.static_smem_bytes == 4 * 512, "of the second kernel"
    assert resources.ctas_per_sm == 2, "of the first, whose shared memory fits twice"


def test_the_largest_resources() -> None:
    few = Resources(100, 8, 0, 0, 0, 1024, 128, 4)
    many = Resources(40, 0, 16, 0, 512, 0, 256, 8)
    assert Resources.largest([few]) == few
    assert Resources.largest([few, many]) == Resources(100, 8, 16, 0, 512, 1024, 256, 4)


def test_families_are_chosen_by_operation(
    split: SplitFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    h200 = limits((9, 0))
    assert "split" in [f.name for f in families.runnable(h200)]
    monkeypatch.setattr(split, "operation", "decode")
    assert "split" not in [f.name for f in families.runnable(h200)]
    assert [f.name for f in families.runnable(h200, "decode")] == ["split"]
    (config,) = families.defaults(128, DType.FP16, h200, "decode")
    assert families.of(config) is split


def test_kernels_of_one_operation_do_not_compute_another() -> None:
    for name in ("sm80", "sm90"):
        family = families.get(name)
        config = family.default_config(128, DType.FP16)
        with pytest.raises(InvalidConfig, match="kernels of forward do not compute backward_b16"):
            family.traits(config, replace(WORKLOAD, op="backward"))
