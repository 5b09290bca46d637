"""Caches whose lengths and pages the GPU alone knows, beside fp64."""

from __future__ import annotations

import pytest

from tests.gpu.test_op import run

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("gpu")]
CHECKS = (
    "random_caches",
    "through_the_drop_in",
    "any_config",
    "combined_beside_other_kernels",
)


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    """What each check says, of one process."""
    return run("kv_cache_child", *CHECKS)


@pytest.mark.parametrize("check", CHECKS)
def test_caches(check: str, said: dict[str, str]) -> None:
    assert said[check] == "right"
