import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_tune.core.arch import ctas_per_sm, limits, parse_arch
from fa_tune.core.errors import InvalidConfig

KIB = 1024


@pytest.mark.parametrize(
    "text", ["sm_90", "sm90", "90", "9.0", "SM_90", "sm_90a", " 90a ", "sm_9.0"]
)
def test_spellings_of_an_arch(text: str) -> None:
    assert parse_arch(text) is limits((9, 0))
    assert parse_arch(text).arch == "sm_90"


@pytest.mark.parametrize("text", ["", "hopper", "sm_", "sm-90", "9.0.1", "90b", "9.10", "9" * 5000])
def test_no_arch(text: str) -> None:
    with pytest.raises(InvalidConfig, match="not an architecture"):
        parse_arch(text)


@pytest.mark.parametrize("text", ["sm_70", "7", "9.9", "sm_9000"])
def test_unknown_arch_lists_the_known(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"no limits known for sm_\d+; known: sm_80, sm_86"):
        parse_arch(text)


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "smem_bytes", "ctas"),
    [
        ("sm_90", 128, 168, 32 * KIB, 3),  # registers: 3 x 128 threads x 168 fit
        ("sm_90", 128, 169, 32 * KIB, 2),  # 169 are handed out as 176
        ("sm_90", 128, 255, 48 * KIB, 2),
        ("sm_90", 256, 255, 48 * KIB, 1),
        ("sm_90", 128, 32, 56 * KIB, 4),  # shared memory: 4 x (56 + 1) KiB = 228 KiB
        ("sm_90", 128, 32, 56 * KIB + 1, 3),
        ("sm_90", 128, 32, 227 * KIB, 1),
        ("sm_90", 128, 32, 227 * KIB + 1, 0),
        ("sm_80", 128, 168, 48 * KIB, 3),
        ("sm_86", 128, 128, 48 * KIB, 2),
        ("sm_86", 128, 128, 50 * KIB, 1),
        ("sm_90", 1024, 32, 0, 2),  # threads
        ("sm_86", 1024, 32, 0, 1),
        ("sm_90", 32, 16, 0, 32),  # CTA slots
        ("sm_86", 32, 16, 0, 16),
        ("sm_90", 33, 255, 0, 4),  # a started warp is a whole warp
        ("sm_90", 32, 200, 0, 8),  # two warps for each quarter of the registers, not ten for all
    ],
)
def test_ctas_per_sm(arch: str, threads: int, registers: int, smem_bytes: int, ctas: int) -> None:
    found = ctas_per_sm(
        parse_arch(arch), threads=threads, registers=registers, smem_bytes=smem_bytes
    )
    assert found == ctas


@given(st.integers(1, 32), st.integers(0, 254), st.integers(0, 230 * KIB))
def test_more_of_anything_never_fits_more_often(warps: int, registers: int, smem: int) -> None:
    arch = parse_arch("sm_90")
    threads = 32 * warps
    here = ctas_per_sm(arch, threads=threads, registers=registers, smem_bytes=smem)
    assert ctas_per_sm(arch, threads=threads, registers=registers + 1, smem_bytes=smem) <= here
    assert ctas_per_sm(arch, threads=threads, registers=registers, smem_bytes=smem + 1) <= here
    assert ctas_per_sm(arch, threads=threads + 32, registers=registers, smem_bytes=smem) <= here


def test_ctas_share_a_multiprocessor_less_what_the_system_takes_of_each() -> None:
    h200 = parse_arch("sm_90")
    assert h200.smem_per_cta_bytes(1) == h200.smem_per_block_bytes == 227 * 1024
    assert h200.smem_per_cta_bytes(2) == 113 * 1024
    assert h200.smem_per_cta_bytes(5) == 45568  # of 45670, whole units of 128
