"""`csrc/bench/host_cost.cpp`, built and run."""

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
from fa_tune.export.table_source import image_symbols, table_header


def build_host_cost(folder: Path, image: KernelImage, *core: Path) -> Path:
    """The program for a kernel; everything it is made of goes to `folder`.  `core`: its objects,
    where it has been compiled."""
    texts = {
        **core_sources(),
        "exported_table.h": table_header("bench", [image], [], [image.config], []),
        "images.S": image_symbols("bench", ["kernel.cubin"]),
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "kernel.cubin").write_bytes(image.image)
    source = paths.csrc_dir() / "bench" / "host_cost.cpp"
    units = map(str, [source, "images.S", *(core or sorted(folder.rglob("*.cpp")))])
    options = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{folder}", "-pthread"]
    program = folder / "host_cost"
    command = [host_compiler(), *options, *units, "-o", str(program), "-ldl"]
    subprocess.run(command, check=True, cwd=folder)
    return program


def host_cost(
    image: KernelImage, *core: Path, rounds: int = 50, environment: Mapping[str, str] | None = None
) -> Any:
    """What the program prints."""
    with tempfile.TemporaryDirectory() as name:
        done = subprocess.run(
            [build_host_cost(Path(name), image, *core), str(rounds)],
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
