"""Configs with the knobs after the thirteen compile with every combination of traits, quietly;
so do the ordinary ones for the first architecture of the family.  Where they have done so with the
present sources, the least and the most traits are compiled again (tests/tools/proven.py)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from fa_tune import families
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.compile import BuildRequest, BuildResult, build
from fa_tune.core.arch import parse_arch
from fa_tune.core.model import Outcome, Variant
from fa_tune.core.workload import DType
from fa_tune.families.sm80.config import FlashForwardKernelConfig
from fa_tune.families.sm80.constraints import constraints
from fa_tune.families.sm80.names import parse_kernel_name_into_config
from fa_tune.families.sm80.sets import select_configs
from fa_tune.operations.traits import Traits
from tests.families.test_sm80_later_sets import WINNERS
from tests.tools.proven import due, passed

# Of each: causal, ragged, lse.
ALL_TRAITS = [str(Traits(*flags)) for flags in itertools.product((False, True), repeat=3)]
STREAMED = "async+eager+swizzled+load_1_1_1_tiles+opt_softmax"
REPRESENTATIVE = (
    *WINNERS,
    # Three warps per scheduler; Q in registers; a panel that is filled up; a threshold of 0.
    f"(BF16, 64, 192, 64, 12): {STREAMED}+stages_2+rescale_8+pingpong",
    "(BF16, 64, 256, 64, 8): async+eager+swizzled+load_0_1_1_tiles+stages_3+pingpong",
    f"(BF16, 96, 128, 64, 8): {STREAMED}+stages_2+rescale_8+pingpong",
    # Interleaved without a threshold, and in stages without a swizzle.
    "(BF16, 128, 64, 32, 4): async+eager+load_2_2_2_tiles+stages_3+interleave",
)
# On a machine that does nothing else 2 s; here others may be at work.
MAX_COMPILE_S = 20.0


def requests(texts: Sequence[str], traits: Sequence[str], arch: str) -> list[BuildRequest]:
    return [BuildRequest(Variant("sm80", c), t, arch) for c in texts for t in traits]


def built(wanted: Sequence[BuildRequest], artifacts: ArtifactStore) -> None:
    """Build, and check what every variant has to keep."""
    results = build(wanted, artifacts)
    failed = [f"{r.request.variant.key} {r.request.traits}: {r.reason}" for r in results if _bad(r)]
    assert not failed, "\n".join(failed)
    for result in results:
        artifact = result.artifact
        assert artifact is not None
        name = f"{artifact.variant.key} {artifact.traits}"
        assert not artifact.diagnostics, f"{name}: {artifact.diagnostics}"
        resources = artifact.resources
        limits = parse_arch(artifact.arch)
        assert 0 < resources.registers * resources.threads <= 65536, name
        assert resources.static_smem_bytes == 0, name
        assert resources.dynamic_smem_bytes <= limits.smem_per_block_bytes, name
        assert resources.ctas_per_sm >= 1, name
        config = parse_kernel_name_into_config(artifact.variant.config)
        assert config.kernel_name() in artifact.symbol, name
        assert artifact.compile_s < MAX_COMPILE_S, f"{name}: {artifact.compile_s:.1f} s"


def _bad(result: BuildResult) -> bool:
    return result.outcome is not Outcome.OK


@pytest.mark.all_kernels
@pytest.mark.parametrize("text", REPRESENTATIVE)
def test_new_knobs_compile_with_every_combination_of_traits(
    text: str, artifacts: ArtifactStore
) -> None:
    assert constraints(parse_kernel_name_into_config(text), parse_arch("sm_90")) is None
    everything = requests([text], ALL_TRAITS, "sm_90")
    built(due(text, everything, [everything[0], everything[-1]]), artifacts)
    passed(text, everything)


@pytest.mark.parametrize("text", [c for c in REPRESENTATIVE if c.endswith("pingpong")])
def test_turns_are_refused_for_8_0_before_compiling(text: str) -> None:
    rejected = constraints(parse_kernel_name_into_config(text), parse_arch("sm_80"))
    assert rejected is not None
    assert rejected.constraint in ("ping_pong_needs_9_0", "smem_fits")


def ordinary(d_head: int) -> list[FlashForwardKernelConfig]:
    """The default and the ends of the ladder, with what needs no bulk copies."""
    default: FlashForwardKernelConfig = families.get("sm80").default_config(d_head, DType.FP16)
    ladder = select_configs("prog", d_head=d_head)
    staged = [c for c in select_configs("fast", d_head=d_head) if c.kv_stages > 1]
    return [default, ladder[0], ladder[-1], next(c for c in staged if not c.ping_pong)]


@pytest.mark.parametrize("d_head", [64, 128])
def test_ordinary_configs_compile_for_8_0(d_head: int, artifacts: ArtifactStore) -> None:
    configs = ordinary(d_head)
    assert all(constraints(c, parse_arch("sm_80")) is None for c in configs)
    built(requests([str(c) for c in configs], ["plain", "causal+ragged+lse"], "sm_80"), artifacts)
