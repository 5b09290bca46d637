"""`csrc/bench/host_cost.cpp`, built and run."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fa_tune.build.native.core import KernelImage
from fa_tune.build.native.library import host_compiler
from fa_tune.build.native.sources import core_sources
from fa_tune.core import paths


def plan_text(image: KernelImage) -> str:
    """A plan of one launch, as the program reads it."""
    (launch,) = image.call.launches
    rows = [map(_word, dataclasses.astuple(part)) for part in (image.call.plan, launch)]
    return "\n".join([*(" ".join(map(str, row)) for row in rows), *image.symbols, ""])


def _word(value: int | str) -> int | str:
    return value if isinstance(value, str) else int(value)


def build_host_cost(folder: Path) -> Path:
    """The program; everything it is made of goes to `folder`."""
    for name, text in core_sources().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    source = paths.csrc_dir() / "bench" / "host_cost.cpp"
    units = sorted(folder.rglob("*.cpp"))
    options = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{folder}", "-pthread"]
    program = folder / "host_cost"
    subprocess.run(
        [host_compiler(), *options, source, *units, "-o", program, "-ldl"], check=True, text=True
    )
    return program


def host_cost(
    image: KernelImage, *, rounds: int = 50, environment: Mapping[str, str] | None = None
) -> Any:
    """What the program prints."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = build_host_cost(folder)
        (folder / "plan.txt").write_text(plan_text(image))
        (folder / "kernel.cubin").write_bytes(image.image)
        done = subprocess.run(
            [program, folder / "plan.txt", folder / "kernel.cubin", str(rounds)],
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
