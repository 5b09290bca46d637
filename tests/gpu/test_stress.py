"""The sm90 kernels' roles may be held up for as long as they like, anywhere, and every stage may
hold NaN until it is filled: the results are those of the ordinary kernels to the bit.

Every config of the sample that takes every pair of choices is launched 1,000 times, so every
scheduler, order, epilogue (carried over or not, through one or two Q buffers, clipped at the
end, with the log-sum-exp) and number of warpgroups; sleeps are drawn anew for each launch.
Kernels with a barrier taken out show that this finds something.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fa_tune import families
from fa_tune.build.compile import BuildRequest
from fa_tune.core import codec
from fa_tune.core.model import Outcome
from fa_tune.core.workload import DType, Workload
from fa_tune.families.sm90.config import Order, Scheduler, Sm90Config
from fa_tune.families.sm90.defaults import default_config
from fa_tune.operations.traits import Traits
from fa_tune.workers.supervisor import run_items
from tests.gpu.cases import Case, item_of
from tests.gpu.conftest import Built
from tests.gpu.stress import (
    LEFT_ALONE,
    LIMITS_NS,
    MEETING_POINTS,
    MUTATIONS,
    ROLES,
    compile_stressed,
    functions,
    headers_of,
    sleeps_ns,
)
from tests.tools.required_sm90 import ARCH, code_path_builds, code_path_sample

REPEATS = 1000
HANDLER = "tests.gpu.stress_child:handle"
# A kernel without a barrier may well hang.
TIMEOUT_S, MUTANT_TIMEOUT_S = 120.0, 20.0


def case_of(request: BuildRequest, seed: int) -> Case:
    """More tiles than multiprocessors, and rings that turn within a tile and between tiles."""
    config = families.get("sm90").parse(request.variant.config)
    traits = Traits.parse(request.traits)
    rest = 17 if traits.ragged else 0
    shape = (7, 15, 5, 3 * config.B_r - rest, 5 * config.B_c + rest, config.d_head, config.dtype)
    workload = Workload(*shape, causal=traits.causal, lse=traits.lse)
    return Case(request.variant, workload, "plain", seed)


def stressed(
    requests: Sequence[BuildRequest], built: Built, folder: Path, **how: Any
) -> Mapping[str, Any]:
    """The items of the worker."""
    artifacts = built(requests)
    kernels = compile_stressed(requests, folder, how.get("mutation"))
    return {
        f"{a.variant.key} @ {a.traits}": item_of(a)
        | {
            "stressed_cubin": str(kernel.cubin),
            "stressed_symbol": kernel.symbol,
            "case": codec.dump(case_of(request, seed)),
            "repeats": how.get("repeats", REPEATS),
        }
        for seed, (request, a, kernel) in enumerate(zip(requests, artifacts, kernels, strict=True))
    }


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
class TestOnTheGpu:
    def test_whoever_is_held_up_the_result_is_the_same(self, built: Built, tmp_path: Path) -> None:
        items = stressed(code_path_builds(), built, tmp_path)
        found = list(run_items(HANDLER, {"device": 0}, items, item_timeout_s=TIMEOUT_S))
        assert {r.item: r.reason for r in found if r.outcome is not Outcome.OK} == {}
        assert [r.value for r in found if r.value["n_nan"]] == []
        assert [r.value for r in found if r.value["differ"]] == []
        assert {r.value["launches"] for r in found} == {REPEATS}
        assert len(found) == len(items)

    @pytest.mark.parametrize("name", MUTATIONS)
    def test_a_barrier_that_is_not_kept_is_found(
        self, built: Built, tmp_path: Path, name: str
    ) -> None:
        """By a result that differs or, where phases get out of step, by a launch that hangs."""
        items = stressed(mutated_builds(), built, tmp_path, mutation=MUTATIONS[name])
        found = list(run_items(HANDLER, {"device": 0}, items, item_timeout_s=MUTANT_TIMEOUT_S))
        missed = [r.item for r in found if r.outcome is Outcome.OK and not r.value["differ"]]
        assert missed == []
        assert found


def mutated_builds() -> list[BuildRequest]:
    """One with two Q buffers and one with a single one."""
    one_q = default_config(256, DType.FP16)
    configs = (default_config(128, DType.FP16), one_q)
    return [
        BuildRequest(families.variant(config), traits, ARCH)
        for config, traits in zip(configs, ("plain", "causal"), strict=True)
    ]


# Without a GPU ----------------------------------------------------------------------------------


def test_wherever_roles_meet_they_are_held_up() -> None:
    """A new wrapper of an instruction is either wrapped or named as one that nobody waits at."""
    sources = families.get("sm90").source_files()
    for file in MEETING_POINTS.keys() & sources.keys():
        known = {*MEETING_POINTS[file], *LEFT_ALONE[file]}
        declared = set(functions(sources[file]))
        assert declared <= known, file
        assert declared == set(re.findall(r"__device__ __forceinline__ \w+ (\w+)\(", sources[file]))
    said = "|".join(("mbarrier", "barrier.cluster", r"bar\.", "bulk", r"st\.async"))
    meeting = {file for file, text in sources.items() if re.search(rf'"({said})', text)}
    assert meeting <= {*MEETING_POINTS, "ptx/wgmma.cuh"}


def test_the_family_itself_knows_nothing_of_it() -> None:
    sources = families.get("sm90").source_files()
    assert not any("stress" in text for text in sources.values())
    changed = {file for file, text in headers_of().items() if sources.get(file) != text}
    wrapped = MEETING_POINTS.keys() & sources.keys()
    assert changed == {*wrapped, *(f"plain/{file}" for file in wrapped), "stress/sleep.cuh"}


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_mutation_still_has_its_place(name: str) -> None:
    sources = dict(families.get("sm90").source_files())
    mutation = MUTATIONS[name]
    changed = mutation.applied(sources)
    assert changed[mutation.file] != sources[mutation.file]
    with pytest.raises(ValueError, match="0 places"):
        mutation.applied({mutation.file: ""})


def test_a_held_up_kernel_compiles_without_a_word(tmp_path: Path) -> None:
    """ptxas would say if it had to serialise wgmma, which would be another kernel."""
    default = default_config(128, DType.BF16)
    request = BuildRequest(families.variant(default), "causal+ragged+lse", ARCH)
    (kernel,) = compile_stressed([request], tmp_path)
    assert kernel.diagnostics == ()
    assert b"stress_sleep_ns" in kernel.cubin.read_bytes()


def test_sleeps_are_none_then_of_one_role_then_of_any() -> None:
    patterns = sleeps_ns(3, REPEATS)
    assert patterns == sleeps_ns(3, REPEATS) != sleeps_ns(4, REPEATS)
    assert not any(patterns[0])
    for role in range(len(ROLES)):
        assert [i for i, limit in enumerate(patterns[1 + role]) if limit] == [role]
        assert {p[role] for p in patterns} == set(LIMITS_NS)


def test_the_sample_has_every_scheduler_with_every_kind_of_epilogue() -> None:
    sample = code_path_sample()
    for trait in ("lse", "ragged"):
        found = {(c.scheduler, getattr(t, trait)) for c, t in sample}
        assert found == set(itertools.product(Scheduler, (False, True)))
    assert {c.order for c, _ in sample} == set(Order)
    assert len(ROLES) == 2 + max(c.mma_warpgroups for c, _ in sample)


def test_the_problem_has_the_traits_of_its_kernel_and_more_tiles_than_multiprocessors() -> None:
    family = families.get("sm90")
    for request in code_path_builds():
        config: Sm90Config = family.parse(request.variant.config)
        workload = case_of(request, 0).workload
        assert family.traits(config, workload) == request.traits, request
        assert 3 * workload.batch * workload.heads > 2 * 132
        assert workload.seq_len_kv > 4 * config.B_c
