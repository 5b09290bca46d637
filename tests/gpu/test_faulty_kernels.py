"""The faulty kernels are what they should be; this needs no GPU."""

from pathlib import Path

import pytest

from tests.gpu.faulty_kernels import NAMES, SOURCE, compile_faulty


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_they_compile_and_are_found_by_their_names(tmp_path: Path, arch: str) -> None:
    cubin = compile_faulty(tmp_path, arch, 128).read_bytes()
    for name in NAMES:
        assert f".text.{name}\0".encode() in cubin
    assert SOURCE.count('extern "C"') == len(NAMES)
