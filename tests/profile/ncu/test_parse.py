"""The parser on real files (excerpts of H100 and H200 recordings, ncu 2025.3.1), on logs of runs
that failed, and on paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_tune.core.errors import ProfileFormatError, StorageError
from fa_tune.core.model import Quantity
from fa_tune.profile.ncu.launches import Missing
from fa_tune.profile.ncu.parse import parse_ncu_csv, read_profile
from tests.profile.ncu.ncu_text import CLOCK, DATA, DURATION, TEN_US, details, identity

# Golden files --------------------------------------------------------------------------------


def test_golden_details_page_with_reference_kernels() -> None:
    profile = read_profile(DATA / "details_basic_h200.csv")
    assert profile.form == "details"
    assert profile.warnings == ()
    assert [d.split()[0] for d in profile.diagnostics] == ["==WARNING==", "==PROF==", "==PROF=="]
    ours, fa2, cudnn = profile.launches
    assert (ours.process_id, ours.launch_id) == (455, 0)
    assert ours.kernel_name == (
        "void flash::flash_forward_kernel<flash::StaticForwardKernelConfig<FlashForwardKernelConfig"
        "{5, 128, 64, 32, 4, 1, 1, 1, 2, 2, 0, 0, 0}>>(flash::ForwardKernelArgs)"
    )
    assert (ours.block, ours.grid) == ((128, 1, 1), (16, 16, 16))
    assert (ours.device, ours.compute_capability) == ("0", "9.0")
    assert ours.metrics[DURATION] == Quantity(492384e-9, "s")
    assert ours.metrics["sm__cycles_elapsed.avg.per_second"] == Quantity(1764804248.31, "hz")
    assert ours.metrics["dram__cycles_elapsed.avg.per_second"] == Quantity(3199232035.70, "hz")
    assert ours.metrics["gpc__cycles_elapsed.max"] == Quantity(872051, "cycle")
    assert ours.metrics["launch__registers_per_thread"] == Quantity(128, "register/thread")
    assert ours.metrics["lts__t_sector_hit_rate.pct"] == Quantity(84.13, "%")
    assert ours.metrics["launch__cluster_scheduling_policy"] == "PolicySpread"
    assert fa2.block == (128, 1, 1)
    assert fa2.metrics[DURATION] == Quantity(417728e-9, "s")
    assert fa2.metrics["launch__registers_per_thread"] == Quantity(255, "register/thread")
    assert cudnn.block == (384, 1, 1)
    assert cudnn.grid == (132, 1, 1)
    assert cudnn.metrics[DURATION] == Quantity(233952e-9, "s")
    assert cudnn.metrics["gpc__cycles_elapsed.max"] == Quantity(382972, "cycle")


def test_golden_full_details_page() -> None:
    profile = read_profile(DATA / "details_full_h100.csv")
    assert profile.warnings == ()
    assert any("Unable to access the following 6" in d for d in profile.diagnostics)
    first, second = profile.launches
    assert first.kernel_name == second.kernel_name  # one kernel, launched twice
    assert first.metrics[DURATION] == Quantity(21216e-9, "s")
    assert first.metrics["lts__t_sector_hit_rate.pct"] == Quantity(100.59, "%")
    assert second.metrics["lts__t_sector_hit_rate.pct"] == Quantity(100.25, "%")
    assert first.metrics["smsp__inst_executed.sum"] == Quantity(18743296, "inst")
    assert first.metrics["PM Sampling/Maximum Sampling Interval"] == Quantity(1500e-9, "s")


def test_golden_raw_page() -> None:
    profile = read_profile(DATA / "raw_4metrics_h200.csv")
    assert profile.form == "raw"
    assert profile.warnings == ()
    ours, fa2, cudnn = profile.launches
    assert ours.metrics[DURATION] == Quantity(7331296e-9, "s")
    assert ours.metrics["sm__cycles_elapsed.max"] == Quantity(13176248, "cycle")
    assert ours.metrics["sm__cycles_elapsed.avg"] == Quantity(13129789.74, "cycle")
    assert ours.metrics["launch__shared_mem_per_block_dynamic"] == Quantity(32768, "byte/block")
    assert ours.metrics["profiler__replayer_passes"] == Quantity(3, "pass")
    assert ours.metrics["device__attribute_total_memory"] == Quantity(150109880320, "")
    assert ours.metrics["device__attribute_confidential_computing_mode"] == "No-CC"
    assert ours.metrics["launch__kernel_name"] == Missing("empty")
    assert ours.metrics["device__attribute_display_name"] == "NVIDIA H200"
    assert (fa2.grid, cudnn.grid) == ((32, 16, 16), (132, 1, 1))
    assert cudnn.metrics[DURATION] == Quantity(3332928e-9, "s")
    text = (DATA / "raw_4metrics_h200.csv").read_text()
    assert "launch__occupancy_per_register_count" in text
    launch = read_profile(DATA / "raw_4metrics_h200.csv").launches[0]
    assert not [k for k in launch.metrics if k.startswith("launch__occupancy_per_")]
    assert "launch__occupancy_limit_registers" in launch.metrics


def test_display_names_and_identifiers_agree() -> None:
    """Launch facts do not depend on the sequence length, so the details page of one length and
    the raw page of another must show the same for the same kernel."""
    by_name = read_profile(DATA / "details_basic_h200.csv").launches
    by_identifier = read_profile(DATA / "raw_4metrics_h200.csv").launches
    length_dependent = {"launch__grid_size", "launch__thread_count"}
    length_dependent.add("launch__waves_per_multiprocessor")
    compared = 0
    for a, b in zip(by_name, by_identifier, strict=True):
        assert a.kernel_name == b.kernel_name
        shared = {
            k for k in a.metrics.keys() & b.metrics.keys() if k.startswith(("launch__", "sm__max"))
        }
        if a.grid != b.grid:
            shared -= length_dependent
        for key in shared:
            assert a.metrics[key] == b.metrics[key], key
            compared += 1
    assert compared > 60


# Failed runs ---------------------------------------------------------------------------------


PROF = "==PROF== Connected to process 4711 (/usr/bin/python3)\n"
CODE = "==ERROR== The application returned an error code (139).\n"
COMPLETE = details((identity(), [TEN_US, CLOCK]))


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (PROF + CODE, r"program failed .*\(139\)"),
        (PROF + details() + CODE, r"program failed .*\(139\)"),
        (
            PROF + "==ERROR== Profiling failed for some reason.\n",
            "Profiling failed for some reason",
        ),
        (PROF, "ended before a table"),
        (PROF + '==PROF== Profiling "k" - 0: 0%....50%\nloading\n', "ended before a table"),
        (PROF + "==PROF== Report: /tmp/k.ncu-rep\n", "ncu --import /tmp/k.ncu-rep"),
    ],
)
def test_a_log_without_launches_tells_why_and_not_to_add_an_option_it_had(
    log: str, said: str
) -> None:
    with pytest.raises(ProfileFormatError, match=said) as caught:
        parse_ncu_csv(log)
    assert "rerun" not in str(caught.value)


def test_launches_before_a_failure_are_read_and_the_failure_is_said() -> None:
    profile = parse_ncu_csv(PROF + COMPLETE + CODE)
    assert profile.launches == parse_ncu_csv(COMPLETE).launches
    assert any("(139)" in warning for warning in profile.warnings)


# Files ---------------------------------------------------------------------------------------


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.csv", tmp_path):
        with pytest.raises(StorageError, match=rf"^cannot read {path}: "):
            read_profile(path)
