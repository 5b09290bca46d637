"""Per-architecture limits that decide what fits, without asking a device.

Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
Sizes are bytes, counts are per multiprocessor unless the name says otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.roofline import ROOFS

KIB = 1024
DEFAULT_ARCH = "sm_90"  # where none is named and there is no GPU


@dataclass(frozen=True)
class ArchLimits:
    """Limits of one compute capability.  `smem_reserved_bytes` is what the system takes
    from every resident CTA; registers are handed out per warp in units of 256; a device of it has
    about so many `multiprocessors`, each with as many `cores` as NVML counts, and memory that moves
    `memory_bytes_per_ns`, as its maker states; None: not known."""

    compute_capability: tuple[int, int]
    smem_per_sm_bytes: int
    smem_per_block_bytes: int
    max_threads_per_sm: int
    max_ctas_per_sm: int
    multiprocessors: int
    registers_per_sm: int = 65536
    smem_reserved_bytes: int = 1024
    cores: int = 128
    memory_bytes_per_ns: float | None = None

    @property
    def arch(self) -> str:
        """`sm_90`."""
        return "sm_{}{}".format(*self.compute_capability)

    def smem_per_cta_bytes(self, ctas: int) -> int:
        """What a CTA may have, static and dynamic, where a multiprocessor is to hold so many."""
        share = self.smem_per_sm_bytes // ctas - self.smem_reserved_bytes
        return min(self.smem_per_block_bytes, share // 128 * 128)


_LIMITS = {
    a.compute_capability: a
    for a in (
        ArchLimits((8, 0), 164 * KIB, 163 * KIB, 2048, 32, 108, cores=64),
        ArchLimits((8, 6), 100 * KIB, 99 * KIB, 1536, 16, 84),
        ArchLimits((8, 7), 164 * KIB, 163 * KIB, 1536, 16, 16),
        ArchLimits((8, 9), 100 * KIB, 99 * KIB, 1536, 24, 142),
        ArchLimits((9, 0), 228 * KIB, 227 * KIB, 2048, 32, 132),
        ArchLimits((10, 0), 228 * KIB, 227 * KIB, 2048, 32, 148),
        ArchLimits((10, 3), 228 * KIB, 227 * KIB, 2048, 32, 148),
        ArchLimits((11, 0), 228 * KIB, 227 * KIB, 1536, 24, 20),
        ArchLimits((12, 0), 100 * KIB, 99 * KIB, 1536, 24, 188),
        ArchLimits((12, 1), 100 * KIB, 99 * KIB, 1536, 24, 48),
    )
}


def limits(
    compute_capability: tuple[int, int], *, multiprocessors: int | None = None, gpu: str = ""
) -> ArchLimits:
    """The limits of a compute capability, and of the device at hand what is known: how many
    multiprocessors it has, and its memory's speed by its model, as its driver spells that; raises
    InvalidConfig for a compute capability that is not in the table."""
    try:
        found = _LIMITS[compute_capability]
    except KeyError:
        known = ", ".join(a.arch for a in _LIMITS.values())
        raise InvalidConfig(
            "no limits known for sm_{}{}; known: {}".format(*compute_capability, known)
        ) from None
    if gpu in ROOFS:
        found = replace(found, memory_bytes_per_ns=ROOFS[gpu].bytes_per_s * 1e-9)
    return found if multiprocessors is None else replace(found, multiprocessors=multiprocessors)


def parse_arch(text: str) -> ArchLimits:
    """Limits for `sm_90`, `sm_90a`, `90` or `9.0`; raises InvalidConfig."""
    m = re.fullmatch(r"(?:sm_?)?([0-9]{1,4})(?:\.([0-9]))?[af]?", text.strip().lower())
    if m is None:
        raise InvalidConfig(f"not an architecture: {text!r}; write it like sm_90")
    digits, minor = m.groups()
    if minor is None:
        digits, minor = digits[:-1], digits[-1]
    return limits((int(digits or 0), int(minor)))


def smallest_served(arch: ArchLimits) -> ArchLimits:
    """Of the devices that run a cubin for `arch`, which are itself and those of its major version
    and a higher minor one, that with the least shared memory for a CTA."""
    major, _ = arch.compute_capability
    later = [a for key, a in _LIMITS.items() if key[0] == major and key > arch.compute_capability]
    return min([arch, *later], key=lambda a: (a.smem_per_block_bytes, a.compute_capability))


def ctas_per_sm(arch: ArchLimits, *, threads: int, registers: int, smem_bytes: int) -> int:
    """Resident CTAs per multiprocessor: the least of what threads, registers, shared memory
    and the CTA slots allow.  `smem_bytes` is static plus dynamic, per CTA; 0 = cannot run."""
    warps = -(-threads // 32)
    registers_per_warp = -(-registers * 32 // 256) * 256
    smem = -(-(smem_bytes + arch.smem_reserved_bytes) // 128) * 128
    # A quarter of the register file serves a quarter of the warps.
    warps_by_registers = 4 * (arch.registers_per_sm // 4 // registers_per_warp) if registers else 64
    return min(
        arch.max_ctas_per_sm,
        arch.max_threads_per_sm // (warps * 32),
        warps_by_registers // warps,
        arch.smem_per_sm_bytes // smem if smem_bytes <= arch.smem_per_block_bytes else 0,
    )
