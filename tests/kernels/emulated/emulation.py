"""Kernels on the host: the sources of kernels/, with tests/kernels/emulated/gpu/ in place of its
wrappers of instructions, compiled by the host's C++ compiler into a library for each variant.

Nothing is left out but the instructions themselves: the parameters, the geometry and the tensor
maps are those of a launch on a GPU.
"""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import itertools
import os
import random
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from fa_tune import families
from fa_tune.build.compile import BuildRequest
from fa_tune.core.errors import ToolMissing
from fa_tune.families import tensor_maps
from fa_tune.families.base import (
    CacheArgs,
    Config,
    LaunchArgs,
    LaunchDevice,
    LaunchStep,
    TensorArg,
)
from tests.kernels.emulated.problems import GUARD, Problem, Room, tensor_arg
from tests.project_files import ROOT

EMULATOR = ROOT / "tests" / "kernels" / "emulated" / "gpu"
COMPILERS = ("c++", "g++", "clang++")
# Unfortified, since a jump to another stack is what coroutines are made of here; variables that
# nobody has set are not 0 by chance.
OPTIONS = (
    *("-std=c++20", "-O1", "-fPIC", "-ffp-contract=off", "-w"),
    *("-U_FORTIFY_SOURCE", "-ftrivial-auto-var-init=pattern"),
)
MACHINE = ("machine", "barriers", "products")
ERROR_BYTES = 1 << 16
CLUSTERS = 2  # at a time, and of persistent CTAs in all, so that each has several tiles


@cache
def compiler() -> str | None:
    """A C++ compiler that knows C++20's template arguments and fp16, or None."""
    for name in (os.environ.get("CXX"), *COMPILERS):
        found = shutil.which(name) if name else None
        if found is None:
            continue
        probe = "struct A { int i; }; template <A a> _Float16 f() { return a.i; } int main() {}"
        command = [found, *OPTIONS, "-x", "c++", "-", "-fsyntax-only"]
        if subprocess.run(command, input=probe, text=True, capture_output=True).returncode == 0:
            return found
    return None


# --- schedules ------------------------------------------------------------------------------


class _Schedule(ctypes.Structure):
    _fields_ = (
        ("seed", ctypes.c_uint),
        ("unit", ctypes.c_uint),
        ("change", ctypes.c_double),
        ("eager", ctypes.c_double),
    )


@dataclass(frozen=True)
class Schedule:
    """In which order threads go on; see tests/kernels/emulated/gpu/machine.h.

    `unit`: 0: every lane has a priority of its own; 1, 2, 3: all of a warp, a warpgroup, a CTA
    have the same.  `change`: how often the thread that ran comes last from then on.  `eager`:
    the share of copies and wgmma that happen at once.
    """

    seed: int
    unit: int
    change: float
    eager: float


def schedules(seed: int) -> Iterator[Schedule]:
    """Without end: who has priority, how often that changes and how early things happen, at
    random."""
    dice = random.Random(seed)
    for number in itertools.count():
        yield Schedule(
            dice.randrange(2**31),
            number % 4,
            dice.choice((0.0, 0.001, 0.01, 0.1)),
            dice.choice((0.0, 0.5, 1.0)),
        )


# --- building -------------------------------------------------------------------------------


def build(
    request: BuildRequest,
    folder: Path,
    *,
    edit: Callable[[dict[str, str]], Mapping[str, str]] = lambda headers: headers,
) -> Emulated:
    """The kernel of a build, whose sources are what `edit` makes of the family's, include name to
    text; all files are written to `folder`.  Raises ValueError with the compiler's words if it
    does not compile, ToolMissing without a compiler."""
    objects = _machine()
    family = families.get(request.variant.family)
    config = family.parse(request.variant.config)
    for name, text in edit(dict(family.source_files())).items():
        # The emulator's own are found instead, but for what is no instruction.
        if not (EMULATOR / name).exists():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    kernels = [spec.name_expression for spec in family.kernels(config, request.traits)]
    entry = family.entry_source(config, request.traits)
    source, library = folder / "library.cpp", folder / "library.so"
    source.write_text(
        f'#include "language.h"\n#include "run.h"\n{entry}\n'
        + "".join(
            f"constexpr auto* kKernel{i} = &{kernel};\nEMULATOR_LIBRARY({i}, kKernel{i})\n"
            for i, kernel in enumerate(kernels)
        ),
        encoding="utf-8",
    )
    include = ["-I", str(EMULATOR), "-I", str(folder)]
    _compile(["-shared", *include, str(source), *objects, "-o", str(library)])
    return Emulated(request, library)


def build_changed(
    short_form: str, traits: str, folder: Path, file: str = "", pattern: str = "", by: str = ""
) -> Emulated:
    """The kernel of a config, where `file` is given with what `pattern` finds at one place of it
    replaced `by` other text."""

    def edited(headers: dict[str, str]) -> Mapping[str, str]:
        text, places = re.subn(pattern, by, headers[file])
        assert places == 1, f"{places} places in {file} look like {pattern!r}"
        return {**headers, file: text}

    request = BuildRequest(families.variant(families.parse(short_form)), traits, "sm_90a")
    return build(request, folder, edit=edited if file else dict)


