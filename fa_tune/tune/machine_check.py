"""Is everything here that the commands need?"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from importlib import metadata
from pathlib import Path

from fa_tune import families
from fa_tune.build import nvrtc
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.native.library import core_library
from fa_tune.core import devices
from fa_tune.core import paths as locations
from fa_tune.core.devices import cuda_driver_version, pinned_to
from fa_tune.core.errors import FaTuneError, NoUsableVariant, StorageError
from fa_tune.core.files import check_folder, storage_errors
from fa_tune.core.jobs import MAKE_CONTEXT
from fa_tune.core.model import Artifact, Outcome, Variant
from fa_tune.core.options import MachineOptions, Progress, Silent
from fa_tune.core.paths import default_cache_dir
from fa_tune.core.workload import DType, Workload
from fa_tune.profile.base import MeasurePlan
from fa_tune.profile.events import EventsProfiler
from fa_tune.profile.ncu.profiler import NcuProfiler, ncu_profiler
from fa_tune.store import recordings
from fa_tune.store.journal import Journal
from fa_tune.store.registry import file as registry_file
from fa_tune.store.shared_files import check_lockable
from fa_tune.tune.build import build_all, build_request
from fa_tune.tune.outputs import registry_path
from fa_tune.tune.results import Check
from fa_tune.tune.session import JOURNAL, Machine, open_machine
from fa_tune.workers.prefork import get_ready

TINY = Workload(1, 1, 1, 128, 128, 64, DType.FP16)


def doctor(machine: MachineOptions, progress: Progress) -> tuple[Check, ...]:
    """Look at Python, NVRTC, driver, GPU, ncu and its permission (profiles one small kernel),
    torch and CuPy, the cache and registry folders, and what registry, journal, cache and recordings
    hold."""
    checks = [Check("Python", True, sys.version.split()[0])]
    cache_dir = machine.cache_dir or default_cache_dir()
    here: Machine | None = None

    def look(name: str, action: Callable[[], str], fix: str = "", needed: bool = True) -> None:
        progress.advance(name)
        try:
            with storage_errors("cannot be used"):
                checks.append(Check(name, True, action()))
        except FaTuneError as error:
            detail = str(error).removesuffix(f"; {fix}")  # which is told behind it
            checks.append(Check(name, False if needed else None, detail, fix or None))

    progress.stage("doctor", 12)
    look("compiler", lambda: f"NVRTC {nvrtc.version()}", nvrtc.INSTALL)
    try:
        here = open_machine(machine, progress)
    except FaTuneError as error:
        checks.append(Check("GPU", False, str(error)))
    else:
        checks.append(_gpu(here))
        checks += _gpus()
    gpu = here is not None and here.device is not None
    with ThreadPoolExecutor() as pool:  # other processes do the work of what is begun here
        if gpu and here is not None:
            launcher = pool.submit(core_library)
            kernels = pool.submit(_small_kernels, here)
            get_ready(MAKE_CONTEXT, pinned_to(here.gpu_uuid), here.options.device)
            events, ncu = (  # each by the worker that waits for it
                pool.submit(copy_context().run, _measure, here, profiler, kernels.result)
                for profiler in (EventsProfiler, partial(ncu_profiler, ncu=machine.ncu))
            )
        look(
            "cache folder", lambda: _writable(cache_dir, "journal"), "name another with --cache-dir"
        )
        look(
            "registry folder",
            lambda: _writable(registry_path(None).parent, "registry"),
            "name another file with FA_TUNE_REGISTRY, or with --registry of search",
        )
        look("registry", _registry, "fix or move the file; fa-tune search makes a new one")
        look(
            "journal",
            lambda: _journal(cache_dir / JOURNAL),
            "fix or move the file; its results are measured again",
        )
        look(
            "cache",
            lambda: _cache(ArtifactStore(cache_dir)),
            "name another folder with --cache-dir",
        )
        look(
            "recordings",
            lambda: _recordings(machine),
            "repair or remove the file, or name other recordings with --recordings",
            needed=not gpu,  # then nothing else can be searched
        )
        for package, why in (("torch", "reference kernels"), ("cupy", "loading kernels")):
            checks.append(_package(package, why, needed=gpu))
        if gpu:
            look("launcher", lambda: str(launcher.result()), "install one, or name it in CXX")
            look("compile and run", events.result)
            look("ncu", ncu.result, "search falls back to --profiler events")
        else:
            checks.append(Check("ncu", None, "not tried without a GPU"))
    return tuple(checks)


def _gpu(machine: Machine) -> Check:
    device = machine.device
    if device is None:
        text = f"none found; search replays recordings, build compiles for {machine.arch}"
        return Check("GPU", None, text)
    cc = "{}.{}".format(*device.compute_capability)
    driver = f"driver {device.driver} (CUDA {cuda_driver_version()})"
    return Check("GPU", True, f"{device.name}, compute capability {cc}, {driver}")


def _gpus() -> list[Check]:
    """Every GPU of a machine that shows several, by the number that --devices takes."""
    try:
        found = devices.visible_devices()
    except FaTuneError as error:
        return [Check("GPUs", False, str(error))]
    if len(found) < 2:
        return []
    models = {device.name for device in found}
    text = ", ".join(f"{n}: {device.name} ({device.uuid})" for n, device in enumerate(found))
    text += "; --devices all uses them" if len(models) == 1 else "; --devices takes one model"
    return [Check("GPUs", True, text)]


def _journal(path: Path) -> str:
    journal = Journal(path)
    count = len(journal.records())
    return "; ".join((f"{count} records in {path}", *journal.warnings))


def _writable(folder: Path, what: str) -> str:
    """The folder, once it is proven that a file can be made in it, and locked."""
    with storage_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            check_lockable(folder / what, what)
    return str(folder)


def _registry() -> str:
    path = registry_path(None)
    kept = registry_file.load(path).entries
    if not kept:
        return f"nothing in {path} yet; fa-tune search fills it"
    gpus = ", ".join(dict.fromkeys(entry.gpu.name for entry in kept))
    for entry in kept:
        families.config_of(entry.chosen)  # a form that is no longer understood
    entries = "1 entry" if len(kept) == 1 else f"{len(kept)} entries"
    return f"{entries} in {path} ({gpus})"


def _cache(store: ArtifactStore) -> str:
    entries, size_bytes = store.size()
    return f"{entries} compiled kernels, {size_bytes / 1e6:.1f} MB, in {store.path}"


def _recordings(machine: MachineOptions) -> str:
    folder = machine.recordings or locations.profiles_dir()
    check_folder(folder)
    found = recordings.check_all(folder)
    if not found:
        raise StorageError(f"there are none in {folder}")
    gpus = ", ".join(dict.fromkeys(meta.device.name for meta in found))
    return f"{len(found)} in {folder} ({gpus})"


def _package(name: str, why: str, *, needed: bool) -> Check:
    for distribution in (name, *(f"{name}-cuda{major}x" for major in (13, 12))):
        with suppress(metadata.PackageNotFoundError):
            return Check(name, True, f"{distribution} {metadata.version(distribution)}")
    fix = "in a clone of fa-tune: pip install '.[cuda13]', or cuda12 for a driver of CUDA 12"
    return Check(name, False if needed else None, f"not installed ({why})", fix)


def _small_kernels(machine: Machine) -> dict[str, Artifact]:
    """The default of every family that runs here, compiled for a small workload; in silence, since
    other checks are under way."""
    configs = families.defaults_for(TINY, machine.limits)
    if not configs:
        raise NoUsableVariant(f"no family of kernels runs on {machine.arch}")
    requests = [build_request(c, families.of(c).traits(c, TINY), machine) for c in configs]
    artifacts = {}
    for built in build_all(requests, machine, Silent()):
        if built.artifact is None:
            name = built.request.variant.family
            raise NoUsableVariant(f"the default kernel of {name} did not compile: {built.reason}")
        artifacts[built.request.variant.key] = built.artifact
    return artifacts


def _measure(
    machine: Machine,
    made: Callable[[], EventsProfiler | NcuProfiler],
    kernels: Callable[[], dict[str, Artifact]],
) -> str:
    """Run and measure small kernels, which are compiled by then."""
    profiler, times = made(), []
    profiler.get_ready(machine.gpu_uuid, machine.options.device)
    plan = MeasurePlan(TINY, kernels(), device=machine.options.device, gpu=machine.gpu_uuid)
    for attempt in profiler.measure_all([plan], lambda _: None):
        name = Variant.from_key(attempt.subject).family
        if attempt.outcome is not Outcome.OK or attempt.measurement is None:
            raise NoUsableVariant(f"{name}: {attempt.outcome}: {attempt.reason}")
        times.append(f"{name} {attempt.measurement.samples_s[0] * 1e6:.1f} µs")
    if not times:
        raise NoUsableVariant("nothing came back")
    version = f"ncu {profiler.version}: " if profiler.version else ""
    return f"{version}a small kernel took {', '.join(times)}"
