"""Make this checkout's environment, or bring it to what a purpose needs, with venv and pip.

    environment.py FOLDER PURPOSE      run by any Python >= 3.11, as ./run and ./check do

The checkout is not installed but put on the environment's path, which takes no build tool.  What
the Python that runs this has already is shared, and never replaced, if it holds torch or CuPy (a
CUDA container, say) or all that is needed.  One set-up runs at a time; one that was cut off is
begun again.  Only the standard library is used.

Why not uv: it does not see shared packages, so torch would be downloaded again, and it does not
read pip's configuration, so mirrors and folders of wheels would be lost.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path

import gpu_probe

ROOT = Path(__file__).resolve().parents[1]
# Purpose -> extras of pyproject.toml; what the GPU asks for comes on top.
PURPOSES: dict[str, tuple[str, ...]] = {
    "run": (),
    "test": ("test",),
    "dev": ("dev",),
    "lowest": ("test",),  # at the lower bounds
    "mutants": ("test", "mutants"),
}
OLDEST_CUDA, NEWEST_CUDA = 12, 13  # a newer driver runs what is built for the newest
CUPY = ("cupy-cuda12x", "cupy-cuda13x", "cupy")  # any serves where one is asked for
NEVER_REPLACED = ("torch", "numpy", *CUPY)
NVRTC = ("cuda-bindings", "nvidia-cuda-nvrtc")

_HOST_LINK = "fa_tune_host.pth"
_SCRIPT = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
import sys

from fa_tune.__main__ import main

if __name__ == "__main__":  # processes of a pool import this file again
    sys.exit(main())
"""
_NO_INDEX = re.compile(
    r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|ProxyError"
    r"|Network is unreachable|No route to host|Connection refused|ConnectTimeoutError"
    r"|ReadTimeoutError|--no-index was given|Ignoring indexes"
)


class SetupError(Exception):
    """What stops set-up, in one line for the user; exit status 3."""


def say(text: str) -> None:
    """One line of progress on stderr; stdout belongs to the command that follows."""
    print(f"fa-tune set-up: {text}", file=sys.stderr, flush=True)


def name_of(requirement: str) -> str:
    """Normal name of a requirement's package: `jinja-2` of `Jinja_2>=3.1`."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=!~;(]", requirement)[0]).lower()


def installed() -> dict[str, importlib.metadata.Distribution]:
    """Packages that this interpreter can import, by normal name; the first on its path counts."""
    found: dict[str, importlib.metadata.Distribution] = {}
    for package in importlib.metadata.distributions():
        if package.metadata and package.metadata["Name"] and package.version:
            found.setdefault(name_of(package.metadata["Name"]), package)
    return found


def requirements(extras: Sequence[str]) -> list[str]:
    """The project's dependencies and those of `extras`, its own extras expanded."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: list[str] = list(project["dependencies"])
    pending = list(extras)
    while pending:
        for line in project["optional-dependencies"][pending.pop(0)]:
            nested = re.fullmatch(rf"{project['name']}\[([\w, -]+)\]", line)
            if nested:
                pending += [extra.strip() for extra in nested[1].split(",")]
            else:
                found.append(line)
    return list(dict.fromkeys(found))


def lowest(wanted: Sequence[str]) -> list[str]:
    """Constraints to the oldest releases that requirements allow."""
    exact = {name_of(line) for line in wanted if "==" in line}
    loose = (line for line in wanted if name_of(line) not in exact)
    bounds = (re.match(r"([\w-]+)>=([\d.]+)", line) for line in loose)
    return [f"{bound[1]}~={bound[2]}.0" for bound in bounds if bound]


def choose_cuda(driver: tuple[int, int] | None, present: int | None, forced: str) -> int | None:
    """The CUDA major version to install for; None is none.

    `forced` (FA_TUNE_SETUP_CUDA: none, 12 or 13) decides alone; else the version `present`
    packages are built for, if the driver can run it; else the driver.  Raises SetupError.
    """
    if forced:
        if forced not in ("none", "12", "13"):
            raise SetupError(f"FA_TUNE_SETUP_CUDA={forced} is none of: none, 12, 13")
        return None if forced == "none" else int(forced)
    if driver is None or driver[0] < OLDEST_CUDA:
        return None
    newest = min(driver[0], NEWEST_CUDA)
    return present if present is not None and OLDEST_CUDA <= present <= newest else newest


