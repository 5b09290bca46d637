"""The exported library: a CMake project of the C++ core and kernels, in a folder of its own.

select ─ which kernels ─→ build ─ cubins ─→ texts and images ─→ the folder, whole or not at all
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fa_tune
from fa_tune import families
from fa_tune.build import nvrtc
from fa_tune.build.cache import ArtifactStore, source_sha256
from fa_tune.build.compile import build, build_ptx, kernel_source_sha256
from fa_tune.build.native.abi import ABI_VERSION
from fa_tune.build.native.core import KernelImage
from fa_tune.build.native.sources import core_sources
from fa_tune.core import paths
from fa_tune.core.errors import NoUsableVariant, StorageError, ToolMissing
from fa_tune.core.files import check_writable, storage_errors
from fa_tune.core.model import Variant
from fa_tune.core.options import MachineOptions, Progress
from fa_tune.core.workload import BACKWARD, DType, Workload
from fa_tune.export import table_source as source
from fa_tune.export.selection import PTX_ARCH, ExportOptions, Selection, kernel_computes, select
from fa_tune.export.sizes import SizedDefault, as_number, nearest
from fa_tune.families.plan import Portability, compiled_for
from fa_tune.operations.backward.spec import forward_of
from fa_tune.store.registry import file as registry_file
from fa_tune.store.registry.between import by_room
from fa_tune.store.registry.lookup import Target, matches, near_enough
from fa_tune.store.registry.schema import Entry, Registry, to_json

SCHEMA = "fa-tune-export-1"
MANIFEST = "MANIFEST.json"
UNTUNED = "a GPU that nobody tuned"  # in the library's own tests
_HEADERS = ("fa_tune.h", "fa_tune.hpp", "fa_tune_types.h")  # of the core, that programs include


@dataclass(frozen=True)
class ExportedKernel:
    """A kernel of the library: `arch` as it was compiled for, `file` within the folder."""

    variant: Variant
    traits: str
    arch: str
    file: str
    image: KernelImage


@dataclass(frozen=True)
class Export:
    """What was exported; `left_out` has a sentence for each thing that was not."""

    folder: Path
    kernels: tuple[ExportedKernel, ...]
    entries: tuple[Entry, ...]
    defaults: tuple[str, ...]
    sized: tuple[SizedDefault, ...]
    left_out: tuple[str, ...]
    nvrtc: str


def export(
    folder: Path, options: ExportOptions, machine: MachineOptions, progress: Progress
) -> Export:
    """Write the project to `folder`, which is new, empty or an earlier export that is replaced.

    `machine` says where compiled kernels are kept and how they are compiled; no GPU is needed.
    Raises StorageError, RegistryError, ToolMissing without NVRTC, and what `select` raises.
    """
    _check_folder(folder)
    selected = select(registry_file.load(options.registry), options)
    made = _compiled(folder, selected, machine, progress)
    texts = _texts(made)
    _write(folder, texts, {kernel.file: kernel.image.image for kernel in made.kernels})
    return made


def choose(made: Export, gpu: str, capability: int, workload: Workload) -> str | None:
    """The config that the library is to run a workload with on a GPU, whose compute capability is
    ten times the major version and the minor; None if nothing computes it."""
    workload = by_room(workload)
    able = {
        kernel.variant.key
        for kernel in made.kernels
        if kernel_computes(families.config_of(kernel.variant), kernel.traits, workload)
        and _runs_on(kernel.arch, capability)
    }
    found = matches(Registry.of(made.entries), Target(gpu), workload)
    near = near_enough(found, workload)
    last = [match for match in found if match not in near]
    entries, others = ([match.entry.chosen.key for match in some] for some in (near, last))
    defaults = [name for name in made.defaults if _suits(name, workload)]
    sized = nearest(made.sized, workload, capability)
    return next((name for name in (*entries, *sized, *defaults, *others) if name in able), None)


def _suits(name: str, workload: Workload) -> bool:
    """Whether a default of this name is for such a workload."""
    config = families.config_of(Variant.from_key(name))
    return families.of(config).suits(workload, config)


def _runs_on(arch: str, capability: int) -> bool:
    least, portability = compiled_for(arch)
    if portability is Portability.EXACT:
        return capability == least
    if portability is Portability.MINOR and capability // 10 != least // 10:
        return False
    return capability >= least


# Compiling ----------------------------------------------------------------------------------


def _compiled(
    folder: Path, selected: Selection, machine: MachineOptions, progress: Progress
) -> Export:
    left_out = list(selected.left_out)
    progress.stage("compile", len(selected.kernels) + len(selected.ptx))
    results = build(
        selected.kernels,
        ArtifactStore(machine.cache_dir, warn=progress.warn),
        jobs=machine.jobs,
        timeout_s=machine.compile_timeout_s,
        on_result=lambda result: progress.advance(result.request.variant.config),
    )
    kernels: list[ExportedKernel] = []
    for result in results:
        if (artifact := result.artifact) is None:
            about = f"{result.request.variant.config}, {result.request.traits}"
            left_out.append(f"{about}: {result.outcome.replace('_', ' ')}: {result.reason}")
            continue
        file = f"images/{len(kernels)}.cubin"
        image = KernelImage.of(artifact)
        kernels.append(
            ExportedKernel(artifact.variant, artifact.traits, artifact.arch, file, image)
        )
    for variant, traits in selected.ptx:
        symbols, text = build_ptx(variant, traits, PTX_ARCH)
        config = families.config_of(variant)
        plan = families.of(config).plan(config, traits, PTX_ARCH)
        image = KernelImage(variant.key, plan, symbols, text)
        file = f"images/{len(kernels)}.ptx"
        kernels.append(ExportedKernel(variant, traits, PTX_ARCH, file, image))
        progress.advance(variant.config)
    there = {kernel.variant.key for kernel in kernels}
    if not there:
        raise NoUsableVariant("; ".join(["nothing was compiled", *left_out]))
    return Export(
        folder=folder,
        kernels=tuple(kernels),
        entries=tuple(e for e in selected.entries if e.chosen.key in there),
        defaults=tuple(v.key for v in selected.defaults if v.key in there),
        sized=tuple(d for d in selected.sized if d.key in there),
        left_out=tuple(dict.fromkeys(left_out)),
        nvrtc=nvrtc.version(),
    )


# Texts --------------------------------------------------------------------------------------


def _texts(made: Export) -> dict[str, str]:
    """File name -> text of everything but the images."""
    core = core_sources()
    texts = {
        f"include/fa_tune/{name}" if name in _HEADERS else f"src/{name}": text
        for name, text in core.items()
    }
    texts |= _fixed()
    texts |= {f"include/fa_tune/{name}": text for name, text in source.config_headers().items()}
    variants = [kernel.variant for kernel in made.kernels]
    images = [kernel.image for kernel in made.kernels]
    gpus = _gpus(made)
    choices = list(_choices(made, gpus))
    manifest = _manifest(made, core)
    name = _name(manifest)
    texts["include/fa_tune/export.h"] = source.export_header(name)
    texts["include/fa_tune/flash_kernels.cuh"] = source.flash_kernels(variants)
    texts["src/exported_table.h"] = source.table_header(
        name, images, made.entries, made.defaults, made.sized
    )
    files = [Path(kernel.file).name for kernel in made.kernels]
    texts["src/images.S"] = source.image_symbols(name, files)
    texts["tests/choices.h"] = source.choices_header(gpus, choices)
    texts["cmake/exported.cmake"] = _cmake(made, name, len(gpus))
    manifest["files"] = {name: _sha256(text.encode()) for name, text in texts.items()}
    texts[MANIFEST] = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    return texts


def _name(manifest: Mapping[str, Any]) -> str:
    """A name for what an export has, whatever bytes a compiler makes of it."""
    kernels = [{**kernel, "sha256": ""} for kernel in manifest["kernels"]]
    return _sha256(json.dumps({**manifest, "kernels": kernels}).encode())[:12]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _fixed() -> dict[str, str]:
    """What every export has alike: csrc/export, and the stub of the driver for its tests."""
    own, stub = paths.csrc_dir() / "export", paths.csrc_dir() / "stub"
    named = {str(p.relative_to(own)): p for p in sorted(own.rglob("*")) if p.is_file()}
    named |= {f"tests/{path.name}": path for path in sorted(stub.iterdir())}
    try:
        return {
            re.sub("^include/", "include/fa_tune/", name): path.read_text(encoding="utf-8")
            for name, path in named.items()
        }
    except OSError as error:
        raise ToolMissing(
            f"the source {error.filename} of exports cannot be read: {error.strerror}"
        ) from None


def _gpus(made: Export) -> list[tuple[str, int]]:
    """GPUs to try the library's choice for: those of the entries, and unknown ones."""
    tuned = {(e.gpu.name, as_number(e.gpu.compute_capability)) for e in made.entries}
    untuned = {(UNTUNED, compiled_for(kernel.arch)[0]) for kernel in made.kernels}
    return [*sorted(tuned), *sorted(untuned)]


