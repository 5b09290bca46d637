"""The program that measures a launch runs, here with the stub in place of the driver."""

from __future__ import annotations

from pathlib import Path

from fa_tune import families
from fa_tune.build.native.core import KernelImage
from fa_tune.core.workload import DType
from tests.csrc.host_cost import host_cost
from tests.csrc.stub import image


def test_a_launch_is_measured(stub: Path) -> None:
    family = families.get("sm90")
    call = family.plan(family.default_config(128, DType.FP16), "plain", "sm_90a")
    made = KernelImage("x", call, ("kernel",), image([("kernel", [128] * 4 + [56])]))
    environment = {"LD_LIBRARY_PATH": str(stub), "STUB_SILENT": "1"}
    found = host_cost(made, rounds=5, environment=environment)
    assert (found["rounds"], found["device"]) == (5, "NVIDIA H200")
    assert all(found[f"{name}_ns"] > 0 for name in ("core", "bare", "table", "first_launch"))