def cuda_present() -> int | None:
    """The CUDA that this interpreter's torch or CuPy is built for; None if that does not show."""
    packages = installed()
    words = [name for name in CUPY if name in packages]
    if torch := packages.get("torch"):
        words = [torch.version, *(torch.requires or ()), *words]
    tags = (re.search(r"\+cu(\d\d)|^nvidia-.*-cu(\d\d)\b|^cupy-cuda(\d\d)x", w) for w in words)
    return next((int(next(filter(None, tag.groups()))) for tag in tags if tag), None)


def create(folder: Path, purpose: str) -> None:
    """A new environment in the place of an unusable or half-made one."""
    if Path(sys.prefix).resolve() == folder.resolve():
        raise SetupError(
            f"{folder} must be made anew, and no other Python >= 3.11 is on PATH to do it; "
            "install one, or name it in FA_TUNE_PYTHON"
        )
    if os.path.lexists(folder):
        why = "was cut off" if (folder / ".fa-tune/unfinished").exists() else "does not work"
        say(f"the environment in {folder} {why}: making it anew")
        shutil.rmtree(folder)
    else:
        say(f"making {folder} with Python {sys.version.split()[0]} (once)")
    (folder / ".fa-tune").mkdir(parents=True)
    (folder / ".fa-tune/unfinished").touch()
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    packages = installed()
    wanted = map(name_of, requirements(PURPOSES[purpose]))
    has_all = all(name in packages for name in wanted)
    if purpose != "lowest" and (has_all or any(n in packages for n in ("torch", *CUPY))):
        say(f"using the packages of {sys.executable}")
        shared = site.getsitepackages()
        shared += [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
        (site_packages,) = folder.glob("lib/python3*/site-packages")
        lines = [f"import site; site.addsitedir({place!r})\n" for place in shared]
        (site_packages / _HOST_LINK).write_text("".join(lines), encoding="utf-8")


def complete(folder: Path, purpose: str, host: str) -> None:
    """Install what `purpose` lacks; run by the environment's own interpreter."""
    site_packages = Path(site.getsitepackages()[0])
    (site_packages / "fa_tune_checkout.pth").write_text(f"{ROOT}\n", encoding="utf-8")
    script = folder / "bin/fa-tune"
    script.write_text(_SCRIPT.format(python=sys.executable), encoding="utf-8")
    script.chmod(0o755)

    forced = os.environ.get("FA_TUNE_SETUP_CUDA", "")
    cuda = choose_cuda(None if forced else gpu_probe.driver_cuda(), cuda_present(), forced)
    wanted = requirements([*PURPOSES[purpose], f"cuda{cuda}" if cuda else "cpu"])
    visible = installed()
    limits = lowest(wanted) if purpose == "lowest" else []
    # Only an environment of our own is exact; versions that were there first stand as they are.
    if (site_packages / _HOST_LINK).exists() or os.environ.get("PYTHONPATH"):
        held = [n for n in (*NEVER_REPLACED, *(() if cuda else NVRTC)) if n in visible]
        limits = [f"{name}=={visible[name].version}" for name in held]
        served = {*held, *(CUPY if any(name in held for name in CUPY) else ())}
        wanted = [line for line in wanted if name_of(line) not in served]
    elif purpose in ("test", "dev"):
        limits = (ROOT / "tools/constraints.txt").read_text(encoding="utf-8").splitlines()
    pip = _pip(host)
    _install(pip, wanted, limits, folder / ".fa-tune/pip.log")

    if cuda is None and purpose in ("test", "dev", "mutants") and "torch" not in visible:
        (torch,) = requirements(["reference"])[-1:]
        if reason := _why_not_small(pip, torch):
            say(f"leaving out {torch}: {reason}; tests against it are skipped")
        else:
            say(f"installing {torch} (CPU build) for the reference in the tests")
            _install(pip, [torch], limits, folder / ".fa-tune/pip.log")


def _pip(host: str) -> list[str]:
    """The pip to install with: the environment's, made now if need be, else the host's."""
    if "pip" not in installed():
        make = [sys.executable, "-m", "ensurepip", "--default-pip"]
        if subprocess.run(make, capture_output=True, check=False).returncode:
            # No ensurepip, as in Debian without python3-venv: the host's pip may serve.
            if subprocess.run([host, "-m", "pip", "-V"], capture_output=True).returncode:
                raise SetupError(
                    f"{host} has no pip (Debian, Ubuntu: apt-get install python3-venv)"
                )
            return [host, "-m", "pip", "--python", sys.executable]
    return [sys.executable, "-m", "pip"]


def _pip_environment() -> dict[str, str]:
    # PIP_USER would send packages out of the environment; five retries of a dead network are long.
    return {"PIP_RETRIES": "2", **os.environ, "PIP_USER": "0", "PIP_NO_INPUT": "1"}


def _install(pip: list[str], wanted: list[str], limits: list[str], log: Path) -> None:
    """`pip install` under constraints; shows its downloads and keeps its output in `log`."""
    lines: list[str] = []
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as limits_file:
        limits_file.write("\n".join(limits))
        limits_file.flush()
        command = [*pip, "install", "--progress-bar=off", "--disable-pip-version-check"]
        command += ["--constraint", limits_file.name, *wanted]
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_pip_environment(),
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                if shown := re.match(r"\s*Downloading (?:\S*/)?(\S+\.whl) (\(.*[MG]B\))", line):
                    say(f"downloading {shown[1]} {shown[2]}")
    log.write_text("".join(lines), encoding="utf-8")
    if process.returncode:
        raise SetupError(explain("".join(lines), log))


def explain(output: str, log: Path) -> str:
    """One line on a failed installation: what is missing, why, and the way out."""
    found = re.search(r"requirement (\S+) \(from", output)
    what = f"cannot install {found[1] if found else 'what is needed'}"
    if _NO_INDEX.search(output) or os.environ.get("PIP_NO_INDEX"):
        return (
            f"{what}: no package index is reachable; connect to a network, or name a folder of "
            "wheels in PIP_FIND_LINKS"
        )
    errors = re.findall(r"^ERROR: (.*)", output, re.MULTILINE)
    return f"{what}: {errors[0] if errors else 'pip failed'} (all of it: {log})"


def _why_not_small(pip: list[str], torch: str) -> str | None:
    """Why installing torch here would not bring a CPU build, or None; nothing is downloaded."""
    command = [*pip, "install", "--dry-run", "--ignore-installed", "--quiet", "--report=-"]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", torch],
        capture_output=True,
        text=True,
        env=_pip_environment(),
        check=False,
    )
    if done.returncode:
        return "no package index offers it" if not _NO_INDEX.search(done.stderr) else "no network"
    names = [entry["metadata"]["name"].lower() for entry in json.loads(done.stdout)["install"]]
    heavy = [name for name in names if re.match(r"nvidia-|cuda-|triton", name)]
    return f"it would bring {len(heavy)} CUDA packages" if heavy else None


