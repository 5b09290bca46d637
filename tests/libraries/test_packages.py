"""Which packages a reference's kernels come from."""

import importlib.metadata
import sys

import pytest

from fa_tune import libraries
from fa_tune.libraries.base import CUPY


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
    assert libraries.installed("cudnn") == "torch 2.11.0, cudnn 9.13.0.50"
    installed["nvidia-cudnn-cu13"] = "9.19.0.1"
    assert libraries.installed("cudnn") == "torch 2.11.0, cudnn 9.19.0.1"


def test_what_is_not_known_is_left_out() -> None:
    assert libraries.installed("fa4") == "torch 2.11.0, fa4 4.0.0b4"
    assert libraries.installed("fa3") == "torch 2.11.0"
    assert libraries.installed("read") == libraries.installed("gone") == ""


def test_a_process_tells_what_it_ran_with(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    mine = {"torch": str(torch.__version__)}
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91300)
    assert libraries.get("fa2").versions == mine
    assert libraries.get("cudnn").versions == mine | {"cudnn": "9.13.0"}
    assert libraries.get("fa4").versions == mine | {"fa4": "4.0.0b4"}


def test_what_is_not_told_is_unknown(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str]
) -> None:
    torch = pytest.importorskip("torch")
    installed.clear()
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: None)
    assert libraries.get("cudnn").versions["cudnn"] == "unknown"
    assert libraries.get("fa3").versions["fa3"] == "unknown"
    assert CUPY.version == "unknown"


@pytest.mark.parametrize(("number", "told"), [(8907, "8.9.7"), (90100, "9.1.0"), (91002, "9.10.2")])
def test_the_version_of_cudnn_is_read(
    monkeypatch: pytest.MonkeyPatch, number: int, told: str
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: number)
    assert libraries.get("cudnn").versions["cudnn"] == told
