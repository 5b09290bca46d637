"""Kernels with windows, sinks, soft caps, ALiBi and hooks compile without serialised products, and
where there are registers to spare without spills; a hook that does not compile says why.  Where all
have passed with the present sources, each trait is compiled once (tests/tools/proven.py)."""

import itertools
from pathlib import Path

import pytest

from fa_tune import families
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.compile import BuildRequest, build
from fa_tune.core import hooks
from fa_tune.core.model import Outcome
from fa_tune.core.workload import DType
from tests.gpu.cases import compiled
from tests.tools.proven import due, passed

pytest.importorskip("cuda.bindings.nvrtc")

HOOK = hooks.register("""
__device__ float score_hook(float score, int batch, int head, int query, int key) {
    return fa_tune::softcap(score, 30.f) + fa_tune::tanh(score) - 0.1f * (query - key) + batch;
}
""")
BROKEN = hooks.register(
    "__device__ float score_hook(float score, int, int, int, int) { return scoer; }"
)
TRAITS = (
    "causal+ragged+lse+window+sink",
    "causal+window+softcap",
    "ragged+lse+alibi",
    f"causal+hook_{HOOK}",
)
D_HEADS = {"sm80": (64, 128), "sm90": (64, 128, 256)}


@pytest.mark.all_kernels
@pytest.mark.parametrize("name", D_HEADS)
def test_default_configs_compile(name: str, artifacts: ArtifactStore) -> None:
    family = families.get(name)
    arch = "sm_90a" if name == "sm90" else "sm_80"
    configs = [family.default_config(d_head, DType.FP16) for d_head in D_HEADS[name]]
    variants = [families.variant_of(family, config) for config in configs]
    requests = [BuildRequest(variant, traits, arch) for variant in variants for traits in TRAITS]
    note = f"{name} with what changes scores"
    few = [
        BuildRequest(variant, traits, arch)
        for variant, traits in zip(itertools.cycle(variants), TRAITS, strict=False)
    ]
    for artifact in compiled(due(note, requests, few), artifacts):
        # Others are at the limit without them: `192x128` at d_head 64 and the sm80 kernels.
        if name == "sm90" and families.config_of(artifact.variant).d_head > 64:
            assert artifact.resources.spill_store_bytes == 0, artifact
        assert not artifact.diagnostics, artifact
    passed(note, requests)


def test_a_hook_that_does_not_compile_says_why(tmp_path: Path) -> None:
    family = families.get("sm90")
    variant = families.variant_of(family, family.default_config(128, DType.FP16))
    request = BuildRequest(variant, f"hook_{BROKEN}", "sm_90a")
    (result,) = build([request], ArtifactStore(tmp_path), jobs=1)
    assert result.outcome is Outcome.COMPILE_FAILED
    assert "scoer" in result.reason