def set_up(folder: Path, purpose: str) -> int:
    """Exit status of a whole set-up, while nobody else's runs."""
    unfinished = folder / ".fa-tune/unfinished"
    python = folder / "bin/python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "a", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up of this checkout")
            fcntl.flock(lock, fcntl.LOCK_EX)
        # Works, is new enough, and is of the version whose packages are there.
        works = "import os, site, sys; sys.exit(not os.path.isdir(site.getsitepackages()[0]) or "
        works += "sys.version_info < (3, 11))"
        if unfinished.exists() or subprocess.call(
            ["env", str(python), "-c", works], stderr=subprocess.DEVNULL
        ):
            create(folder, purpose)
        unfinished.touch()
        status = subprocess.call([python, __file__, folder, purpose, sys.executable])
        if status in (0, 3):  # pip undoes what it cannot finish
            unfinished.unlink()
        return status


def main(arguments: Sequence[str]) -> int:
    """Run one set-up, or its second half inside of the environment; returns the exit status."""
    folder, purpose, *host = arguments
    try:
        if not host:
            return set_up(Path(folder).absolute(), purpose)
        complete(Path(folder), purpose, *host)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    except OSError as error:
        print(
            f"error: set-up failed at {error.filename or folder}: {error.strerror or error}; "
            "FA_TUNE_VENV names another folder for the environment",
            file=sys.stderr,
        )
        return 3
    except KeyboardInterrupt:
        print("error: set-up interrupted; the next start begins it again", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