def _choices(made: Export, gpus: Sequence[tuple[str, int]]) -> Iterator[source.Choice]:
    """Each entry's workload, and one of each kind that is small and odd, on every GPU."""
    workloads = dict.fromkeys([e.workload for e in made.entries])
    workloads |= dict.fromkeys(_kinds(made))
    for place, (gpu, capability) in enumerate(gpus, start=1):
        for workload in workloads:
            config = choose(made, gpu, capability, workload)
            if config is not None:
                yield source.Choice(place, workload, config)


def _kinds(made: Export) -> Iterator[Workload]:
    """Small workloads of each kind, of few queries and of more, that some kernel computes whatever
    the lengths are; a backward pass only with the forward pass before it."""
    configs = [families.config_of(kernel.variant) for kernel in made.kernels]
    kinds = sorted({families.kind_of(c) for c in configs})
    for dtype, d_head, d_v, op in kinds:
        for n_queries, causal in itertools.product((300, 3), (False, True)):
            shape = (2, 4, 2, n_queries, 413, d_head, DType(dtype))
            workload = Workload(*shape, causal=causal, bottom_right=causal, d_head_v=d_v, op=op)
            needed = {workload, forward_of(workload)} if op == BACKWARD else {workload}
            if all(
                any(
                    kernel_computes(config, kernel.traits, one)
                    for config, kernel in zip(configs, made.kernels, strict=True)
                )
                for one in needed
            ):
                yield workload


