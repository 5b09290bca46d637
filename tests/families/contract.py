"""What every kernel family has to keep; a family's test class inherits `KernelFamilyContract`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fa_tune import families
from fa_tune.arch import limits
from fa_tune.artifacts import ArtifactStore
from fa_tune.compile import BuildRequest, build
from fa_tune.errors import InvalidConfig
from fa_tune.families.base import KernelFamily, LaunchArgs, TensorArg
from fa_tune.model import DType, Outcome, Workload

WORKLOADS = [
    Workload(2, 6, 3, 512, 512, 128, DType.FP16),
    Workload(1, 5, 5, 113, 203, 64, DType.BF16),
    Workload(3, 4, 1, 1, 1, 128, DType.BF16, causal=True),
    Workload(1, 2, 2, 70, 30, 128, DType.FP16, causal=True, bottom_right=True, softmax_scale=2.0),
]
ARGS = LaunchArgs(*(TensorArg(256 * i, (56, 40, 24)) for i in range(1, 5)))


class KernelFamilyContract:
    """Set `name`, `compute_capability` (of a device it runs on) and `bad_configs`, configs
    that no device can run."""

    name: str
    compute_capability: tuple[int, int]
    bad_configs: tuple[Any, ...] = ()

    @pytest.fixture
    def family(self) -> KernelFamily:
        return families.get(self.name)

    def test_is_found_by_its_name(self, family: KernelFamily) -> None:
        assert family.name == self.name
        assert self.name in families.family_names()

    @pytest.mark.parametrize("dtype", list(DType))
    @pytest.mark.parametrize("d_head", [64, 96, 128, 192, 256])
    def test_default_config_runs_and_reads_back(
        self, family: KernelFamily, dtype: DType, d_head: int
    ) -> None:
        config = family.default_config(d_head, dtype)
        assert family.constraints(config, limits(self.compute_capability)) is None
        assert family.parse(family.short_form(config)) == config
        variant = families.variant_of(family, config)
        assert families.get(variant.family).parse(variant.config) == config

    def test_refuses_what_cannot_run_with_name_and_reason(self, family: KernelFamily) -> None:
        assert self.bad_configs
        for config in self.bad_configs:
            rejected = family.constraints(config, limits(self.compute_capability))
            assert rejected is not None, config
            assert rejected.constraint.isidentifier()
            assert " " in rejected.reason
            assert "\n" not in rejected.reason

    def test_refuses_garbage(self, family: KernelFamily) -> None:
        with pytest.raises(InvalidConfig):
            family.parse("no config at all")

    @pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.key)
    def test_geometry_covers_every_query(self, family: KernelFamily, workload: Workload) -> None:
        config = family.default_config(workload.d_head, workload.dtype)
        geometry = family.geometry(config, workload)
        rows, _ = family.blocks(config)
        ctas = geometry.grid[0] * geometry.grid[1] * geometry.grid[2]
        assert ctas * rows >= workload.batch * workload.heads * workload.seq_len_q
        assert geometry.block == (family.threads(config), 1, 1)
        assert family.threads(config) <= 1024
        assert geometry.dynamic_smem_bytes == family.dynamic_smem_bytes(config)

    @pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.key)
    def test_arguments_are_single_elements(self, family: KernelFamily, workload: Workload) -> None:
        config = family.default_config(workload.d_head, workload.dtype)
        for argument in family.kernel_args(config, workload, ARGS):
            assert argument.size == 1  # what CuPy passes by value
        given = dataclasses.replace(ARGS, softmax_scale=0.5)
        assert family.kernel_args(config, workload, given) != family.kernel_args(
            config, workload, ARGS
        )

    def test_arguments_say_what_the_workload_says(self, family: KernelFamily) -> None:
        """Alignment and scale, unless the launch says otherwise."""
        base = Workload(1, 2, 2, 70, 30, 128, DType.FP16, causal=True)
        config = family.default_config(128, DType.FP16)

        def arguments(workload: Workload, args: LaunchArgs = ARGS) -> list[bytes]:
            return [a.tobytes() for a in family.kernel_args(config, workload, args)]

        aligned = dataclasses.replace(base, bottom_right=True)
        scaled = dataclasses.replace(base, softmax_scale=0.5)
        assert arguments(aligned) != arguments(base) != arguments(scaled)
        assert arguments(base, dataclasses.replace(ARGS, diagonal=-40)) == arguments(aligned)
        assert arguments(aligned, dataclasses.replace(ARGS, diagonal=0)) == arguments(base)
        assert arguments(base, dataclasses.replace(ARGS, softmax_scale=0.5)) == arguments(scaled)

    def test_traits_say_whether_the_log_sum_exp_is_wanted(self, family: KernelFamily) -> None:
        base = WORKLOADS[0]
        config = family.default_config(base.d_head, base.dtype)
        with_lse = family.traits(config, dataclasses.replace(base, lse=True))
        assert with_lse == family.traits(config, base, lse=True)
        assert with_lse != family.traits(config, base)

    @pytest.mark.parametrize("name", ["batch", "heads"])
    def test_more_than_a_grid_holds_is_refused(self, family: KernelFamily, name: str) -> None:
        config = family.default_config(128, DType.FP16)
        workload = Workload(1, 1, 1, 1, 1, 128, DType.FP16)
        most = dataclasses.replace(workload, **{name: 65535})
        assert family.geometry(config, most).grid
        with pytest.raises(InvalidConfig, match=f"{name} must be at most 65535, not 65536"):
            family.geometry(config, dataclasses.replace(workload, **{name: 65536}))

    @pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.key)
    def test_compiles_for_the_workloads_traits(
        self, family: KernelFamily, workload: Workload, tmp_path: Path
    ) -> None:
        config = family.default_config(workload.d_head, workload.dtype)
        traits = family.traits(config, workload, lse=True)
        arch = limits(self.compute_capability).arch
        request = BuildRequest(families.variant_of(family, config), traits, arch)
        (result,) = build([request], ArtifactStore(tmp_path))
        assert result.outcome is Outcome.OK, result.reason
        assert result.artifact is not None
        assert result.artifact.resources.ctas_per_sm >= 1
