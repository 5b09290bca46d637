"""The pretended H200 with two families of kernels: sm80, and one that the package has not."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from fa_tune.core.model import Variant
from fa_tune.core.workload import Workload
from fa_tune.families import selection
from fa_tune.tune import plan, single
from fa_tune.tune.flow import search as run_search
from fa_tune.tune.results import SearchResult
from tests.families.wave import WaveFamily, register
from tests.tune import fakes
from tests.tune.conftest import World
from tests.tune.fakes import FakeProfiler, Stages

WAVE = [
    Variant("wave", f"wave(FP16, 128, 128x{keys}, 2): {word}").key
    for keys, word in ((128, ""), (176, ""), (176, "pingpong"))
]
WAVE_DEFAULT, _, WAVE_BEST = WAVE
TOO_BIG = "wave(FP16, 128, 128x512, 2): pingpong"
SM80_DEFAULT = Variant("sm80", fakes.default_config().short_form()).key
SM80_OTHER = fakes.keys(2)[1]


def times(**by_family: float) -> Callable[[str, Workload], float]:
    """A time by family (`sm80=2.0`), the two bests a tenth below their families' others."""

    def time(subject: str, _: Workload) -> float:
        family = Variant.from_key(subject).family
        best = subject in (WAVE_BEST, SM80_OTHER)
        return 1e-3 * by_family.get(family, 1.5) * (0.9 if best else 1.0)

    return time


@pytest.fixture
def wave(monkeypatch: pytest.MonkeyPatch) -> WaveFamily:
    return register(monkeypatch)


@pytest.fixture
def world(world: World, wave: WaveFamily, monkeypatch: pytest.MonkeyPatch) -> World:
    """With the real sets of both families, wave being the faster one."""
    for module in (plan, single):
        monkeypatch.setattr(module, "choose_configs", selection.choose_configs)
    world.profiler = FakeProfiler(times(sm80=2.0, wave=1.0))
    return world


def search(world: World, **changes: object) -> SearchResult:
    return run_search(world.options(1024, **changes), world.progress)


def again(world: World, **speeds: float) -> None:
    world.profiler = FakeProfiler(times(**(speeds or {"sm80": 2.0, "wave": 1.0})))
    world.verifier.verified.clear()
    world.compiler.requests.clear()
    world.progress = Stages()


def by_family(subjects: Iterable[str]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for subject in subjects:
        out.setdefault(Variant.from_key(subject).family, []).append(subject)
    return out
