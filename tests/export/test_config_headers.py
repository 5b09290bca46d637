from __future__ import annotations

import random
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from fa_tune import families
from fa_tune.build import nvrtc
from fa_tune.core.arch import ctas_per_sm, parse_arch
from fa_tune.core.errors import StorageError
from fa_tune.core.workload import DType
from fa_tune.export.config_headers import (
    dtype_header,
    generated_texts,
    struct_header,
    write_generated_files,
)
from fa_tune.families.fields import number_field
from fa_tune.families.sm80.config import FlashForwardKernelConfig

ROOT = Path(__file__).parents[2]


def sample(count: int) -> list[FlashForwardKernelConfig]:
    """Configs that share many field values, so that every field decides some comparison."""
    rng = random.Random(80)
    flag, tiles = (False, True), (0, 2)
    return sorted(
        {
            FlashForwardKernelConfig(
                rng.choice(list(DType)),
                rng.choice((64, 96, 128)),
                rng.choice((64, 128)),
                rng.choice((32, 64)),
                rng.choice((4, 8)),
                *(rng.choice(flag) for _ in range(3)),
                *(rng.choice(tiles) for _ in range(3)),
                *(rng.choice(flag) for _ in range(2)),
                rng.choice((1, 2, 3)),
                rng.choice((0, 8)),
                *(rng.choice(flag) for _ in range(2)),
            )
            for _ in range(count)
        }
    )


@pytest.mark.parametrize("name", generated_texts())
def test_committed_files_are_current(name: str) -> None:
    committed = (ROOT / name).read_text("utf-8")
    assert committed == generated_texts()[name], "run `python -m fa_tune.export.config_headers`"


def test_files_are_rewritten_in_a_checkout_only(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is not a source checkout"):
        write_generated_files(tmp_path)
    (tmp_path / "kernels").mkdir()
    (tmp_path / "csrc").mkdir()
    written = write_generated_files(tmp_path)
    assert {p.relative_to(tmp_path).as_posix(): p.read_text("utf-8") for p in written} == (
        generated_texts()
    )


def run_cpp(folder: Path, source: str) -> str:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not installed")
    (folder / "dtype.h").write_text(dtype_header(), "utf-8")
    (folder / "main.cpp").write_text(source, "utf-8")
    program = folder / "main"
    command = [compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-o", program, "main.cpp"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout


def test_struct_compares_and_sizes_like_python(tmp_path: Path) -> None:
    configs = sample(150)
    limits = parse_arch("sm_90")
    (tmp_path / "config.h").write_text(struct_header("sm80", FlashForwardKernelConfig), "utf-8")
    output = run_cpp(
        tmp_path,
        f"""
        #include "config.h"
        #include <cstdio>
        using namespace fa_tune;
        constexpr FlashForwardKernelConfig kConfigs[] = {{
            {",".join(c.to_cpp_struct() for c in configs)}
        }};
        static_assert(kConfigs[0] < kConfigs[1] && !(kConfigs[0] == kConfigs[1]));
        int main() {{
            for (const auto& a : kConfigs) {{
                for (const auto& b : kConfigs) {{
                    if ((a < b) != (&a < &b) || (a == b) != (&a == &b)) return 1;
                }}
                std::printf("%d %d %d\\n", a.smem_bytes(), a.smem_bytes(4),
                            a.num_ctas_per_sm({limits.smem_per_sm_bytes}));
            }}
        }}
        """,
    )
    # Barriers are as large with larger elements.
    # Neither threads nor registers limit a CTA of one warp without registers: only memory does.
    assert output.splitlines() == [
        f"{c.smem_bytes} {2 * c.smem_bytes - (1024 if c.ping_pong else 0)} "
        f"{ctas_per_sm(limits, threads=32, registers=0, smem_bytes=c.smem_bytes)}"
        for c in configs
    ]


@dataclass(frozen=True, order=True)
class LaterConfig(FlashForwardKernelConfig):
    """What the class looks like once a knob has been added."""

    buffers: int = number_field("buffers", 1, "buffers of something")


def test_later_fields_have_initialisers(tmp_path: Path) -> None:
    header = struct_header("sm80", LaterConfig)
    assert "    // buffers of something\n    int buffers = 1;\n" in header
    (tmp_path / "config.h").write_text(header, "utf-8")
    (old,) = sample(1)
    literal = old.to_cpp_struct().replace("FlashForwardKernelConfig", "LaterConfig")
    output = run_cpp(
        tmp_path,
        f"""
        #include "config.h"
        #include <cstdio>
        using namespace fa_tune;
        int main() {{
            constexpr LaterConfig old = {literal};
            constexpr LaterConfig two = {literal[:-1]}, 2}};
            std::printf("%d %d %d", old.buffers, two.buffers, old < two && !(two < old));
        }}
        """,
    )
    assert output == "1 2 1"


def test_both_families_share_a_translation_unit() -> None:
    """Their headers define nothing twice, and nothing outside the namespace."""
    files: dict[str, str] = {}
    for family in families.all_families():
        files |= family.source_files()
    source = """
    enum class DType {}; enum class Order {}; struct ForwardParams {}; struct Sm90Config {};
    struct FlashForwardKernelConfig {}; struct WorkloadTraits {};
    #include "sm80/fwd/kernel.cuh"
    #include "sm90/fwd/kernel.cuh"
    __global__ void kernel(int* out) {
        out[0] = sizeof(fa_tune::sm80::ForwardParams) + sizeof(fa_tune::sm90::ForwardParams);
    }
    """
    nvrtc.compile_source(source, "k.cu", files, ("-std=c++20", "-arch=sm_90a"), ())
