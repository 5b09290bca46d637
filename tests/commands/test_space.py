from __future__ import annotations

from typing import Any

import pytest

from fa_tune.families.sm80.names import parse_short_form
from fa_tune.families.sm80.sets import get_kernel_configs
from tests.commands import fakes
from tests.commands.console import Console, words

CONFIG = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles"

pytestmark = pytest.mark.usefixtures("only_sm80")  # whose configs are counted


def space(console: Console, *arguments: str) -> dict[str, Any]:
    done = console("space", "--json", *arguments)
    assert done.status in (0, 4), done.err
    document: dict[str, Any] = done.json
    return document


def test_lists_the_fast_set_by_default(console: Console) -> None:
    done = console("space", "--arch", "sm_90")
    assert done.status == 0
    listed = done.out.split("\n\n")[0].splitlines()
    assert listed == list(map(str, get_kernel_configs("fast")))
    assert f"{len(listed)} of {len(listed)} configs can run on sm_90." in done.out
    assert "Cannot run" not in done.out


def test_before_9_0_turns_are_rejected_with_the_reason(console: Console) -> None:
    document = space(console, "--arch", "sm_86", "--dtype", "fp16", "--explain")
    assert document["counts"]["rejected"] == {"ping_pong_needs_9_0": 2}
    assert {entry["reason"] for entry in document["rejected"]} == {
        "ping_pong needs bulk tensor copies, sm_90 or later; the device is sm_86"
    }
    assert all(entry["config"].endswith("pingpong") for entry in document["rejected"])
    assert not any(config.endswith("pingpong") for config in document["kept"])
    # What fast leaves out is no work of the tune rules.
    fast = {*document["kept"], *(entry["config"] for entry in document["rejected"])}
    assert {entry["config"] for entry in document["not_in_tune"]} <= fast


def test_explain_says_what_the_tune_rules_leave_out(console: Console) -> None:
    document = space(console, "--kernels", "tune", "--explain", "--arch", "sm_90")
    left_out = {entry["config"] for entry in document["not_in_tune"]}
    assert not left_out & set(document["kept"])
    # The axes of the set: blocks 2 x 2, k-tiles 2 x 2 x 2, two flags, two dtypes.
    assert len(left_out) + len(document["kept"]) == 4 * 8 * 4 * 2
    counts = document["counts"]["not_in_tune"]
    assert sum(counts.values()) == len(left_out)
    assert "register_pressure_at_128_rows" in counts


def test_axes_expand_around_the_default_or_a_named_config(console: Console) -> None:
    document = space(
        console,
        *words("--axis B_r=64,128 --axis n_warps=4,8 --dtype fp16 --arch sm_90"),
    )
    configs = [parse_short_form(text) for text in document["kept"]]
    rejected = [parse_short_form(entry["config"]) for entry in document["rejected"]]
    assert {(c.B_r, c.n_warps) for c in configs} == {(64, 4), (128, 4), (128, 8)}
    assert [(c.B_r, c.n_warps) for c in rejected] == [(64, 8)]
    assert document["rejected"][0]["name"] == "warps_own_whole_mma_tiles"
    assert len({(c.B_c, c.swizzled, c.dtype, c.d_head) for c in configs}) == 1
    document = space(
        console, "--kernels", fakes.SLOW, "--axis", "swizzled=off,on", "--axis", "dtype=bf16"
    )
    configs = [parse_short_form(text) for text in document["kept"]]
    base = parse_short_form(fakes.SLOW)
    assert [(c.swizzled, c.dtype.name) for c in configs] == [(False, "BF16"), (True, "BF16")]
    assert {c.K_mma_load_K_tiles for c in configs} == {base.K_mma_load_K_tiles}


def test_an_explanation_fits_in_80_columns_in_a_file(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = console(*words("space --axis B_r=64,128 --axis n_warps=4,8 --arch sm_90 --explain"))
    assert done.status == 0
    assert max(map(len, done.out.splitlines())) <= 80
    kept = space(console, *words("--axis B_r=64,128 --axis n_warps=4,8 --arch sm_90"))["kept"]
    assert kept
    assert all("".join(config.split()) in "".join(done.out.split()) for config in kept)


def test_what_cannot_run_is_told_with_its_reason(console: Console) -> None:
    done = console("space", "--axis", "n_warps=64", "--dtype", "fp16")
    assert done.status == 4
    assert "n_warps_fit_a_cta" in done.lines[-1]
    document = space(console, "--axis", "B_c=64,256", "--arch", "sm_86", "--dtype", "fp16")
    assert document["counts"]["rejected"] == {"smem_fits": 1}
    assert "sm_86 allows 99 KiB" in document["rejected"][0]["reason"]


def test_values_of_another_head_dimension(console: Console) -> None:
    arguments = ("space", "--arch", "sm_90", "--d-head", "192", "--d-head-v")
    document = space(console, *arguments[1:], "128", "--kernels", "fast")
    assert document["kept"]
    assert all(text.endswith("d_head_v_128") for text in document["kept"])
    refused = console(*arguments, "24")
    assert refused.status == 4
    assert "d_head_v must be 0" in refused.err


def test_a_config_is_not_taken_for_one_of_another_dtype(console: Console) -> None:
    assert console("space", "--kernels", CONFIG, "--dtype", "bf16").status == 2
    assert console("space", "--kernels", CONFIG, "--dtype", "fp16", "--d-head", "128").status == 0
    one_without = CONFIG.replace(", 128, 64", ", 64", 1)
    assert console("space", "--kernels", one_without, "--d-head", "64").status == 0
