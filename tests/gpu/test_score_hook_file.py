"""A score hook of which only a file is given: kernels are judged by its text."""

from pathlib import Path

import pytest

from fa_tune.core import hooks
from fa_tune.core.options import MachineOptions, Silent, WorkloadOptions
from fa_tune.families.base import KernelFamily
from fa_tune.tune import single
from tests.gpu.score_hooks import CAP_BY_FOUR, PLACES

pytestmark = pytest.mark.gpu
# Texts of their own: those of score_hooks are registered with their functions.
TEXTS = (f"{PLACES}\n// by its text\n", f"{CAP_BY_FOUR}\n// by its text\n")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("packed", [False, True])
def test_a_kernel_is_judged_by_the_text(
    family: KernelFamily,
    machine: MachineOptions,
    text: str,
    packed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if family.name == "decode":
        pytest.skip(f"{family.name} kernels have no score hook")
    monkeypatch.setenv(hooks.FILES, "")
    file = tmp_path / "hook.cuh"
    file.write_text(text)
    common = {"score_hook": hooks.register_for_children(file), "lse": True}
    if packed:
        common["lengths"] = "500+0+3x600+7+129"
    asked = WorkloadOptions(d_heads=(128,), masks=("causal",), common=common)
    config = str(family.configs("fast", d_head=128)[0])
    report = single.verify(config, asked, machine, Silent(), names=(family.name,))
    assert report.failures == ()
    assert {key: v.reason for key, v in report.verdicts.items() if not v.correct} == {}
    assert len(report.verdicts) == (1 if packed else 2)
