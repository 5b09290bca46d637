"""Builds: order, resources, what is stored and what is not."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest

from fa_tune import families
from fa_tune.build import nvrtc, pool
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.compile import BuildRequest, BuildResult, build, kernel_source_sha256
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Outcome, Variant
from fa_tune.families.plan import CallPlan, Grid, LaunchPlan, Plan

ROOT = Path(__file__).resolve().parents[2]


class Threads(int):
    """A config: how many threads."""

    d_head = 64


class ReverseFamily:
    """A family of one small kernel; its config is a number of threads, as text."""

    name = "reverse"

    def __init__(self) -> None:
        self.scale = "2.0f"

    def parse(self, short_form: str, *, d_head: int = 128) -> Threads:
        try:
            return Threads(int(short_form))
        except ValueError:
            raise InvalidConfig(f"not a number of threads: {short_form!r}") from None

    def source_files(self) -> Mapping[str, str]:
        return {"parts/scale.cuh": f"constexpr float kScale = {self.scale};\n"}

    def entry_source(self, config: int, traits: str) -> str:
        return """
#include "parts/scale.cuh"
template <int N, bool kTwice>
__global__ void reverse(float* p) {
    static_assert(N % 32 == 0, "N must be a multiple of 32, the warp");
    __shared__ float s[N];
    s[threadIdx.x] = p[threadIdx.x];
    __syncthreads();
    p[threadIdx.x] = kScale * (kTwice ? 2 : 1) * s[N - 1 - threadIdx.x];
}
"""

    def name_expression(self, config: int, traits: str) -> str:
        return f"reverse<{config}, {'true' if traits == 'twice' else 'false'}>"

    def name_expressions(self, config: int, traits: str) -> Sequence[str]:
        return (self.name_expression(config, traits),)

    def plan(self, config: int, traits: str, arch: str) -> CallPlan:
        launch = LaunchPlan("none", Grid.TILES, 1, 1, config, 40 * 1024, 1, 1, 1, 0, 0, 0)
        return CallPlan(cast(Plan, None), (launch,))


@pytest.fixture(autouse=True)
def family(monkeypatch: pytest.MonkeyPatch) -> ReverseFamily:
    family = ReverseFamily()
    monkeypatch.setitem(families._FAMILIES, family.name, family)
    return family


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path)


def _request(threads: int | str, traits: str = "plain", arch: str = "sm_90") -> BuildRequest:
    return BuildRequest(Variant("reverse", str(threads)), traits, arch)


def test_results_are_artifacts_in_the_order_of_the_requests(store: ArtifactStore) -> None:
    requests = [_request(n) for n in (256, 32, 128, 64)]
    seen: list[BuildResult] = []
    results = build(requests, store, jobs=2, on_result=seen.append)
    assert [r.request for r in results] == requests
    assert sorted(r.request.variant.config for r in seen) == ["128", "256", "32", "64"]
    for request, result in zip(requests, results, strict=True):
        threads = int(request.variant.config)
        assert (result.outcome, result.cached, result.reason) == (Outcome.OK, False, "")
        artifact = result.artifact
        assert (artifact.variant, artifact.arch) == (request.variant, "sm_90")
        assert Path(artifact.cubin).read_bytes()[:4] == b"\x7fELF"
        assert artifact.symbol.encode() in Path(artifact.cubin).read_bytes()
        resources = artifact.resources
        assert resources.threads == threads
        assert resources.static_smem_bytes == 4 * threads
        assert resources.dynamic_smem_bytes == 40 * 1024
        assert resources.spill_store_bytes == resources.spill_load_bytes == 0
        assert resources.ctas_per_sm == 5  # 228 KiB hold five CTAs of 40 KiB and a little
        assert artifact.compile_s > 0


def test_traits_and_architectures_are_builds_of_their_own(store: ArtifactStore) -> None:
    requests = [_request(64), _request(64, "twice"), _request(64, arch="sm_80")]
    artifacts = [r.artifact for r in build(requests, store)]
    assert len({a.cubin for a in artifacts if a}) == 3
    assert [a.traits for a in artifacts if a] == ["plain", "twice", "plain"]
    assert artifacts[2].resources.ctas_per_sm == 3  # sm_80 has 164 KiB


def test_what_is_stored_starts_no_process(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [_request(n) for n in (32, 48, 64)]
    first = build(requests, store)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    again = build(requests, store)
    assert [r.cached for r in first] == [False, False, False]
    assert [r.cached for r in again] == [True, True, True]
    assert [(r.outcome, r.artifact, r.reason, r.log) for r in again] == [
        (r.outcome, r.artifact, r.reason, r.log) for r in first
    ]


def test_a_refused_variant_has_its_sentence_and_the_whole_log(store: ArtifactStore) -> None:
    bad, good = build([_request(48), _request(64)], store)
    assert bad.outcome is Outcome.COMPILE_FAILED
    assert bad.artifact is None
    assert bad.reason == "N must be a multiple of 32, the warp"
    assert "with N=48" in bad.log
    assert good.outcome is Outcome.OK


def test_a_changed_source_or_another_nvrtc_compiles_again(
    store: ArtifactStore, family: ReverseFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kernel_source_sha256("reverse")
    assert not build([_request(64)], store)[0].cached
    family.scale = "3.0f"
    assert kernel_source_sha256("reverse") != before
    assert not build([_request(64)], store)[0].cached
    family.scale = "2.0f"
    assert kernel_source_sha256("reverse") == before
    assert build([_request(64)], store)[0].cached
    monkeypatch.setattr(nvrtc, "version", lambda: "99.0.1")
    assert not build([_request(64)], store)[0].cached


def test_equal_requests_are_compiled_once(store: ArtifactStore) -> None:
    seen: list[BuildResult] = []
    first, second = build([_request(64)] * 2, store, on_result=seen.append)
    assert first == second
    assert seen == [first, second]
    assert store.size()[0] == 1


def test_nothing_to_build_needs_no_compiler(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc, "version", lambda: pytest.fail("NVRTC was asked"))
    assert build([], store) == []


_CRASHING = """
import os, signal, sys
from fa_tune.build import worker as compile_worker
compile_worker.compile_job = lambda job: os.kill(os.getpid(), signal.SIGSEGV)
sys.exit(compile_worker.main(sys.argv[1:]))
"""


def test_crashes_and_timeouts_are_not_remembered(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashing = (sys.executable, "-c", _CRASHING)
    with monkeypatch.context() as patch:
        patch.setattr(pool, "WORKER_COMMAND", crashing)
        result = build([_request(64)], store)[0]
    assert (result.outcome, result.artifact) == (Outcome.CRASHED, None)
    assert result.reason == "the compiler died with SIGSEGV"
    again = build([_request(64)], store)[0]
    assert (again.outcome, again.cached) == (Outcome.OK, False)


def test_an_interrupted_build_keeps_what_is_finished(store: ArtifactStore) -> None:
    def stop(result: BuildResult) -> None:
        raise KeyboardInterrupt

    requests = [_request(n) for n in (32, 64, 96)]
    with pytest.raises(KeyboardInterrupt):
        build(requests, store, jobs=1, on_result=stop)
    assert sum(r.cached for r in build(requests, store)) >= 1
