"""Kernels on the host: the sources of kernels/, with tests/kernels/emulated/gpu/ in place of its
wrappers of instructions, compiled by the host's C++ compiler into a library for each variant.

Nothing is left out but the instructions themselves: the parameters, the geometry and the tensor
maps are what the core describes of a launch on a GPU.
"""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from filelock import FileLock

from fa_tune import families
from fa_tune.build.compile import BuildRequest
from fa_tune.build.native import abi
from fa_tune.build.native.call import problem_for, tensors_by_role
from fa_tune.core.errors import ToolMissing
from fa_tune.families.base import Config
from fa_tune.families.decode.config import Combine
from tests.described import Description, DeviceFacts, core, describe, unloaded
from tests.kernels.emulated.cached_problems import CacheInputs
from tests.kernels.emulated.problems import GUARD, Problem, Room, tensor_arg
from tests.project_files import ROOT

EMULATOR = ROOT / "tests" / "kernels" / "emulated" / "gpu"
COMPILERS = ("c++", "g++", "clang++")
# Unfortified, since a jump to another stack is what coroutines are made of here; variables that
# nobody has set are not 0 by chance.
OPTIONS = (
    *("-std=c++20", "-O1", "-march=native", "-fPIC", "-ffp-contract=off", "-w"),
    *("-U_FORTIFY_SOURCE", "-ftrivial-auto-var-init=pattern"),
)
MACHINE = ("machine", "barriers", "products")
HEADER = '#include "language.h"\n#include "run.h"\n'
ERROR_BYTES = 1 << 16
PANEL_COLUMNS = 64  # of a box
# Of what a launch is given, beside Q, K and V.
KNOWN_ON_DEVICE = ("cache_seqlens", "page_table", "k_scale", "v_scale")
CLUSTERS = 2  # at a time
WAITING = 8  # of CTAs that wait for one another
FEW = (("kFew", 0), ("kWorth", 6))  # for them: quads of parts
# As many persistent CTAs, so that each has several tiles.
DEVICE = DeviceFacts(multiprocessors=CLUSTERS, l2_bytes=1 << 20)


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


