"""`fa-tune export`: what it asks for and says; tests/export has what it writes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fa_tune.build.native.core import KernelImage
from fa_tune.core.model import Variant
from fa_tune.core.workload import FORWARD, DType, Workload
from fa_tune.export.project import Export, ExportedKernel
from fa_tune.export.selection import ExportOptions
from fa_tune.families.plan import CallPlan
from tests.commands.console import Console, words
from tests.commands.fakes import Put, Stub

KEY = "b1_h2_kv2_q3_k4_d64_bf16_causal"
VARIANT = Variant("sm80", "(FP16, 64, 64, 64, 4): async+load_0_0_0_tiles")


@pytest.fixture
def exporting(stub: Put) -> Stub:
    config: Any = SimpleNamespace(dtype=DType.FP16, d_head=64, B_r=64, B_c=64, exact=True)
    plan = CallPlan.of(FORWARD, config, "plain", "sm_80", ())
    image = KernelImage(VARIANT.key, plan, (), b"x" * 2**20)
    kernel = ExportedKernel(VARIANT, "plain", "sm_80", "images/0.cubin", image)
    made = Export(Path("to"), (kernel,), (), (VARIANT.key,), (), ("one thing",), "13.0.1")
    return stub("fa_tune.commands.export.export", made)


def test_options_arrive_and_what_there_is_is_said(
    console: Console, exporting: Stub, tmp_path: Path
) -> None:
    registry = str(tmp_path / "registry.json")
    given = ("--registry", registry, "--arch", "sm_90a, 8.0", "--workloads", KEY, "--lse", "--ptx")
    more = words("--kernels prog --d-head 64,96 --dtype bf16 --few-queries-by-size --kv-e4m3")
    done = console("export", "--to", str(tmp_path / "to"), *given, *more)
    assert done.status == 0
    assert [given for _, given, *_ in exporting.calls] == [
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
    done = console("export", "--to", str(tmp_path / "to"))
    assert done.status == 0
    assert "1.0 MiB" in done.out
    assert VARIANT.config in done.out
    assert done.lines == ["warning: left out: one thing"]
