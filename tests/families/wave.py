"""A second family, small but complete: what `sm90` will need of the flow, without its kernels.

It runs on 9.0 only and compiles for sm_90a, its short form tells the family, and its grid is
persistent.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from fa_tune import families
from fa_tune.core.arch import ArchLimits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Rejected
from fa_tune.core.workload import FORWARD, DType, Workload
from fa_tune.families.axes import expand
from fa_tune.families.plan import CallPlan, Grid, LaunchPlan
from fa_tune.families.template import TemplateFamily
from fa_tune.operations.traits import Traits

_FORM = re.compile(r"wave\((\w+), *(?:(\d+), *)?(\d+)x(\d+), *(\d+)\): *(pingpong)?")
_STRUCT = re.compile(r"WaveConfig\{DType\((\d+)\), (\d+), (\d+), (\d+), (\d+), (true|false)\}")

KERNEL = """
enum class DType : int {};
struct WaveConfig {
    DType dtype;
    int d_head, rows, keys, warpgroups;
    bool pingpong;
};
struct WorkloadTraits { bool causal, ragged, lse, window, sink, softcap, alibi, hook, packed; };
struct alignas(64) TensorMap { unsigned long long opaque[16]; };

template <WaveConfig CFG, WorkloadTraits TRAITS>
__global__ void wave(const __grid_constant__ TensorMap q, float* out) {
    static_assert(CFG.rows % 64 == 0, "rows must be a multiple of 64, one wgmma");
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");  // sm_90a alone has it
    out[blockIdx.x] = static_cast<float>(q.opaque[0]) + SCALE;
}
"""


@dataclass(frozen=True, order=True)
class WaveConfig:
    dtype: DType
    d_head: int
    B_r: int
    B_c: int
    warpgroups: int
    pingpong: bool = False
    word: ClassVar[str] = "wave"
    exact: ClassVar[bool] = True

    def __str__(self) -> str:
        c = self
        words = "pingpong" if c.pingpong else ""
        return f"{c.word}({c.dtype.name}, {c.d_head}, {c.B_r}x{c.B_c}, {c.warpgroups}): {words}"


@dataclass
class WaveFamily(TemplateFamily[Any]):
    """`scale` changes the kernel's source."""

    operation: str = FORWARD
    name: str = "wave"
    config_class: type[WaveConfig] = WaveConfig
    example: str = "wave(FP16, 128, 128x176, 2): pingpong"
    set_keys: str = "tune"
    scale: str = "1.0f"

    def recognises(self, text: str) -> bool:
        return "wave(" in text or "WaveConfig{" in text

    def parse(self, text: str, *, d_head: int = 128) -> WaveConfig:
        if found := _STRUCT.search(text):
            *numbers, pingpong = found.groups()
            dtype, *rest = map(int, numbers)
            return WaveConfig(DType(dtype), *rest, pingpong == "true")
        found = _FORM.search(text)
        if found is None:
            raise InvalidConfig(f"no wave config in {text!r}; write it like {self.example!r}")
        dtype, d, rows, keys, warpgroups, pingpong = found.groups()
        return WaveConfig(
            DType.from_string(dtype),
            int(d or d_head),
            int(rows),
            int(keys),
            int(warpgroups),
            pingpong is not None,
        )

    def compile_arch(self, limits: ArchLimits) -> str:
        return f"{limits.arch}a"

    def constraints(self, config: WaveConfig, limits: ArchLimits) -> Rejected | None:
        if limits.compute_capability != (9, 0):
            return Rejected("compute_capability", f"needs sm_90, the device is {limits.arch}")
        if config.d_head not in (64, 128):
            return Rejected("d_head_known", f"d_head must be 64 or 128, not {config.d_head}")
        if config.B_r % (64 * config.warpgroups):
            return Rejected("rows_per_warpgroup", "rows must be whole wgmmas of each warpgroup")
        if self.dynamic_smem_bytes(config) > limits.smem_per_block_bytes:
            return Rejected("smem_fits", f"needs {self.dynamic_smem_bytes(config)} bytes")
        return None

    def default_config(self, d_head: int, dtype: DType, *, d_head_v: int = 0) -> WaveConfig:
        return WaveConfig(dtype, d_head, 128, 128, 2)

    def configs(
        self,
        key: str,
        *,
        dtypes: Sequence[DType] | None = None,
        d_head: int = 128,
        d_head_v: int = 0,
    ) -> list[WaveConfig]:
        if key != "tune":
            raise InvalidConfig(f"unknown kernel set {key!r}; allowed: {self.set_keys}")
        axes = {
            "dtype": dtypes or tuple(DType),
            "d_head": (d_head,),
            "B_r": (128,),
            "B_c": (128, 176, 512),
            "warpgroups": (2,),
            "pingpong": (False, True),
        }
        found = expand(WaveConfig, axes)
        return [c for c in found if d_head in (64, 128) and self.tune_rejection(c) is None]

    def tune_rejection(self, config: WaveConfig) -> Rejected | None:
        if config.pingpong and config.B_c < 176:
            return Rejected("pingpong_wants_keys", "too little work to take turns at")
        return None

    def traits(self, config: WaveConfig, workload: Workload, *, lse: bool = False) -> str:
        ragged = bool(workload.seq_len_q % config.B_r or workload.seq_len_kv % config.B_c)
        return str(Traits(causal=workload.causal, ragged=ragged, lse=lse or workload.lse))

    def source_files(self) -> Mapping[str, str]:
        return {"wave/wave.cuh": KERNEL.replace("SCALE", self.scale)}

    def entry_source(self, config: WaveConfig, traits: str) -> str:
        return '#include "wave/wave.cuh"\n'

    def name_expression(self, config: WaveConfig, traits: str) -> str:
        c = config
        numbers = f"{c.d_head}, {c.B_r}, {c.B_c}, {c.warpgroups}"
        values = f"DType({c.dtype.value}), {numbers}, {str(c.pingpong).lower()}"
        return f"wave<WaveConfig{{{values}}}, {Traits.parse(traits).to_cpp_struct()}>"

    def threads(self, config: WaveConfig) -> int:
        return 128 * (config.warpgroups + 1)

    def dynamic_smem_bytes(self, config: WaveConfig) -> int:
        return (config.B_r + 2 * config.B_c) * config.d_head * config.dtype.size_bytes

    def plan(self, config: WaveConfig, traits: str, arch: str) -> CallPlan:
        launch = LaunchPlan(
            params="sm90_forward",
            grid=Grid.PERSISTENT,
            tile_rows=config.B_r,
            ctas_per_sm=1,
            threads=self.threads(config),
            dynamic_smem_bytes=self.dynamic_smem_bytes(config),
            q_box_rows=config.B_r,
            kv_box_rows=config.B_c,
            counter_bytes=8,
        )
        return CallPlan.of(self.operation, config, traits, arch, (launch,))

    def extra_verification(self, config: WaveConfig, traits: str) -> Sequence[Workload]:
        facts = Traits.parse(traits)
        rows, keys = 2 * config.B_r + facts.ragged, 2 * config.B_c + facts.ragged
        shape = (8, 32, 8, rows, keys, config.d_head, config.dtype)
        return (Workload(*shape, causal=facts.causal, lse=facts.lse),)

    __hash__ = object.__hash__


def register(monkeypatch: pytest.MonkeyPatch) -> WaveFamily:
    """The family beside those that are there, until the test ends."""
    family = WaveFamily()
    monkeypatch.setitem(families._FAMILIES, family.name, family)
    return family
