"""Where this checkout and its environment are, and whether the one is made for the other."""

from __future__ import annotations

import hashlib
import os

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
VENV = os.path.abspath(os.environ.get("FA_TUNE_VENV") or os.path.join(ROOT, ".venv"))
STATE = os.path.join(VENV, ".fa-tune")
UNFINISHED = os.path.join(STATE, "unfinished")  # there while .venv is being changed

# Purpose -> extras of pyproject.toml; what the GPU asks for comes on top.
PURPOSES: dict[str, tuple[str, ...]] = {"run": (), "test": ("test",), "dev": ("dev",)}

INPUTS = (
    "pyproject.toml",
    "tools/checkout.py",
    "tools/constraints.txt",
    "tools/environment.py",
    "tools/gpu_probe.py",
    "tools/pip_runner.py",
    "tools/requirement_check.py",
)
_DEVICE_NODES = ("/dev/nvidiactl", "/dev/dxg")  # a GPU that came or went since


class SetupError(Exception):
    """What stops set-up, in one line for the user; exit status 3."""


def fingerprint(purpose: str, python_version: tuple[int, int]) -> str:
    """Hash of all that set-up depends on: another one means that there may be work to do."""
    digest = hashlib.sha256()
    for name in INPUTS:
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read() + b"\0")
    facts = (
        purpose,
        ROOT,
        tuple(python_version),
        os.environ.get("PYTHONPATH", ""),
        os.environ.get("FA_TUNE_SETUP_CUDA", ""),
        [os.path.exists(node) for node in _DEVICE_NODES],
    )
    digest.update(repr(facts).encode())
    return digest.hexdigest()


def stamp_path(purpose: str) -> str:
    """The file that holds the fingerprint of the last finished set-up for a purpose."""
    return os.path.join(STATE, f"{purpose}.ready")


def is_ready(purpose: str, python_version: tuple[int, int]) -> bool:
    """Whether the environment, of this Python, was made from exactly the present inputs."""
    if os.path.exists(UNFINISHED):
        return False
    try:
        with open(stamp_path(purpose), encoding="ascii") as file:
            return file.read() == fingerprint(purpose, python_version)
    except OSError:
        return False
