"""Which packages a reference's kernels come from."""

from __future__ import annotations

import importlib.metadata

import pytest

from fa_tune.core.packages import installed_version, reference_versions
from fa_tune.core.reference_kernels import REFERENCE_LABELS


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    found = {"torch": "2.11.0", "nvidia-cudnn-cu12": "9.13.0.50", "flash-attn-4": "4.0.0b4"}

    def version(name: str) -> str:
        if name not in found:
            raise importlib.metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    return found


def test_a_package_is_found_under_any_of_its_names(installed: dict[str, str]) -> None:
    assert installed_version("cudnn") == "9.13.0.50"
    installed["nvidia-cudnn-cu13"] = "9.19.0.1"
    assert installed_version("cudnn") == "9.19.0.1"
    assert installed_version("fa3") is None


@pytest.mark.parametrize("reference", REFERENCE_LABELS)
def test_a_reference_depends_on_its_own_packages(reference: str) -> None:
    assert (
        reference_versions(reference)
        == {
            "fa2": "torch 2.11.0",
            "cudnn": "torch 2.11.0, cudnn 9.13.0.50",
            "fa3": "torch 2.11.0",
            "fa4": "torch 2.11.0, fa4 4.0.0b4",
            "flex": "torch 2.11.0",
            "read": "",
        }[reference]
    )
