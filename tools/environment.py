"""Set-up itself: one at a time, and begun again when it was cut off.

The checkout is not built or installed but put on the environment's path, which needs no build
tool and no network.

Why not uv: it does not see the packages that an environment shares with its container
(`uv venv --system-site-packages`), so torch would be downloaded again, and it does not read
pip's configuration, so mirrors and folders of wheels would be lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator

import installation
from checkout import ROOT, STATE, UNFINISHED, VENV, SetupError, fingerprint, is_ready, stamp_path
from installation import EnvPython, begin_change, end_change, write
from pip_runner import say

_SCRIPT = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
import sys

from fa_tune.__main__ import main

if __name__ == "__main__":  # processes of a pool import this file again
    sys.exit(main())
"""


def set_up(purpose: str) -> None:
    """Bring the environment to what `purpose` needs; raises SetupError or OSError."""
    with _alone():
        python = None if os.path.exists(UNFINISHED) else _existing()
        if python is not None and is_ready(purpose, python.version):
            return  # another start did it meanwhile
        if python is None:
            python = _create()
        _link_checkout(python)
        try:
            installation.complete(purpose, python)
        except SetupError:
            end_change()  # pip undoes what it cannot finish
            raise
        write(stamp_path(purpose), fingerprint(purpose, python.version))
        end_change()


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Hold the lock beside the environment; a dead holder's lock is free."""
    os.makedirs(os.path.dirname(VENV), exist_ok=True)
    with open(f"{VENV}.lock", "a", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up of this checkout")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _existing() -> EnvPython | None:
    """The environment's interpreter if it runs, is new enough and has its packages' folder."""
    path = os.path.join(VENV, "bin", "python")
    ask = "import sys, sysconfig; print(*sys.version_info[:2], sysconfig.get_path('purelib'))"
    try:
        done = subprocess.run([path, "-c", ask], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    major, minor, folder = done.stdout.strip().split(" ", 2)
    version = (int(major), int(minor))
    if version < (3, 11) or not os.path.isdir(folder):
        return None
    return EnvPython(path, version, folder)


def _create() -> EnvPython:
    """A new environment, in the place of an unusable or half-made one."""
    if os.path.realpath(sys.prefix) == os.path.realpath(VENV):
        raise SetupError(
            f"{VENV} must be made anew, and no other Python >= 3.11 is on PATH to do it; "
            "install one, or name it in FA_TUNE_PYTHON"
        )
    if os.path.lexists(VENV):
        why = "was cut off" if os.path.exists(UNFINISHED) else "does not work any more"
        say(f"the environment in {VENV} {why}: making it anew")
        shutil.rmtree(VENV)
    else:
        say(f"making {VENV} with Python {sys.version.split()[0]} (once)")
    begin_change()
    venv.EnvBuilder(with_pip=False, symlinks=True).create(VENV)
    python = _existing()
    if python is None:
        raise SetupError(f"{sys.executable} makes no working environment in {VENV}")
    return python


def _link_checkout(python: EnvPython) -> None:
    """Make `import fa_tune` and the `fa-tune` command of the environment mean this checkout."""
    os.makedirs(STATE, exist_ok=True)
    write(os.path.join(python.site_packages, "fa_tune_checkout.pth"), ROOT + "\n")
    script = os.path.join(VENV, "bin", "fa-tune")
    write(script, _SCRIPT.format(python=python.path), mode=0o755)
