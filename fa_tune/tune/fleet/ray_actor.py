"""The far side of a GPU on another machine: what a pinned actor does there.

An actor is a process that sees one GPU.  It keeps nothing between two calls but workers that wait,
so that one that died can be replaced by another.  Kernels come as bytes, since the caller's files
are not here; results go back as they arrive.  The journal is the caller's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from fa_tune import __version__
from fa_tune.core.devices import find_device, pinned_to
from fa_tune.core.errors import ToolMissing
from fa_tune.core.jobs import WARM_UP_MODULES
from fa_tune.core.model import Attempt, DeviceInfo
from fa_tune.core.options import MeasureOptions
from fa_tune.profile.base import Capabilities, MeasurePlan, Profiler
from fa_tune.profile.events import of_regime
from fa_tune.profile.ncu.profiler import ncu_profiler
from fa_tune.workers.prefork import PREFORK, Prefork
from fa_tune.workers.supervisor import ItemResult, run_items

STEPS_S = 0.3  # between two messages about samples at least
PACKAGE = Path(__file__).resolve().parents[1]

FILES = ("cubin", "registry", "defaults")  # what items call their files
Files = Mapping[str, bytes]  # by the caller's path


@dataclass(frozen=True)
class WorkerHost:
    """Where an actor is.  `sources` stands for all of the package's modules."""

    name: str
    version: str
    sources: str
    device: DeviceInfo | None


@dataclass(frozen=True)
class ProfilerFacts:
    """What a profiler over there says of itself; see `fa_tune.profile.base.Profiler`."""

    method: str
    version: str
    arguments: tuple[str, ...]
    metrics: tuple[str, ...]
    clock_policy: str
    cache_policy: str
    default_runs: int
    capabilities: Capabilities


@dataclass(frozen=True)
class Said:
    """Samples that were taken since, by subject, and at the end the profiler's warnings."""

    steps: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def package_sources() -> str:
    """A short hash of the package's modules, the same for the same fa-tune."""
    total = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        total.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:12]


def make_profiler(
    options: MeasureOptions, ncu: Path | None, export: Path | None = None
) -> Profiler:
    """`options.profiler`, ncu or events, on this machine; raises ToolMissing."""
    if options.profiler == "events":
        return of_regime(options.regime)
    return ncu_profiler(
        ncu=ncu,
        metric_list=options.metrics,
        clock_control=options.clock_control,
        export=export,
    )


class RemoteGpu:
    """The actor's class; `modules` are what waiting workers import."""

    modules: Sequence[str] = WARM_UP_MODULES

    def __init__(self) -> None:
        self._prefork = Prefork(self.modules)
        # The same one for the same options: a process may be waiting for its work.
        self._profiler = lru_cache(maxsize=1)(make_profiler)

    def host(self) -> WorkerHost:
        """Who is here; the first worker begins to load what it needs."""
        self._prefork.start()
        return WorkerHost(platform.node(), __version__, package_sources(), self.device())

    def device(self) -> DeviceInfo | None:
        """The GPU of this process."""
        return find_device(0)

    def facts(self, options: MeasureOptions, ncu: Path | None) -> ProfilerFacts:
        """Facts of the profiler that `measure` would use here; raises ToolMissing."""
        profiler = self._profiler_for(options, ncu)
        names = [field.name for field in dataclasses.fields(ProfilerFacts)]
        return ProfilerFacts(**{name: getattr(profiler, name) for name in names})

    def get_ready(self, options: MeasureOptions, ncu: Path | None) -> None:
        """What `measure` will need begins to load."""
        profiler = self._profiler_for(options, ncu)
        profiler.warm_up()
        profiler.get_ready(self._uuid(), 0)

    def _profiler_for(self, options: MeasureOptions, ncu: Path | None) -> Profiler:
        PREFORK.set(self._prefork)
        return self._profiler(options, ncu)

    def measure(
        self, options: MeasureOptions, ncu: Path | None, plans: Sequence[MeasurePlan], files: Files
    ) -> Iterator[Said | Attempt]:
        """`Profiler.measure_all` on this process's GPU."""
        profiler = self._profiler_for(options, ncu)
        steps: list[str] = []
        sent = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="fa-tune-ray-") as folder:
            here = _written(files, Path(folder))
            uuid = self._uuid()
            for attempt in profiler.measure_all(
                [_placed(plan, here, uuid) for plan in plans], steps.append
            ):
                if steps and time.monotonic() - sent > STEPS_S:
                    yield Said(tuple(steps))
                    steps.clear()
                    sent = time.monotonic()
                yield attempt
        yield Said(tuple(steps), profiler.warnings)

    def run_items(
        self,
        handler: str,
        shared: Mapping[str, Any],
        items: Mapping[str, Mapping[str, Any]],
        limits: tuple[float, float],
        files: Files,
    ) -> Iterator[ItemResult]:
        """`workers.supervisor.run_items` on this process's GPU; `limits` are its time limits for an
        item and for the start, in seconds."""
        PREFORK.set(self._prefork)
        with tempfile.TemporaryDirectory(prefix="fa-tune-ray-") as folder:
            here = _written(files, Path(folder))
            yield from run_items(
                handler,
                shared,
                renamed(items, here.__getitem__),
                item_timeout_s=limits[0],
                start_timeout_s=limits[1],
                env=pinned_to(self._uuid()),
                retry_after_sigkill=True,
            )

    def _uuid(self) -> str:
        device = self.device()
        if device is None:
            raise ToolMissing(f"there is no GPU on {platform.node()} any more")
        return device.uuid


def _placed(plan: MeasurePlan, here: Mapping[str, str], uuid: str) -> MeasurePlan:
    """A plan for our files and our GPU."""
    artifacts = {
        subject: dataclasses.replace(artifact, cubin=here[artifact.cubin])
        for subject, artifact in plan.artifacts.items()
    }
    return dataclasses.replace(plan, artifacts=artifacts, gpu=uuid, device=0)


def read_files(paths: Iterable[str]) -> dict[str, bytes]:
    """What to send along."""
    return {path: Path(path).read_bytes() for path in dict.fromkeys(paths)}


def _written(files: Files, folder: Path) -> dict[str, str]:
    """The caller's paths to ours."""
    here = {}
    for number, (path, data) in enumerate(files.items()):
        own = folder / f"{number}{Path(path).suffix}"
        own.write_bytes(data)
        here[path] = str(own)
    return here


def renamed(value: Any, of: Callable[[str], str]) -> Any:
    """Items, with what `of` gives for the path of every file that they name, at whatever depth."""
    if isinstance(value, Mapping):
        return {
            name: of(str(inner)) if name in FILES and inner else renamed(inner, of)
            for name, inner in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [renamed(inner, of) for inner in value]
    return value


def files_of(items: Any) -> list[str]:
    """The paths of all files that items name."""
    found: list[str] = []
    renamed(items, lambda path: found.append(path) or path)  # type: ignore[func-returns-value]
    return found