def _cmake(made: Export, name: str, gpus: int) -> str:
    files = "".join(f"    ${{CMAKE_CURRENT_LIST_DIR}}/../{k.file}\n" for k in made.kernels)
    problems = "".join(f"    {workload.key}\n" for workload in _kinds(made))
    return (
        "# Generated by `fa-tune export`.\n"
        f"set(FA_TUNE_VERSION {_numeric_version()})\n"
        f"set(FA_TUNE_EXPORT {name})\n"
        f"set(FA_TUNE_IMAGES\n{files})\n"
        "# What the examples compute as tests.\n"
        f"set(FA_TUNE_EXAMPLE_PROBLEMS\n{problems})\n"
        "# Of tests/choices.h.\n"
        f"set(FA_TUNE_GPUS {gpus})\n"
    )


def _numeric_version() -> str:
    found = re.match(r"\d+(\.\d+)*(?![^.])", fa_tune.__version__)
    return found[0] if found else "0"


def _manifest(made: Export, core: Mapping[str, str]) -> dict[str, Any]:
    names = sorted({kernel.variant.family for kernel in made.kernels})
    return {
        "schema": SCHEMA,
        "fa_tune": fa_tune.__version__,
        "abi": ABI_VERSION,
        "nvrtc": made.nvrtc,
        "sources_sha256": {
            "core": source_sha256(core),
            **{name: kernel_source_sha256(name) for name in names},
        },
        "kernels": [
            {
                "config": kernel.variant.key,
                "traits": kernel.traits,
                "arch": kernel.arch,
                "file": kernel.file,
                "sha256": _sha256(kernel.image.image),
                "symbols": list(kernel.image.symbols),
            }
            for kernel in made.kernels
        ],
        "defaults": list(made.defaults),
        "sized_defaults": [
            {
                "compute_capability": d.compute_capability,
                "workload": d.workload.key,
                "config": d.key,
            }
            for d in made.sized
        ],
        "entries": json.loads(to_json(Registry.of(made.entries)))["entries"],
        "left_out": list(made.left_out),
    }


# The folder ---------------------------------------------------------------------------------


def _check_folder(folder: Path) -> None:
    """Refuse to replace what is no export, and a place that cannot be written."""
    with storage_errors(f"cannot read {folder}"):
        used = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    if used and _read_manifest(folder) is None:
        raise StorageError(
            f"{folder} is there and no earlier export; name a folder that is new or empty"
        )
    check_writable(folder, "name another folder", replaced=True)


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of an export; None where there is none."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    ours = isinstance(manifest, dict) and str(manifest.get("schema", "")).startswith(
        SCHEMA.rpartition("-")[0]
    )
    return manifest if ours else None


def _write(folder: Path, texts: Mapping[str, str], images: Mapping[str, bytes]) -> None:
    """Put it beside `folder`, then in its place, with all that is no export's; a link stays a
    link."""
    folder = folder.resolve()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _recover(folder)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
            fresh, old = Path(temporary, "new"), Path(temporary, "old")
            for name, data in {**{n: t.encode() for n, t in texts.items()}, **images}.items():
                _place(fresh, name).write_bytes(data)
            if not folder.exists():
                fresh.rename(folder)
                return
            _keep_others(folder, fresh)
            if not _exchanged(fresh, folder):
                _rename_both(folder, old, fresh)
    except OSError as error:
        raise StorageError(f"cannot write {error.filename or folder}: {error.strerror}") from error


def _keep_others(folder: Path, fresh: Path) -> None:
    """Bring what an earlier export did not write to the fresh one.  Raises StorageError for what
    would be in its place."""
    manifest = _read_manifest(folder) or {}
    own = {kernel["file"]: kernel["sha256"] for kernel in manifest.get("kernels", ())}
    own |= manifest.get("files", {})
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            continue
        data = b"" if path.is_symlink() else path.read_bytes()
        if name == MANIFEST or own.get(name) == _sha256(data):
            continue
        target = _place(fresh, name)
        if not target.exists():
            shutil.copy2(path, target, follow_symlinks=False)
        elif "files" in manifest and data != target.read_bytes():
            raise StorageError(
                f"{path} is not as it was exported; move it away, or name another folder"
            )


def _exchanged(one: Path, other: Path) -> bool:
    """Whether two folders have changed places, in one step of the kernel's."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(renameat2(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)


def _rename_both(folder: Path, old: Path, fresh: Path) -> None:
    """For file systems that exchange nothing: killed in between, `_recover` goes back."""
    folder.rename(old)
    try:
        fresh.rename(folder)
    except BaseException:
        old.rename(folder)
        raise


def _recover(folder: Path) -> None:
    """Put back the earlier export that a killed one had moved away."""
    if not folder.exists():
        for left in sorted(folder.parent.glob(f".{folder.name}.*/old")):
            left.rename(folder)
            return


def _place(root: Path, name: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
