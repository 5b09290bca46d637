"""Streams of others as CuPy's, by whichever name its version has for them."""

from types import SimpleNamespace
from typing import Any

import cupy
import pytest

from fa_tune.core.streams import stream_of

HANDLE = 0xABC0


def test_a_new_cupy_is_asked_by_the_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_external(stream: Any) -> tuple[str, Any]:
        return "by protocol", stream.__cuda_stream__()

    monkeypatch.setattr(
        cupy.cuda, "Stream", SimpleNamespace(from_external=from_external), raising=False
    )
    assert stream_of(HANDLE) == ("by protocol", (0, HANDLE))


def test_an_older_cupy_has_a_class_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cupy.cuda, "Stream", SimpleNamespace(), raising=False)
    monkeypatch.setattr(
        cupy.cuda, "ExternalStream", lambda handle: ("by handle", handle), raising=False
    )
    assert stream_of(HANDLE) == ("by handle", HANDLE)
