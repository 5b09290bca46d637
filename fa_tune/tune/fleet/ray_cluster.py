"""GPUs of a Ray cluster: one actor per GPU, which runs what this machine asks for.

Only this module imports ray.  The cluster's Python needs the same fa-tune and what measuring
needs there (torch, CuPy, ncu); compiling and the journal stay here.
"""

from __future__ import annotations

import dataclasses
import importlib
import ipaddress
import os
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fa_tune import __version__
from fa_tune.core.devices import same_model
from fa_tune.core.errors import InvalidConfig, ToolMissing
from fa_tune.core.model import Attempt
from fa_tune.core.options import MeasureOptions, Progress
from fa_tune.profile.base import MeasurePlan, OnStep, Profiler, ProfilerNotes
from fa_tune.tune.fleet.gpu import Interrupted, WorkerGpu
from fa_tune.tune.fleet.ray_actor import (
    ProfilerFacts,
    WorkerHost,
    files_of,
    package_sources,
    read_files,
)
from fa_tune.workers.supervisor import CALLED_OFF, CalledOff, ItemResult

AUTO = "auto"
ACTOR = "fa_tune.tune.fleet.ray_actor:RemoteGpu"
START_TIMEOUT_S = 120.0  # for an actor to be placed and to answer
POLL_S = 0.2
RESTARTS = 2  # of an actor; what it was at is done again elsewhere


def ray_gpus(address: str, progress: Progress) -> tuple[RayGpu, ...]:
    """Each GPU of a cluster: the one at `address`, or for `auto` the one that
    runs here (RAY_ADDRESS is heeded), or else a new one of this machine alone.

    Actors end with the last reference to their GPU, and with this process.

    Raises ToolMissing without ray, a cluster or a GPU in it, and InvalidConfig for nodes with
    another fa-tune or GPUs of different models.
    """
    ray = _connected(address)
    wanted = int(ray.cluster_resources().get("GPU", 0))
    if not wanted:
        raise ToolMissing(f"the Ray cluster at {address} has no GPU")
    module, _, name = ACTOR.partition(":")
    actor_class = ray.remote(getattr(importlib.import_module(module), name))
    options = {"num_gpus": 1, "num_cpus": 0, "max_restarts": RESTARTS}
    actors = [actor_class.options(**options).remote() for _ in range(wanted)]
    questions = {actor.host.remote(): actor for actor in actors}
    ready, late = ray.wait(list(questions), num_returns=wanted, timeout=START_TIMEOUT_S)
    for question in late:
        ray.kill(questions[question])
    if not ready:
        raise ToolMissing(
            f"none of the cluster's {wanted} GPUs was free within {START_TIMEOUT_S:g} s"
        )
    if late:
        progress.warn(f"{len(late)} of the cluster's {wanted} GPUs are taken and left out")
    found = []
    for question in sorted(ready, key=list(questions).index):
        host = _host(ray, question)
        found.append((host.name, host.device, questions[question]))
    found.sort(key=lambda known: (known[0], known[1].uuid))
    gpus = tuple(
        RayGpu(label=f"GPU {n} on {host}", device=device, actor=actor, ray=ray)
        for n, (host, device, actor) in enumerate(found)
    )
    same_model([g.device for g in gpus], [g.label for g in gpus])
    return gpus


def _host(ray: Any, question: Any) -> Any:
    """Who answered; raises InvalidConfig for another fa-tune than this one."""
    try:
        host = ray.get(question)
    except ray.exceptions.RayError as error:
        reason = _line(error)
        if "No module named" in reason:
            raise ToolMissing(
                f"a node of the cluster cannot load fa-tune: {reason}; install it there"
            ) from None
        raise ToolMissing(f"a node of the cluster does not answer: {reason}") from None
    assert isinstance(host, WorkerHost)
    here = __version__, package_sources()
    if (host.version, host.sources) != here:
        raise InvalidConfig(
            f"{host.name} has fa-tune {host.version} ({host.sources}) and this machine {here[0]} "
            f"({here[1]}): install the same on all nodes"
        )
    if host.device is None:
        raise ToolMissing(f"Ray gives out a GPU on {host.name} that the driver there does not know")
    return host


def _connected(address: str) -> Any:
    try:
        import ray  # an extra, and seconds to load
    except ImportError:
        raise ToolMissing("--ray needs the package ray: pip install 'ray>=2.60'") from None
    if ray.is_initialized():
        return ray
    settings: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    root = str(Path(__file__).resolve().parents[2])
    if root not in sysconfig.get_paths().values():  # run from a source tree
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        settings["runtime_env"] = {"env_vars": {"PYTHONPATH": path}}
    try:
        try:
            ray.init(address=address, **settings)
        except ConnectionError:
            if address != AUTO:
                raise
            _start(ray, settings)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ToolMissing(f"there is no Ray cluster at {address}: {_line(error)}") from None
    return ray


