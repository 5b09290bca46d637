"""What the GPU tests share: one device, one cache of compiled kernels for the whole run."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fa_tune import families
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.compile import BuildRequest
from fa_tune.core import codec, devices
from fa_tune.core.arch import ArchLimits, limits, parse_arch
from fa_tune.core.model import Artifact, Outcome, Variant
from fa_tune.core.options import MachineOptions
from fa_tune.core.workload import Workload
from fa_tune.families.base import KernelFamily
from fa_tune.workers.supervisor import run_items
from tests.gpu.cases import FORWARD_FAMILIES, Case, compiled, item_of, request
from tests.project_files import ROOT

PROGRAM = [sys.executable, "-c", "import sys; from fa_tune.cli import main; sys.exit(main())"]
Built = Callable[[Sequence[BuildRequest]], list[Artifact]]


def faults_of(handler: str, items: Mapping[str, Any], timeout_s: float) -> str:
    """What a worker of tests/gpu finds wrong with any item, in lists of words, and those that did
    not end; empty if all is right."""
    handler = f"tests.gpu.{handler}"
    results = list(run_items(handler, {"device": 0}, items, item_timeout_s=timeout_s))
    assert len(results) == len(items)
    lost = [f"{r.item}: {r.outcome}: {r.reason}" for r in results if r.outcome is not Outcome.OK]
    wrong = [text for r in results for text in r.value or ()]
    return "\n".join((lost + wrong)[:25])


def items_with(
    built: Built, key: str, wanted: Mapping[BuildRequest, Any], **more: Any
) -> dict[str, dict[str, Any]]:
    """Items of a worker by variant and traits, each with what is wanted of its kernel as `key`."""
    return {
        f"{a.variant.key} @ {a.traits}": item_of(a) | {key: found} | more
        for a, found in zip(built(list(wanted)), wanted.values(), strict=True)
    }


def problem_items(
    built: Built, found: ArchLimits, problems: Iterable[tuple[Variant, Workload, Any]]
) -> dict[str, dict[str, Any]]:
    """Items with `problems`: the workloads that a kernel is to solve, and what a judge knows each
    by."""
    wanted: dict[BuildRequest, list[tuple[str, Any]]] = {}
    for variant, workload, name in problems:
        wanted.setdefault(request(variant, workload, found), []).append((workload.key, name))
    return items_with(built, "problems", wanted)


def case_items(
    built: Built, wanted: Mapping[BuildRequest, Sequence[Case]], **more: Any
) -> dict[str, dict[str, Any]]:
    """Items with `cases`."""
    plain = {build: [codec.dump(case) for case in cases] for build, cases in wanted.items()}
    return items_with(built, "cases", plain, **more)


def run_program(*words: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, from the repository's root."""
    return subprocess.run(
        [*PROGRAM, *words], cwd=ROOT, capture_output=True, text=True, timeout=500, check=False
    )


def run_python(*words: str, timeout_s: float = 600, **variables: str) -> str:
    """What a program that ends well prints, in a process of its own, from the repository's root."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def fa_tune(*arguments: str) -> dict[str, Any]:
    """What a command prints as JSON."""
    done = run_program(*arguments, "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> MachineOptions:
    """The first GPU, and a cache folder that starts empty, unless FA_TUNE_TEST_CACHE names one:
    runs that follow each other then compile each kernel once."""
    given = os.environ.get("FA_TUNE_TEST_CACHE")
    return MachineOptions(cache_dir=Path(given) if given else tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def arch() -> str:
    """The device's architecture, `sm_90`."""
    device = devices.find_device()
    return limits(device.compute_capability).arch


@pytest.fixture(scope="module", params=FORWARD_FAMILIES)
def family(request: pytest.FixtureRequest, arch: str) -> KernelFamily:
    """Every family of the forward pass that runs here."""
    found = families.get(request.param)
    if (why := families.device_rejection(found, parse_arch(arch))) is not None:
        pytest.skip(f"{found.name}: {why.reason}")
    return found


@pytest.fixture(scope="session")
def built(machine: MachineOptions) -> Built:
    """Compiles requests; every one must succeed."""
    assert machine.cache_dir is not None
    store = ArtifactStore(machine.cache_dir)
    return lambda requests: compiled(requests, store)


@pytest.fixture
def hopper(arch: str) -> None:
    """Nothing else runs wgmma."""
    if parse_arch(arch).compute_capability != (9, 0):
        pytest.skip("the sm90 family needs a GPU of compute capability 9.0")
