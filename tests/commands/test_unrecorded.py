"""A search without a GPU says what it has no recording of, and by which method it answers."""

from __future__ import annotations

import pytest

from tests.commands.console import Console


@pytest.mark.usefixtures("known_kernels")
def test_the_method_does_not_hang_on_the_dtype(console: Console) -> None:
    search = ("search", "--seq-lens", "4096", "--json")
    both = console(*search)
    one = console(*search, "--dtype", "bf16")
    assert both.status == one.status == 0
    assert both.json["method"] == one.json["method"]


def test_the_nearest_is_of_any_method_and_told_by_options(console: Console) -> None:
    """Decoding is recorded by events, prompts by ncu too."""
    done = console(
        *("search", "--seq-lens", "1", "--seq-lens-kv", "8192", "--batch", "64", "--dtype", "bf16"),
        *("--heads", "64", "--kv-heads", "8", "--softcap", "50"),
    )
    assert done.status == 4
    assert "has no --softcap: " in done.err


def test_a_config_that_cannot_run_is_not_called_unrecorded(console: Console) -> None:
    done = console("profile", "(FP16, 128, 64, 64, 4): async+load_7_2_2_tiles")
    assert done.status == 4
    assert "recorded" not in done.err


def test_a_config_is_looked_for_by_its_own_dtype_and_head_dimension(console: Console) -> None:
    """Recordings of d_head 64 are by events alone, those of the usual 128 by ncu too."""
    config = "sm90(BF16, 64, 256x64): stages_2+q_stages_2+pingpong+overlap+cross_tile_overlap"
    config += "+stale_max+dynamic+longest_first+adaptive_max"
    for asked in (
        ("profile", config, "--ref", "none"),
        ("search", "--kernels", config),
    ):
        done = console(*asked)
        assert done.status == 0, done.err
        assert "d_head 64, BF16" in done.out


def test_other_inputs_that_are_recorded_are_named(console: Console) -> None:
    done = console(
        *("search", "--seq-lens", "1", "--seq-lens-kv", "8192", "--batch", "64", "--dtype", "bf16"),
        *("--heads", "64", "--kv-heads", "8", "--inputs", "normal"),
    )
    assert done.status == 4
    assert "on normal inputs holds" in done.err
    assert "take --inputs trained" in done.err


def test_a_config_that_is_not_recorded_is_refused_with_what_to_do(console: Console) -> None:
    done = console("profile", "(BF16, 64, 64, 64, 4): async+load_2_2_2_tiles")
    assert (done.status, done.out) == (4, "")
    (line,) = done.err.splitlines()
    assert ".csv" not in line, "no list of files"
    advice = line.partition("fa-tune ")[2].partition(";")[0].split()
    assert console(*advice).status == 0
