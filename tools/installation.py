"""What an environment still lacks for a purpose, and getting exactly that.

What the interpreter that runs set-up has already is shared, and never replaced, when it holds
torch or CuPy (a CUDA container, say) or everything that is needed.
"""

from __future__ import annotations

import os
import re
import site
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import gpu_probe
import pip_runner
from checkout import PURPOSES, ROOT, STATE, UNFINISHED, VENV, SetupError
from pip_runner import say
from requirement_check import (
    CUPY,
    Installed,
    installed_in,
    missing,
    read_constraints,
    read_project,
    split,
)

OLDEST_CUDA, NEWEST_CUDA = 12, 13  # a newer driver runs what is built for the newest
NEVER_REPLACED = ("torch", "numpy", *CUPY)
NVRTC = ("cuda-bindings", "nvidia-cuda-nvrtc")
_HOST_LINK = "fa_tune_host.pth"

Installation = Mapping[str, Installed]  # by normal name


@dataclass(frozen=True)
class EnvPython:
    """The environment's interpreter."""

    path: str
    version: tuple[int, int]
    site_packages: str


def write(path: str, text: str, mode: int = 0o644) -> None:
    """Replace a file in one step."""
    new = f"{path}.new"
    with open(new, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(new, mode)
    os.replace(new, path)


def begin_change() -> None:
    """Note that the environment is being changed; who finds the note later begins again."""
    os.makedirs(STATE, exist_ok=True)
    Path(UNFINISHED).touch()


def end_change() -> None:
    """The environment is whole again."""
    Path(UNFINISHED).unlink(missing_ok=True)


def cuda_major_of(installed: Installation) -> int | None:
    """The CUDA that the present torch or CuPy is built for; None when that does not show."""
    if torch := installed.get("torch"):
        if tag := re.search(r"\+cu(\d\d)", torch.version):
            return int(tag[1])
        for requirement in torch.requires:
            if tag := re.match(r"nvidia-[a-z-]+-cu(\d\d)\b", requirement):
                return int(tag[1])
    for name in CUPY:
        if name in installed and (tag := re.fullmatch(r"cupy-cuda(\d\d)x", name)):
            return int(tag[1])
    return None


def choose_cuda(
    driver: tuple[int, int] | None, installed: Installation, forced: str = ""
) -> int | None:
    """The CUDA major version to install for; None is none.

    `forced` (FA_TUNE_SETUP_CUDA: none, 12 or 13) decides alone; else what is there already
    decides, as far as the driver can run it; else the driver.  Raises SetupError.
    """
    if forced:
        if forced == "none":
            return None
        if forced not in ("12", "13"):
            raise SetupError(f"FA_TUNE_SETUP_CUDA={forced} is none of: none, 12, 13")
        return int(forced)
    if driver is None or driver[0] < OLDEST_CUDA:
        return None
    newest = min(driver[0], NEWEST_CUDA)
    present = cuda_major_of(installed)
    return present if present is not None and OLDEST_CUDA <= present <= newest else newest


def shares_host(wanted: Iterable[str], visible: Installation, host: Installation) -> bool:
    """Whether the environment should see the packages of the interpreter that makes it."""
    if any(name in host and name not in visible for name in ("torch", *CUPY)):
        return True
    wanted = list(wanted)
    return bool(missing(wanted, visible)) and not missing(wanted, host)


def held_versions(asked_for: Iterable[str], visible: Installation) -> list[str]:
    """Constraints that keep the heavy packages as they are, but for those being installed."""
    names = {split(requirement)[0] for requirement in asked_for}
    return [
        f"{name}=={visible[name].version}"
        for name in NEVER_REPLACED
        if name in visible and name not in names
    ]


def complete(purpose: str, python: EnvPython) -> None:
    """Install what `purpose` lacks in the environment; raises SetupError."""
    host = _host(python)
    visible = installed_in(python.path)
    forced = os.environ.get("FA_TUNE_SETUP_CUDA", "")
    driver = None if forced else gpu_probe.driver_cuda()
    if driver and driver[0] < OLDEST_CUDA:
        say(f"the driver supports CUDA {driver[0]}.{driver[1]}; using its GPU takes 12 or later")
    cuda = choose_cuda(driver, {**host, **visible}, forced)
    extras = [*PURPOSES[purpose], f"cuda{cuda}" if cuda else "cpu"]
    wanted = read_project(Path(ROOT, "pyproject.toml"), extras)

    link = os.path.join(python.site_packages, _HOST_LINK)
    if not os.path.exists(link) and shares_host(wanted, visible, host):
        say(f"using the packages of {sys.executable}")
        write(link, "".join(f"import site; site.addsitedir({d!r})\n" for d in _host_folders()))
        visible = installed_in(python.path)

    # Only an environment of our own is exact; versions that were there first stand as they are.
    own = not os.path.exists(link) and not os.environ.get("PYTHONPATH")
    pins = read_constraints(Path(ROOT, "tools", "constraints.txt"))
    constraints = pins if own and purpose != "run" else {}
    keep = () if own else NEVER_REPLACED if cuda else (*NEVER_REPLACED, *NVRTC)

    def install(names: list[str]) -> None:
        limits = [name + clauses for name, clauses in constraints.items()]
        pip_runner.install(
            _pip(python, names, visible, host), names, limits + held_versions(names, visible)
        )

    lacking = missing(wanted, visible, constraints=constraints, keep=keep)
    if lacking:
        size = ", about 3 GB with torch" if any(r.startswith("torch") for r in lacking) else ""
        say(f"installing {', '.join(split(r)[0] for r in lacking)}{size}")
        install(lacking)
        left = missing(lacking, installed_in(python.path), constraints=constraints, keep=keep)
        if left:
            raise SetupError(f"pip reported success, yet {', '.join(left)} cannot be found")
    if cuda and visible.get("torch", Installed("")).version.endswith("+cpu"):
        say("torch is a CPU build here: without its CUDA build there are no reference columns")
    if cuda is None and purpose != "run" and "torch" not in visible:
        reference = read_project(Path(ROOT, "pyproject.toml"), ["reference"])
        torch = next(r for r in reference if r.startswith("torch"))
        reason = pip_runner.why_not_small(_pip(python, [torch], visible, host), torch)
        if reason:
            say(f"leaving out {torch}: {reason}; tests against it are skipped")
        else:
            say(f"installing {torch} (CPU build) for the reference in the tests")
            install([torch])


def _host(python: EnvPython) -> Installation:
    """What the interpreter running this can import, if the environment's can import it too."""
    if sys.version_info[:2] != python.version or os.path.samefile(sys.prefix, VENV):
        return {}
    return installed_in(sys.executable)


def _host_folders() -> list[str]:
    """Where the interpreter running this keeps its packages, PYTHONPATH left out."""
    folders = site.getsitepackages()
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return [folder for folder in folders if os.path.isdir(folder)]


def _pip(
    python: EnvPython, names: list[str], visible: Installation, host: Installation
) -> list[str]:
    """The pip to install with: the environment's, made now if need be (an environment that lacks
    nothing is made in a fraction of the time), else the one of the present interpreter."""
    begin_change()
    own = [python.path, "-m", "pip"]
    make = [python.path, "-m", "ensurepip", "--default-pip"]
    if "pip" in visible or subprocess.run(make, capture_output=True, check=False).returncode == 0:
        return own
    # No ensurepip, as in Debian without python3-venv: the present pip may serve.
    if "pip" in host:
        return [sys.executable, "-m", "pip", "--python", python.path]
    raise SetupError(
        f"cannot install {', '.join(names)}: {sys.executable} has no pip "
        "(Debian and Ubuntu: apt-get install python3-venv)"
    )