def _start(ray: Any, settings: Mapping[str, Any]) -> None:
    """Start a cluster of this machine alone, which nobody else reaches; raises ToolMissing."""
    constants: Any = importlib.import_module("ray._private.ray_constants")
    constants.ENABLE_RAY_CLUSTER = False  # no option says it; so it is on other systems
    ray.init(include_dashboard=False, **settings)
    host = ray.util.get_node_ip_address()
    if not ipaddress.ip_address(host).is_loopback:
        ray.shutdown()
        raise ToolMissing(
            f"this Ray would listen on {host}, where others could give it work; start a cluster "
            "with ray start, and name its address"
        )


def _line(error: BaseException) -> str:
    """The last line of an error's text that says something: Ray puts the trace before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


@dataclass(frozen=True, kw_only=True)
class RayGpu(WorkerGpu):
    """A GPU of a cluster, behind its actor, which sees no other."""

    actor: Any
    ray: Any

    def profiler_here(self, profiler: Profiler) -> Profiler:
        assert isinstance(profiler, RemoteProfiler)
        return dataclasses.replace(profiler, gpu=self)

    def facts(self, options: MeasureOptions, ncu: Path | None) -> ProfilerFacts:
        """What a profiler over there says of itself; raises ToolMissing."""
        found = self._answer(self.actor.facts.remote(options, ncu))
        assert isinstance(found, ProfilerFacts)
        return found

    def run_items(
        self,
        handler: str,
        shared: Mapping[str, Any],
        items: Mapping[str, Mapping[str, Any]],
        *,
        item_timeout_s: float,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> Iterator[ItemResult]:
        files = read_files(files_of(items))
        call = self.actor.run_items.options(num_returns="streaming")
        limits = item_timeout_s, start_timeout_s
        yield from self.stream(call.remote(handler, shared, items, limits, files))

    def stream(self, answers: Any) -> Iterator[Any]:
        """What a generator over there yields, as it arrives."""
        called_off = CALLED_OFF.get()
        while True:
            if called_off is not None and called_off.is_set():
                self.ray.kill(self.actor)  # and with it its children
                raise CalledOff
            ready, _ = self.ray.wait([answers], timeout=POLL_S)
            if not ready:
                continue
            try:
                answer = next(answers)
            except StopIteration:
                return
            yield self._answer(answer)

    def _answer(self, answer: Any) -> Any:
        exceptions = self.ray.exceptions
        try:
            return self.ray.get(answer)
        except exceptions.RayTaskError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, Exception) and type(cause).__module__.startswith("fa_tune."):
                raise cause from None
            raise
        except exceptions.RayError as error:
            died = f"the worker on {self.label} died: {_line(error)}"
            raise Interrupted(died) from None  # another may have taken its place


@dataclass(frozen=True)
class RemoteProfiler(ProfilerFacts):
    """A profiler that works on `gpu`; what it says of itself is the same on all GPUs."""

    options: MeasureOptions
    ncu: Path | None
    gpu: RayGpu
    notes: ProfilerNotes = field(default_factory=ProfilerNotes)

    warnings = property(lambda self: tuple(self.notes.warnings))

    def warm_up(self) -> None:
        """See `profile.base.Profiler`."""

    def get_ready(self, gpu: str, device: int) -> None:
        """See `profile.base.Profiler`; nobody waits for the answer."""
        self.gpu.actor.get_ready.remote(self.options, self.ncu)

    def measure_all(self, plans: Sequence[MeasurePlan], on_step: OnStep) -> Iterator[Attempt]:
        files = read_files([a.cubin for plan in plans for a in plan.artifacts.values()])
        call = self.gpu.actor.measure.options(num_returns="streaming")
        for said in self.gpu.stream(call.remote(self.options, self.ncu, tuple(plans), files)):
            if isinstance(said, Attempt):
                yield said
                continue
            for subject in said.steps:
                on_step(subject)
            for text in said.warnings:
                self.notes.warn(text)


def remote_profiler(
    given: Sequence[WorkerGpu], options: MeasureOptions, ncu: Path | None
) -> RemoteProfiler:
    """The profiler `options.profiler` of all GPUs, which are RayGpus; raises ToolMissing where one
    has none, InvalidConfig where they have different ones."""
    gpus = [gpu for gpu in given if isinstance(gpu, RayGpu)]
    facts = [gpu.facts(options, ncu) for gpu in gpus]
    for gpu, found in zip(gpus, facts, strict=True):
        if found != facts[0]:
            raise InvalidConfig(
                f"{gpus[0].label} has {found.method} {facts[0].version} and {gpu.label} "
                f"{found.version}: measurements would differ; install the same"
            )
    return RemoteProfiler(**vars(facts[0]), options=options, ncu=ncu, gpu=gpus[0])
