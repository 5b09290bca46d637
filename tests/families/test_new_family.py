"""A family for another architecture takes files of its own and its place among the families: it is
compiled, planned, described by the core and exported with no other file changed."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from fa_tune import families
from fa_tune.build.native.core import Core
from fa_tune.build.native.library import host_compiler
from fa_tune.build.native.sources import core_sources
from fa_tune.core import paths
from fa_tune.core.arch import ArchLimits, limits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Rejected
from fa_tune.core.options import MachineOptions, Silent
from fa_tune.core.workload import FORWARD, DType, Workload
from fa_tune.export.config_headers import write_generated_files
from fa_tune.export.project import export
from fa_tune.export.selection import ExportOptions
from fa_tune.families.axes import expand
from fa_tune.families.constraints import smem_does_not_fit, too_old
from fa_tune.families.fields import ConfigBase, d_head_v_field, number_field, tuple_field
from fa_tune.families.plan import CallPlan, Grid, LaunchPlan
from fa_tune.families.template import TemplateFamily
from fa_tune.store.registry.schema import Registry, to_json
from tests import described
from tests.exercises.overlay import quick_compiler
from tests.families.contract import KernelFamilyContract
from tests.project_files import ROOT, project_files

pytestmark = pytest.mark.xdist_group("new family")  # one core serves all
B200 = limits((10, 0))
ADDED = {
    "kernels/sm100/params.cuh": """\
#pragma once

namespace fa_tune::sm100 {

struct TensorStrides {
    long long batch, seq, head;
};

struct ForwardParams {
    const unsigned short *q, *k, *v;
    unsigned short* o;
    float* lse;
    unsigned* counters;
    TensorStrides q_strides, k_strides, v_strides, o_strides;
    int heads, seq_len_q, seq_len_kv;
};

}  // namespace fa_tune::sm100
""",
    "kernels/sm100/entry.cu": """\
#include "common/problem.cuh"
#include "sm100/config.cuh"
#include "sm100/params.cuh"

using namespace fa_tune;

template <Sm100Config CFG, WorkloadTraits TRAITS>
__global__ void sm100_forward_kernel(const sm100::ForwardParams params) {
    const int row = blockIdx.x * CFG.B_r + threadIdx.x;
    if (row >= params.seq_len_q) return;
    const long long at = row * params.o_strides.seq + blockIdx.y * params.o_strides.head;
    for (int i = 0; i < CFG.d_v(); ++i) params.o[at + i] = 0;
    if constexpr (TRAITS.lse) params.lse[blockIdx.y * params.seq_len_q + row] = 0.0f;
}
""",
    "csrc/core/params/sm100_forward.cpp": """\
#include "params/forward.h"
#include "sm100/params.cuh"

namespace fa_tune::core {

static void fill(const Launching& launching, sm100::ForwardParams& params) {
    set_operands<sm100::TensorStrides>(launching, params);
    params.lse = launching.address<float>(FA_TUNE_TENSOR_LSE);
    params.heads = static_cast<int>(launching.call.problem.heads);
    params.seq_len_q = static_cast<int>(rows_of(launching.call.problem));
    params.seq_len_kv = static_cast<int>(keys_of(launching.call.problem));
}

}  // namespace fa_tune::core