@cache
def _machine() -> tuple[str, ...]:
    """The objects of what is the same for all kernels, made once in each process."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    objects = {name: f"{folder}/{name}.o" for name in MACHINE}
    for name, made in objects.items():
        _compile(["-O2", "-c", str(EMULATOR / f"{name}.cpp"), "-o", made])
    return tuple(objects.values())


def _compile(arguments: Sequence[str]) -> None:
    cxx = compiler()
    if cxx is None:
        raise ToolMissing("no C++ compiler that knows C++20 and fp16; name one in CXX")
    command = [cxx, *OPTIONS, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise ValueError(f"{' '.join(command)}: {done.stderr[:4000]}")


# --- launching ------------------------------------------------------------------------------


class EmulationFailed(Exception):
    """What the emulator says that a kernel did wrong."""


@dataclass(frozen=True)
class Emulated:
    """A kernel in a library of its own."""

    request: BuildRequest
    library: Path

    @property
    def config(self) -> Config:
        """The kernel's config."""
        return families.get(self.request.variant.family).parse(self.request.variant.config)

    def launch(
        self, problem: Problem, schedule: Schedule, cache: CacheArgs | None = None
    ) -> tuple[Room, np.ndarray]:
        """One call; O and the log-sum-exp, each with what surrounds it.  Raises
        EmulationFailed."""
        workload, out, lse = problem.workload, problem.out(), problem.lse()
        family, config = families.of(self.config), self.config
        device = LaunchDevice(multiprocessors=CLUSTERS, l2_bytes=1 << 20)
        scratch = np.zeros(max(1, family.scratch_bytes(config)), np.uint8)
        args = LaunchArgs.forward(
            *(tensor_arg(t) for t in (problem.q, problem.k, problem.v, out.inside)),
            lse=TensorArg(lse[GUARD:].ctypes.data),
            sink=TensorArg(problem.sink.ctypes.data),
            alibi_slopes=TensorArg(problem.slopes.ctypes.data, (workload.heads, 0, 0)),
            scratch=scratch.ctypes.data,
            cache=cache,
        )
        workspace = np.full(family.workspace_bytes(config, workload, device) + 16, 0xFF, np.uint8)
        args = dataclasses.replace(
            args, tensors={**args.tensors, **problem.more()}, workspace=workspace.ctypes.data
        )
        with _host_driver():
            steps = family.launches(config, workload, args, device)
        for number, step in enumerate(steps):
            self._run(number, step, schedule)
        if scratch.any():
            raise EmulationFailed("the scratch memory is not as it was")
        return out, lse

    def _run(self, number: int, step: LaunchStep, schedule: Schedule) -> None:
        """A launch, of the kernel of that number."""
        geometry = step.geometry
        aligned = [_aligned(value) for value in step.args]
        pointers = (ctypes.c_void_p * len(aligned))(*(a.ctypes.data for a in aligned))
        error = ctypes.create_string_buffer(ERROR_BYTES)
        getattr(ctypes.CDLL(str(self.library)), f"emulate_{number}")(
            pointers,
            (ctypes.c_uint * 3)(*geometry.grid),
            (ctypes.c_uint * 3)(*geometry.block),
            geometry.cluster[0],
            geometry.dynamic_smem_bytes,
            CLUSTERS,
            ctypes.byref(_Schedule(**dataclasses.asdict(schedule))),
            error,
            ERROR_BYTES,
        )
        if error.value:
            raise EmulationFailed(error.value.decode())


def _aligned(value: np.ndarray) -> np.ndarray:
    """The bytes of a parameter where a struct of any alignment may lie."""
    memory = np.zeros(value.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 128
    memory[start : start + value.nbytes] = np.frombuffer(value.tobytes(), np.uint8)
    return memory[start : start + value.nbytes]


class _HostDriver:
    """Writes tensor maps as tests/kernels/emulated/gpu/ptx/tma.cuh reads them."""

    def cuTensorMapEncodeTiled(
        self, memory: Any, _type: int, rank: int, address: Any, lengths: Any, strides: Any,
        box: Any, steps: Any, *modes: int,
    ) -> int:  # fmt: skip
        """As the driver's function of this name."""
        assert rank in (4, 5)
        assert set(steps) == {1}
        assert modes == (0, 3, 2, 0), "no interleave, 128-byte swizzle, L2 by 128 bytes, zeros"
        assert all(length <= 256 for length in box)
        assert not any(stride % 16 for stride in strides)
        words = np.zeros(16, np.uint64)
        words[0] = address.value
        more = 5 - rank
        words[1:6] = [*lengths, *[1] * more]
        words[6:10] = [*strides, *[0] * more]
        words[10:13] = np.array([*box, *[1] * more, 0], np.uint32).view(np.uint64)
        ctypes.memmove(memory, words.ctypes.data, 128)
        return 0


@contextmanager
def _host_driver() -> Iterator[None]:
    """Within it, tensor maps are made for the emulator."""
    with mock.patch.object(tensor_maps, "_driver", _HostDriver):
        tensor_maps._encoded.cache_clear()
        yield
    tensor_maps._encoded.cache_clear()