class _Region(ctypes.Structure):
    _fields_ = (
        ("at", ctypes.c_void_p),
        ("content", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
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
    text.  `folder`, of one run, keeps what is compiled: the same sources are not compiled again,
    in other processes neither.  Raises ValueError with the compiler's words if they do not compile,
    ToolMissing without a compiler."""
    family = families.get(request.variant.family)
    config = family.parse(request.variant.config)
    kernels = family.name_expressions(config, request.traits)
    headers = edit(combining(dict(family.source_files()), config))
    library = library_of(headers, family.entry_source(config, request.traits), kernels, folder)
    return Emulated(request, library)


def library_of(
    headers: Mapping[str, str], source: str, kernels: Sequence[str], folder: Path
) -> Path:
    """A library of the kernels that a source, with these headers, instantiates by their names.
    Raises as `build`."""
    machine = _machine(folder)
    # The emulator's own are found instead, but for what is no instruction.
    sources = {name: text for name, text in headers.items() if not (EMULATOR / name).exists()}
    sources["library.cpp"] = f"{source}\n" + "".join(
        f"constexpr auto* kKernel{i} = &{kernel};\nEMULATOR_LIBRARY({i}, kKernel{i})\n"
        for i, kernel in enumerate(kernels)
    )
    digest = hashlib.sha256(json.dumps(sources, sort_keys=True).encode()).hexdigest()
    own = folder / digest[:32]

    def make(library: Path) -> None:
        for name, text in sources.items():
            (own / name).parent.mkdir(parents=True, exist_ok=True)
            (own / name).write_text(text, encoding="utf-8")
        include = (*machine.header, "-I", str(own))
        _compile(["-shared", *include, str(own / "library.cpp"), *machine.objects], library)

    return _once(own / "library.so", make)


def build_changed(
    short_form: str,
    traits: str,
    folder: Path,
    file: str = "",
    pattern: str = "",
    by: str = "",
    *,
    places: int = 1,
) -> Emulated:
    """The kernel of a config, where `file` is given with what `pattern` finds at so many places of
    it replaced `by` other text."""

    def edited(headers: dict[str, str]) -> dict[str, str]:
        return replaced(headers, file, pattern, by, places)

    request = BuildRequest(families.variant(families.parse(short_form)), traits, "sm_90a")
    return build(request, folder, edit=edited if file else dict)


def replaced(
    headers: dict[str, str], file: str, pattern: str, by: str, places: int = 1
) -> dict[str, str]:
    """Headers with other text in so many places of one of them."""
    text, found = re.subn(pattern, by, headers[file])
    assert found == places, f"{found} places in {file} look like {pattern!r}"
    return {**headers, file: text}


def combining(headers: dict[str, str], config: Config) -> dict[str, str]:
    """Whose CTAs combine parts together, if they can, however few these are."""
    if waits(config):
        for name, number in FEW:
            headers = replaced(
                headers, "decode/together.cuh", rf"{name} = \d+", f"{name} = {number}"
            )
    return headers


def waits(config: Config) -> bool:
    """Whether CTAs of a kernel wait for one another."""
    return getattr(config, "combine", None) is Combine.ALL


@dataclass(frozen=True)
class _Machine:
    """What is the same for all kernels, as arguments of the compiler."""

    header: tuple[str, ...]
    objects: tuple[str, ...]


@cache
def _machine(folder: Path) -> _Machine:
    include = ("-I", str(EMULATOR))
    header = _once(folder / "emulator.h", lambda file: file.write_text(HEADER, encoding="utf-8"))
    # Most of what a kernel would be compiled for is in it: the standard library's headers.
    ahead = (*include, "-x", "c++-header", str(header))
    _once(folder / "emulator.h.gch", lambda file: _compile(ahead, file))
    objects = [
        _once(folder / f"{name}.o", partial(_compile, ["-O2", "-c", str(EMULATOR / f"{name}.cpp")]))
        for name in MACHINE
    ]
    return _Machine(("-include", str(header), *include), tuple(map(str, objects)))


def _once(file: Path, make: Callable[[Path], object]) -> Path:
    """A file that the first process that wants it makes, and the others wait for."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_name(f"{file.name}.lock")):
            if not file.exists():
                new = file.with_name(f"{file.name}.new")
                make(new)
                new.replace(file)
    return file


def _compile(arguments: Sequence[str], out: Path) -> None:
    cxx = compiler()
    if cxx is None:
        raise ToolMissing("no C++ compiler that knows C++20 and fp16; name one in CXX")
    command = [cxx, *OPTIONS, *arguments, "-o", str(out)]
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
        self,
        problem: Problem,
        schedule: Schedule,
        cache: CacheInputs | None = None,
        *,
        device: DeviceFacts = DEVICE,
    ) -> tuple[Room, np.ndarray]:
        """One call; O and the log-sum-exp, each with what surrounds it.  `device`: what the host
        counts on; CLUSTERS run at a time.  Raises EmulationFailed."""
        out, lse = problem.out(), problem.lse()
        call = families.of(self.config).plan(self.config, self.request.traits, self.request.arch)
        kernel = unloaded(core(), self.request.variant.key, call)
        named = problem.tensors() | {"o": out.inside, "lse": lse[GUARD:]}
        if cache is not None:
            named |= cache.tensors()
        bytes_ = ("k", "v", "new_k", "new_v") if problem.workload.kv_e4m3 else ()
        tensors = tensors_by_role(
            {
                name: tensor_arg(array.view(np.uint8) if name in bytes_ else array)
                for name, array in named.items()
            },
            added=cache.added if cache else 0,
            page_size=cache.page_size if cache else 0,
        )
        scratch = Guarded.of(max(launch.counter_bytes for launch in call.launches), 0)
        device = dataclasses.replace(device, counters=scratch.inside.ctypes.data)
        wanted = problem_for(call.plan, problem.workload)
        n_bytes = describe(kernel, wanted, tensors, device).workspace_bytes
        workspace = Guarded.of(n_bytes, 0xFF)
        tensors.workspace = workspace.inside.ctypes.data if n_bytes else 0
        written = [out.whole, lse, scratch.whole, workspace.whole]
        inputs = [_memory_of(t) for t in (problem.q, problem.k, problem.v)]
        read = inputs[:1] if cache is not None and cache.new else inputs
        before = [zlib.crc32(t) for t in read]
        hidden = [*written, *inputs, *(named[name] for name in KNOWN_ON_DEVICE if name in named)]
        for number in range(len(call.launches)):
            step = describe(kernel, wanted, tensors, device, number)
            self._run(number, step, schedule, hidden if step.dependent else [])
        if scratch.inside.any():
            raise EmulationFailed("the scratch memory is not as it was")
        if not (scratch.is_clean_outside() and workspace.is_clean_outside()):
            raise EmulationFailed("it wrote beside the scratch memory or the workspace")
        if before != [zlib.crc32(t) for t in read]:
            raise EmulationFailed("it wrote to its inputs")
        return out, lse

    def _run(
        self, number: int, step: Description, schedule: Schedule, hidden: Sequence[np.ndarray]
    ) -> None:
        """A launch, of the kernel of that number.  What is `hidden` it finds when it has waited for
        the launches before it."""
        shape = Shape(
            *(step.grid, step.block, step.shared_bytes),
            resident=WAITING if waits(self.config) else CLUSTERS,
            cluster=step.cluster[0],
        )
        parameters = [*map(map_bytes, step.maps), step.params]
        emulate(self.library, number, shape, parameters, schedule, hidden)


@dataclass(frozen=True)
class Shape:
    """Of a launch; `resident`: clusters at a time."""

    grid: Sequence[int]
    block: Sequence[int]
    shared_bytes: int
    resident: int = CLUSTERS
    cluster: int = 1


def emulate(
    library: Path,
    number: int,
    shape: Shape,
    parameters: Sequence[bytes],
    schedule: Schedule,
    hidden: Sequence[np.ndarray] = (),
) -> None:
    """A launch of a library's kernel of that number.  What is `hidden` it finds when it has waited
    for the launches before it.  Raises EmulationFailed."""
    aligned = [_aligned(value) for value in parameters]
    pointers = (ctypes.c_void_p * len(aligned))(*(a.ctypes.data for a in aligned))
    error = ctypes.create_string_buffer(ERROR_BYTES)
    contents = [array.copy() for array in hidden]
    regions = (_Region * len(hidden))(
        *(
            _Region(array.ctypes.data, content.ctypes.data, array.nbytes)
            for array, content in zip(hidden, contents, strict=True)
        )
    )
    for array in hidden:
        array.view(np.uint8).fill(0xFF)
    getattr(ctypes.CDLL(str(library)), f"emulate_{number}")(
        pointers,
        (ctypes.c_uint * 3)(*shape.grid),
        (ctypes.c_uint * 3)(*shape.block),
        shape.cluster,
        shape.shared_bytes,
        shape.resident,
        regions,
        len(regions),
        ctypes.byref(_Schedule(**dataclasses.asdict(schedule))),
        error,
        ERROR_BYTES,
    )
    if error.value:
        raise EmulationFailed(error.value.decode())


@dataclass(frozen=True)
class Guarded:
    """Memory with guards before and behind, bytes of PATTERN."""

    whole: np.ndarray
    inside: np.ndarray

    PATTERN: ClassVar[int] = 0xA5
    BYTES: ClassVar[int] = 256

    @classmethod
    def of(cls, count: int, fill: int) -> Guarded:
        """So many bytes from a multiple of 16 on."""
        whole = np.full(count + 2 * cls.BYTES + 16, cls.PATTERN, np.uint8)
        start = cls.BYTES + -(whole.ctypes.data + cls.BYTES) % 16
        inside = whole[start : start + count]
        inside.fill(fill)
        return cls(whole, inside)

    def is_clean_outside(self) -> bool:
        """Whether the guards are as they were."""
        start = self.inside.ctypes.data - self.whole.ctypes.data
        around = np.r_[self.whole[:start], self.whole[start + self.inside.nbytes :]]
        return bool((around == self.PATTERN).all())


def _memory_of(tensor: np.ndarray) -> np.ndarray:
    """All of the memory of which a tensor is a view."""
    while isinstance(tensor.base, np.ndarray):
        tensor = tensor.base
    return tensor


def _aligned(value: bytes) -> np.ndarray:
    """The bytes of a parameter where a struct of any alignment may lie."""
    memory = np.zeros(len(value) + 128, np.uint8)
    start = -memory.ctypes.data % 128
    memory[start : start + len(value)] = np.frombuffer(value, np.uint8)
    return memory[start : start + len(value)]


def map_bytes(tensor: abi.TensorMap) -> bytes:
    """A tensor map as tests/kernels/emulated/gpu/ptx/tma.cuh reads it."""
    rank = tensor.rank
    box = (PANEL_COLUMNS, tensor.box_rows, *[1] * (rank - 2))
    assert rank in (4, 5)
    assert all(length <= 256 for length in box)
    assert not any(stride % 16 for stride in tensor.strides)
    words, more = np.zeros(16, np.uint64), [1] * (5 - rank)
    words[0] = tensor.address
    words[1:6] = [*tensor.dimensions[:rank], *more]
    words[6:10] = tensor.strides
    words[10:13] = np.array([*box, *more, 0], np.uint32).view(np.uint64)
    return words.tobytes()
