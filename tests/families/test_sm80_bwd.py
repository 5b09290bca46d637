"""The sm80_bwd family keeps the contract, and says in Python what its kernels assert."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fa_tune import families
from fa_tune.build import nvrtc
from fa_tune.core.arch import limits
from fa_tune.core.workload import BACKWARD, DType, Workload
from fa_tune.families.sm80_bwd.config import Sm80BackwardConfig
from fa_tune.families.sm80_bwd.constraints import CONSTRAINTS, constraints
from tests.described import described
from tests.families.contract import SaidContract

A100, ADA, HOPPER = (limits(c) for c in ((8, 0), (8, 9), (9, 0)))
D_HEADS = (64, 96, 128, 192, 256)
FAMILY: Any = families.get("sm80_bwd")
DEFAULT: Sm80BackwardConfig = FAMILY.default_config(128, DType.FP16)


class TestSm80BackwardContract(SaidContract):
    name = "sm80_bwd"
    rules = CONSTRAINTS
    folder = "sm80/bwd"
    traits = True
    computed = ()
    # About registers, which the assembler knows better, and about copies, which copy.cuh asserts.
    unsaid = ("accumulators_fit_registers", "copies_divide_evenly")
    compute_capability = (8, 0)
    refusing = ()
    bad_configs = (
        replace(DEFAULT, d_head=72),
        replace(DEFAULT, d_head_v=16),
        replace(DEFAULT, B_r=96),
        replace(DEFAULT, n_warps=6),
        replace(DEFAULT, column_warps=3),
        replace(DEFAULT, column_warps=0),
        replace(DEFAULT, B_c=16),
        replace(DEFAULT, d_head=96, column_warps=4),
        replace(DEFAULT, d_head=96, B_r=32, n_warps=8),
        replace(DEFAULT, d_head=32, B_r=32, n_warps=8, two_pass=True),
        replace(DEFAULT, stages=3),
        replace(DEFAULT, ctas=5),
        replace(DEFAULT, ctas=4),
        replace(DEFAULT, d_head=256, B_c=128, n_warps=8),
    )


def test_shared_memory_is_what_the_kernels_lay_out() -> None:
    configs = [DEFAULT, replace(DEFAULT, two_pass=True), replace(DEFAULT, column_warps=1, stages=2)]
    configs += [replace(c, d_head=192, d_head_v=64) for c in configs]
    configs += [replace(DEFAULT, column_warps=1, two_pass=True)]
    asserts = [
        f'static_assert(SharedMemory<{c.to_cpp_struct()}>::kBytes == {c.smem_bytes}, "{c}");\n'
        f"static_assert(query_warps_of({c.n_warps}, {c.d_head}) == {c.query_warps});"
        for c in configs
    ]
    using = "using namespace fa_tune;\nusing namespace fa_tune::sm80::backward;"
    files = '#include "sm80/bwd/constraints.cuh"\n#include "sm80/bwd/shared_memory.cuh"'
    source = "\n".join([files, using, *asserts, ""])
    options = ("-std=c++20", "-arch=sm_80")
    nvrtc.compile_source(source, "k.cu", FAMILY.source_files(), options, ())


@pytest.mark.parametrize("device", [A100, ADA, HOPPER], ids=lambda d: d.arch)
@pytest.mark.parametrize(
    ("d_head", "d_head_v"), [*((d, 0) for d in D_HEADS), (192, 128), (64, 256)]
)
def test_a_default_runs_on_every_device_and_repeats_its_bits(
    device: Any, d_head: int, d_head_v: int
) -> None:
    shape = (1, 1, 1, 1000, 1000, d_head, DType.BF16)
    workload = Workload(*shape, d_head_v=d_head_v, op=BACKWARD)
    config = FAMILY.default_for(workload, device)
    assert families.fits(config, workload)
    assert constraints(config, device) is None
    assert constraints(config.repeatable(), device) is None


@pytest.mark.parametrize("d_head", D_HEADS)
def test_a_set_has_the_defaults(d_head: int) -> None:
    workload = Workload(1, 1, 1, 1000, 1000, d_head, DType.FP16, op=BACKWARD)
    for key in ("fast", "tune"):
        found = FAMILY.configs(key, d_head=d_head)
        for device in (A100, ADA, HOPPER):
            assert FAMILY.default_for(workload, device) in found
            assert any(constraints(c, device) is None for c in found)


def test_hopper_prefers_its_own_family_where_it_takes_the_problem() -> None:
    for d_head, d_head_v, family in (
        (32, 0, "sm90_bwd"),
        (64, 0, "sm90_bwd"),
        (128, 0, "sm90_bwd"),
        (160, 0, "sm90_bwd"),
        (64, 32, "sm80_bwd"),
    ):
        first, *_ = families.defaults(d_head, DType.FP16, HOPPER, BACKWARD, d_head_v=d_head_v)
        assert families.of(first).name == family
    (first,) = families.defaults(128, DType.FP16, A100, BACKWARD)
    assert families.of(first).name == "sm80_bwd"


# Three blocks of 128 queries, eight of 64 keys; 6 heads of Q share 2 of K and V.
PROBLEM = Workload(2, 6, 2, 300, 500, 128, DType.FP16, op=BACKWARD)
ROWS = 2 * 6 * 384  # of the workspace


def test_one_pass_prepares_the_sums_of_dq_and_finishes_them() -> None:
    launches = prepare, main, finish = described(DEFAULT, PROBLEM)
    assert [d.grid[0] for d in launches] == [2 * 6 * 3, 2 * 2 * 8, 2 * 6 * 3]
    assert [d.block[0] for d in launches] == [256, DEFAULT.threads, 256]
    assert not any(d.dependent or d.maps for d in launches)
    assert {d.workspace_bytes for d in launches} == {(2 + 128) * 4 * ROWS}
    assert (prepare.shared_bytes, main.shared_bytes) == (0, DEFAULT.smem_bytes)
    assert finish.params == prepare.params


def test_two_passes_need_no_room_for_sums() -> None:
    launches = described(DEFAULT.repeatable(), PROBLEM)
    assert [d.grid[0] for d in launches] == [2 * 6 * 3, 2 * 6 * 5, 2 * 2 * 8]
    assert {d.workspace_bytes for d in launches} == {2 * 4 * ROWS}


def test_keys_of_a_block_of_either_pass_are_whole_without_ragged() -> None:
    uneven = replace(DEFAULT, B_r=128, B_c=32)
    for config, keys, traits in (
        (uneven, 32, "plain"),
        (uneven.repeatable(), 32, "ragged"),
        (uneven.repeatable(), 128, "plain"),
    ):
        assert FAMILY.traits(config, replace(PROBLEM, seq_len_kv=keys)) == traits
