"""Running pip: progress in a few lines, failures in one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from checkout import STATE, SetupError

_CUDA_PACKAGES = re.compile(r"nvidia-|cuda-|triton")
_NO_INDEX = re.compile(
    r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|ProxyError"
    r"|Network is unreachable|No route to host|Connection refused|ConnectTimeoutError"
    r"|ReadTimeoutError|--no-index was given|Ignoring indexes"
)


def say(text: str) -> None:
    """One line of progress on stderr; stdout belongs to the command that follows."""
    print(f"fa-tune set-up: {text}", file=sys.stderr, flush=True)


def _environment() -> dict[str, str]:
    # PIP_USER would send packages out of the environment; five retries of a dead network are long.
    return {"PIP_RETRIES": "2", **os.environ, "PIP_USER": "0", "PIP_NO_INPUT": "1"}


def install(pip: Sequence[str], requirements: Sequence[str], limits: Sequence[str]) -> None:
    """`pip install` the requirements under the constraints `limits`; raises SetupError.

    The whole output is kept in `pip.log` of the environment's state folder.
    """
    log_path = os.path.join(STATE, "pip.log")
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as limits_file:
        limits_file.write("".join(f"{line}\n" for line in limits))
        limits_file.flush()
        command = [*pip, "install", "--progress-bar=off", "--disable-pip-version-check"]
        command += ["--constraint", limits_file.name, *requirements]
        log = _run(command, log_path)
    if log is not None:
        raise SetupError(explain(log, requirements, log_path))


def _run(command: Sequence[str], log_path: str) -> str | None:
    """Run pip, show its downloads; its output when it fails, None when it succeeds."""
    lines: list[str] = []
    with (
        open(log_path, "w", encoding="utf-8") as log_file,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(),
            text=True,
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            log_file.write(line)
            if shown := re.match(r"\s*Downloading (\S+\.whl) (\(.*[MG]B\))", line):
                name, version = shown[1].rsplit("/", 1)[-1].split("-")[:2]
                say(f"downloading {name} {version} {shown[2]}")
    return "".join(lines) if process.returncode else None


def explain(log: str, requirements: Sequence[str], log_path: str) -> str:
    """One line on a failed installation: what is missing, why, and the way out."""
    names = ", ".join(requirements)
    if _NO_INDEX.search(log) or os.environ.get("PIP_NO_INDEX"):
        return (
            f"cannot install {names}: no package index is reachable; connect to a network, or "
            "name a folder of wheels in PIP_FIND_LINKS"
        )
    errors = [line.strip() for line in log.splitlines() if line.startswith("ERROR:")]
    why = errors[0].removeprefix("ERROR: ") if errors else "pip failed"
    return f"cannot install {names}: {why} (all of it: {log_path})"


def cuda_packages(report: str) -> list[str]:
    """The CUDA packages in a resolution, as `pip install --report` writes it; [] is none."""
    names = [entry["metadata"]["name"].lower() for entry in json.loads(report)["install"]]
    return sorted(name for name in names if _CUDA_PACKAGES.match(name))


def why_not_small(pip: Sequence[str], requirement: str) -> str | None:
    """Why installing torch here would not bring a CPU build, or None when it would.

    Only the resolution is made; nothing is downloaded but metadata.
    """
    version = subprocess.run([*pip, "--version"], capture_output=True, text=True, check=False)
    found = re.match(r"pip (\d+)\.(\d+)", version.stdout)
    if not found or (int(found[1]), int(found[2])) < (23, 2):
        return "this pip is too old to tell its size beforehand"
    command = [*pip, "install", "--dry-run", "--ignore-installed", "--quiet", "--report=-"]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", requirement],
        capture_output=True,
        text=True,
        env=_environment(),
        check=False,
    )
    if done.returncode:
        return "no package index offers it" if not _NO_INDEX.search(done.stderr) else "no network"
    heavy = cuda_packages(done.stdout)
    return f"it would bring {len(heavy)} CUDA packages" if heavy else None