FA_TUNE_PARAMS_LAYOUT(sm100_forward, fa_tune::sm100::ForwardParams, false, fa_tune::core::fill);
""",
}
GENERATED = "kernels/sm100/config.cuh"


@dataclass(frozen=True, order=True)
class Sm100Config(ConfigBase):
    HEAD = "sm100({c.dtype.name}, {c.d_head}, {c.B_r}, {c.B_c})"

    dtype: DType = tuple_field("element type of Q, K, V and O")
    d_head: int = tuple_field("head dimension")
    B_r: int = tuple_field("query rows per CTA")
    B_c: int = tuple_field("key/value rows per block")
    stages: int = number_field("stages", 1, "blocks of K and V in shared memory")
    d_head_v: int = d_head_v_field()

    def kernel_name(self) -> str:
        return "sm100_forward_kernel"

    @property
    def threads(self) -> int:
        return self.B_r

    @property
    def smem_bytes(self) -> int:
        return self.stages * self.B_c * (self.d_head + self.d_v) * self.dtype.size_bytes


class Sm100Family(TemplateFamily[Sm100Config]):
    operation = FORWARD
    name = "sm100"
    entry = "sm100/entry.cu"
    config_class = Sm100Config
    example = "sm100(FP16, 128, 128, 64): stages_2"
    set_keys = "tune"

    def constraints(self, config: Sm100Config, limits: ArchLimits) -> Rejected | None:
        if limits.compute_capability >= (12, 0):
            return Rejected("compute_capability", "needs tensor memory, the device has none")
        if config.B_r % 32 or not 0 < config.B_r <= 1024:
            return Rejected("rows_are_warps", "B_r must be whole warps of a CTA")
        return too_old(limits, (10, 0)) or smem_does_not_fit(config.smem_bytes, limits)

    def default_config(self, d_head: int, dtype: DType, *, d_head_v: int = 0) -> Sm100Config:
        return Sm100Config(dtype, d_head, 128, 64, 2, d_head_v)

    def configs(
        self,
        key: str,
        *,
        dtypes: Sequence[DType] | None = None,
        d_head: int = 128,
        d_head_v: int = 0,
    ) -> list[Sm100Config]:
        if key != "tune":
            raise InvalidConfig(f"unknown kernel set {key!r}; allowed: {self.set_keys}")
        kind = {"dtype": dtypes or tuple(DType), "d_head": (d_head,), "d_head_v": (d_head_v,)}
        return list(expand(Sm100Config, kind | {"B_r": (64, 128), "B_c": (64,), "stages": (2,)}))

    def plan(self, config: Sm100Config, traits: str, arch: str) -> CallPlan:
        launch = LaunchPlan(
            params="sm100_forward",
            grid=Grid.BLOCKS_HEADS_BATCH,
            tile_rows=config.B_r,
            ctas_per_sm=1,
            threads=config.threads,
            dynamic_smem_bytes=config.smem_bytes,
        )
        return CallPlan.of(FORWARD, config, traits, arch, (launch,))

    def extra_verification(self, config: Sm100Config, traits: str) -> Sequence[Workload]:
        return ()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The device and host sources with the family's own beside them."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("kernels", "csrc"):
        shutil.copytree(ROOT / name, folder / name)
    for name, text in ADDED.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(families._FAMILIES, "sm100", Sm100Family())
        write_generated_files(folder)
    return folder


@pytest.fixture(scope="module")
def core(checkout: Path) -> Core:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "kernels_dir", lambda: checkout / "kernels")
        patch.setattr(paths, "csrc_dir", lambda: checkout / "csrc")
        patch.setenv("CXX", quick_compiler(checkout, host_compiler()))
        return Core()


@pytest.fixture(autouse=True)
def sm100(checkout: Path, core: Core, monkeypatch: pytest.MonkeyPatch) -> Sm100Family:
    """One line of `families/__init__.py`."""
    found = Sm100Family()
    monkeypatch.setitem(families._FAMILIES, "sm100", found)
    monkeypatch.setattr(paths, "kernels_dir", lambda: checkout / "kernels")
    monkeypatch.setattr(paths, "csrc_dir", lambda: checkout / "csrc")
    monkeypatch.setattr(described, "core", lambda: core)
    return found


class TestSm100Contract(KernelFamilyContract):
    name = "sm100"
    compute_capability = (10, 0)
    refusing = ((8, 0), (9, 0), (12, 0))
    bad_configs = (
        Sm100Config(DType.FP16, 128, 100, 64, 2),
        Sm100Config(DType.FP16, 128, 128, 64, 9),
    )


def test_nothing_else_changed(checkout: Path) -> None:
    own = {p for p in project_files() if p.startswith(("kernels/", "csrc/"))}
    there = {
        p.relative_to(checkout).as_posix()
        for folder in ("kernels", "csrc")
        for p in (checkout / folder).rglob("*")
        if p.is_file()
    }
    assert there - own == {*ADDED, GENERATED}
    for name in own:
        assert (checkout / name).read_bytes() == (ROOT / name).read_bytes(), name


def test_it_is_the_default_of_its_devices() -> None:
    first, *_ = families.defaults(128, DType.FP16, B200)
    assert families.of(first).name == "sm100"


def test_it_is_exported(
    sm100: Sm100Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(families, "_FAMILIES", {"sm100": sm100})
    registry = tmp_path / "registry.json"
    registry.write_text(to_json(Registry.of(())))
    options = ExportOptions(registry, archs=("sm_100",), d_heads=(64,), dtypes=(DType.FP16,))
    made = export(tmp_path / "library", options, MachineOptions(cache_dir=tmp_path), Silent())
    assert {kernel.variant.family for kernel in made.kernels} == {"sm100"}
    names = {p.name: p.read_text() for p in made.folder.rglob("*.*h*") if p.is_file()}
    key = families.variant(sm100.default_config(64, DType.FP16)).key
    assert key in names["exported_table.h"]
    assert '"sm100_forward"' in names["exported_table.h"]
    assert "struct Sm100Config {" in names["sm100_config.h"]
    assert "sm100_kernels" in names["flash_kernels.cuh"]
    assert {"params/sm100_forward.cpp", "sm100/params.cuh"} <= core_sources().keys()
