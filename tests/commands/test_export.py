"""`fa-tune export`: what it asks for and says; tests/export has what it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_tune.build.native.core import KernelImage
from fa_tune.commands import export as module
from fa_tune.core.model import Variant
from fa_tune.core.options import MachineOptions, Progress
from fa_tune.core.workload import FORWARD, DType, Workload
from fa_tune.export.project import Export, ExportedKernel
from fa_tune.export.selection import ExportOptions
from fa_tune.families.plan import CallPlan
from tests.commands.console import Console, words

KEY = "b1_h2_kv2_q3_k4_d64_bf16_causal"
VARIANT = Variant("sm80", "(FP16, 64, 64, 64, 4): async+load_0_0_0_tiles")


class Exporting:
    def __init__(self) -> None:
        self.options: list[ExportOptions] = []

    def __call__(
        self, folder: Path, options: ExportOptions, machine: MachineOptions, progress: Progress
    ) -> Export:
        self.options.append(options)
        plan = CallPlan.of(FORWARD, _Config(), "plain", "sm_80", ())
        image = KernelImage(VARIANT.key, plan, (), b"x" * 2**20)
        kernel = ExportedKernel(VARIANT, "plain", "sm_80", "images/0.cubin", image)
        return Export(folder, (kernel,), (), (VARIANT.key,), (), ("one thing",), "13.0.1")


class _Config:
    dtype, d_head, B_r, B_c = DType.FP16, 64, 64, 64


@pytest.fixture
def exporting(monkeypatch: pytest.MonkeyPatch) -> Exporting:
    made = Exporting()
    monkeypatch.setattr(module, "export", made)
    return made


def test_options_arrive(console: Console, exporting: Exporting, tmp_path: Path) -> None:
    registry = str(tmp_path / "registry.json")
    given = ("--registry", registry, "--arch", "sm_90a, 8.0", "--workloads", KEY, "--lse", "--ptx")
    more = words("--kernels prog --d-head 64,96 --dtype bf16 --few-queries-by-size --kv-e4m3")
    done = console("export", "--to", str(tmp_path / "to"), *given, *more)
    assert done.status == 0
    assert exporting.options == [
        ExportOptions(
            registry=Path(registry),
            archs=("sm_90a", "sm_80"),
            workloads=(Workload.from_key(KEY),),
            kernels="prog",
            d_heads=(64, 96),
            dtypes=(DType.BF16,),
            lse=True,
            ptx=True,
            by_size=True,
            kv_e4m3=True,
        )
    ]


def test_it_says_what_there_is(console: Console, exporting: Exporting, tmp_path: Path) -> None:
    done = console("export", "--to", str(tmp_path / "to"))
    assert done.status == 0
    assert "1.0 MiB" in done.out
    assert VARIANT.config in done.out
    assert done.lines == ["warning: left out: one thing"]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--arch", "sm_90a,"), 2, "an empty place"),
        (("--arch", "hopper"), 2, "not an architecture"),
        (("--workloads", "b1"), 2, "not a workload key"),
        (("--kernels", "nothing", "--arch", "sm_80"), 2, "unknown kernel set"),
        ((), 4, "--arch names architectures"),
    ],
)
def test_what_means_nothing_is_one_line(
    console: Console, tmp_path: Path, arguments: tuple[str, ...], status: int, said: str
) -> None:
    none = str(tmp_path / "none.json")
    done = console("export", "--to", str(tmp_path / "to"), "--registry", none, *arguments)
    assert done.status == status
    assert said in done.lines[-1]
    assert not (tmp_path / "to").exists()
