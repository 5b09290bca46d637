"""Who ran with which versions, as a worker tells it."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING

import pytest

if not TYPE_CHECKING:
    pytest.importorskip("torch", reason="torch is not installed: no jobs to test")

import torch

from fa_tune.gpu import versions

TORCH = str(torch.__version__)


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    found = {"flash-attn-4": "4.0.0b4", "cupy-cuda12x": "14.2.0"}

    def version(name: str) -> str:
        if name not in found:
            raise importlib.metadata.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    return found


def test_each_subject_has_what_it_ran_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91300)
    assert versions.library_versions("ref:fa2") == {"torch": TORCH}
    assert versions.library_versions("ref:cudnn") == {"torch": TORCH, "cudnn": "9.13.0"}
    assert versions.library_versions("ref:fa4") == {"torch": TORCH, "fa4": "4.0.0b4"}
    assert versions.library_versions("sm90:x") == {"torch": TORCH, "cupy": "14.2.0"}


def test_what_is_not_told_is_unknown(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str]
) -> None:
    installed.clear()
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: None)
    assert versions.library_versions("ref:cudnn")["cudnn"] == "unknown"
    assert versions.library_versions("ref:fa3")["fa3"] == "unknown"
    assert versions.library_versions("sm80:x")["cupy"] == "unknown"


@pytest.mark.parametrize(("number", "told"), [(8907, "8.9.7"), (90100, "9.1.0"), (91002, "9.10.2")])
def test_the_version_of_cudnn_is_read(number: int, told: str) -> None:
    assert versions._cudnn(number) == told
