"""The C++ core launches kernels that it loads itself as those that CuPy loaded: the same bits, from
many threads, in graphs, by a table, on two GPUs."""

from __future__ import annotations

import pytest

from fa_tune.core.options import MachineOptions
from tests.gpu.test_op import run

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("gpu")]
CHECKS = ("bits", "threads", "graphs", "table", "two_gpus")


@pytest.fixture(scope="module")
def said(machine: MachineOptions) -> dict[str, str]:
    """What each check says, of one process."""
    return run("core_child", *CHECKS, FA_TUNE_TEST_CACHE=str(machine.cache_dir))


@pytest.mark.parametrize("check", CHECKS)
def test_results_are_those_of_kernels_that_cupy_loaded(check: str, said: dict[str, str]) -> None:
    if said[check] == "one GPU":
        pytest.skip("needs two GPUs")
    assert said[check] == "right"
