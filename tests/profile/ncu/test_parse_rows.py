"""The shapes rows come in, what stands between them, and where a file may end."""

from __future__ import annotations

import pytest

from fa_tune.core.errors import ProfileFormatError
from fa_tune.core.model import Quantity
from fa_tune.profile.ncu.launches import Missing
from fa_tune.profile.ncu.parse import parse_ncu_csv, read_profile
from tests.profile.ncu.ncu_text import (
    CLI,
    CLOCK,
    DATA,
    DURATION,
    IDENTITY,
    METRIC,
    PREAMBLE,
    SOL,
    TEN_US,
    details,
    details_row,
    identity,
    line,
    one,
    only,
    raw,
    rule_row,
    seconds,
)

# Row shapes ----------------------------------------------------------------------------------


def test_rule_rows_stand_between_metric_rows() -> None:
    launch = identity()
    text = details((launch, [TEN_US])) + rule_row(launch) + details_row(launch, CLOCK)
    profile = parse_ncu_csv(text)
    assert profile.warnings == ()
    assert only(profile).metrics.keys() == {DURATION, "sm__cycles_elapsed.avg.per_second"}
    rule = rule_row(identity()).replace("Low use, see", "Low use.\n- first\n\n- second, see")
    profile = parse_ncu_csv(details((identity(), [TEN_US])) + rule + details_row(identity(), CLOCK))
    assert len(only(profile).metrics) == 2
    assert profile.warnings == ()
    text = details((identity(0), [TEN_US])) + rule_row(identity(1))
    launches = parse_ncu_csv(text).launches
    assert [launch.launch_id for launch in launches] == [0, 1]
    assert launches[1].value(DURATION) == Missing("not collected")


@pytest.mark.parametrize("trailing", ["", ","])
def test_metrics_only_page_has_fifteen_columns(trailing: str) -> None:
    header = line([*IDENTITY, *METRIC])
    rows = [
        details_row(identity(), (CLI, DURATION, "ns", "21,248"), trailing),
        details_row(identity(), (CLI, "sm__cycles_elapsed.avg", "cycle", "849,828.42"), trailing),
    ]
    launch = only(parse_ncu_csv(header + "".join(rows)))
    assert launch.metrics == {
        DURATION: Quantity(21248e-9, "s"),
        "sm__cycles_elapsed.avg": Quantity(849828.42, "cycle"),
    }


def test_metrics_have_names_and_labels_and_damaged_rows_are_refused() -> None:
    launch = one(
        (SOL, DURATION, "ns", "10,240"),
        (SOL, "SM Frequency sm__cycles_elapsed.avg.per_second", "hz", "1,764,804,248.31"),
        ("Occupancy", "Achieved Occupancy (sm__warps_active.avg.x)", "%", "24.15"),
    )
    assert launch.metrics.keys() == {
        DURATION,
        "sm__cycles_elapsed.avg.per_second",
        "sm__warps_active.avg.x",
    }
    with pytest.raises(ProfileFormatError, match="line 2 names neither"):
        one(("", "", "", "12"))
    launch = identity()
    text = details((launch, [TEN_US])) + '"0","455","pyth\n' + details_row(launch, CLOCK)
    with pytest.raises(ProfileFormatError, match="line 3 is not a whole row"):
        parse_ncu_csv(text)
    text = details((launch, [TEN_US])) + details_row(launch | {"ID": "x"}, CLOCK)
    with pytest.raises(ProfileFormatError, match="line 3 does not fit the header"):
        parse_ncu_csv(text)


# Raw page ------------------------------------------------------------------------------------


def test_a_raw_page_needs_its_units_and_rows_of_one_width() -> None:
    text = line([*IDENTITY, DURATION]) + line([*identity().values(), "10,240"])
    with pytest.raises(ProfileFormatError, match="no row of units under the header of line 1"):
        parse_ncu_csv(text)
    columns = [(DURATION, "ns"), ("sm__cycles_elapsed.max", "cycle")]
    text = raw(columns, (identity(0), ["1", "2", "3"]), (identity(1), ["1", "2"]))
    with pytest.raises(ProfileFormatError, match="line 3 does not fit the header of line 1"):
        parse_ncu_csv(text)
    text = raw(columns, (identity(0), ["1"]), (identity(1), ["1", "2"]))
    with pytest.raises(ProfileFormatError, match="line 3 is not a whole row"):
        parse_ncu_csv(text)


# One name, two sections ----------------------------------------------------------------------


def test_one_metric_in_two_sections() -> None:
    launch = one(
        (SOL, "Memory Throughput", "%", "80.72"),
        ("Memory Workload Analysis", "Memory Throughput", "byte/s", "522,067,199,584.06"),
        ("A Section Of The Future", "Memory Throughput", "%", "1.25"),
    )
    assert launch.metrics == {
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": Quantity(80.72, "%"),
        "dram__bytes.sum.per_second": Quantity(522067199584.06, "byte/s"),
        "A Section Of The Future/Memory Throughput": Quantity(1.25, "%"),
    }
    spread = "GPU and Memory Workload Distribution"
    same = [(SOL, "SM Active Cycles", "cycle", "1,000.50")]
    same += [(spread, "Average SM Active Cycles", "cycle", "1,000.50")]
    profile = parse_ncu_csv(details((identity(), same)))
    assert only(profile).metrics == {"sm__cycles_active.avg": Quantity(1000.5, "cycle")}
    assert profile.warnings == ()
    other = [same[0], (spread, "Average SM Active Cycles", "cycle", "2,000.50")]
    profile = parse_ncu_csv(details((identity(), other)))
    assert only(profile).metrics == {"sm__cycles_active.avg": Quantity(1000.5, "cycle")}
    assert profile.warnings == (
        "sm__cycles_active.avg has two values in one launch; the first is kept",
    )
    absent = [(SOL, "SM Active Cycles", "cycle", "no data"), same[1]]
    assert only(parse_ncu_csv(details((identity(), absent)))).metrics == {
        "sm__cycles_active.avg": Quantity(1000.5, "cycle")
    }


# Launches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["details", "raw"])
def test_two_processes_with_equal_ids(page: str) -> None:
    a, b = identity(0, 455), identity(0, 456, "other_kernel")
    if page == "details":
        text = details(
            (a, [(SOL, "Duration", "us", "1.25")]), (b, [(SOL, "Duration", "us", "2.5")])
        )
    else:
        text = raw([(DURATION, "us")], (a, ["1.25"]), (b, ["2.5"]))
    launches = parse_ncu_csv(text).launches
    assert [(x.process_id, x.launch_id) for x in launches] == [(455, 0), (456, 0)]
    assert [seconds(x) for x in launches] == [1.25e-6, 2.5e-6]


def test_rows_of_one_launch_need_not_be_together() -> None:
    a, b = identity(0), identity(1)
    text = details((a, [TEN_US]), (b, [TEN_US])) + details_row(a, CLOCK)
    launches = parse_ncu_csv(text).launches
    assert [len(x.metrics) for x in launches] == [2, 1]
    table = details((identity(0), [TEN_US, CLOCK]))
    other = details((identity(1), [TEN_US, CLOCK]))
    assert len(parse_ncu_csv(PREAMBLE + table + PREAMBLE + other).launches) == 2
    with pytest.raises(ProfileFormatError, match="a details page and a raw page"):
        parse_ncu_csv(table + raw([(DURATION, "ns")], (identity(), ["1"])))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("Kernel Name", "b"),
        ("Host Name", "there"),
        ("Grid Size", "(16, 16, 17)"),
        ("Device", "1"),
        ("CC", "8.0"),
    ],
)
def test_one_launch_is_of_one_kernel_in_one_place(column: str, value: str) -> None:
    text = details((identity(), [TEN_US]), (identity() | {column: value}, [CLOCK]))
    with pytest.raises(ProfileFormatError, match="line 3: launch 0 of process 455 has another"):
        parse_ncu_csv(text)


# The program's own output --------------------------------------------------------------------

CHATTER = (
    'ok {"max_threads": 1024, "name": "k"}, 10, 0\n'
    '"quoted, with commas", and an "unbalanced one\n'
    "ID,Name,Value\n"
    '"1","two","3"\n'
    "1,2,3\n"
)


@pytest.mark.parametrize("page", ["details", "raw"])
def test_program_output_before_and_after(page: str) -> None:
    if page == "details":
        table = details((identity(), [TEN_US, CLOCK]))
    else:
        table = raw([(DURATION, "ns"), ("sm__x.avg", "inst")], (identity(), ["10,240", "0.25"]))
    quiet = parse_ncu_csv(table)
    noisy = parse_ncu_csv(CHATTER + PREAMBLE + CHATTER + table + CHATTER + "\n\n")
    assert noisy.launches == quiet.launches
    assert noisy.diagnostics == tuple(PREAMBLE.splitlines())
    assert noisy.warnings == ()


def test_program_output_between_rows() -> None:
    launch = identity()
    text = details((launch, [TEN_US])) + CHATTER + "==PROF== more\n" + details_row(launch, CLOCK)
    profile = parse_ncu_csv(text)
    assert len(only(profile).metrics) == 2
    assert profile.diagnostics == ("==PROF== more",)
    assert seconds(only(parse_ncu_csv("100 %" + details((identity(), [TEN_US, CLOCK]))))) > 0


# Nothing, or not all -------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "\n\n", b"", b"\xef\xbb\xbf", b"\xff\xfe", "\ufeff \r\n"])
def test_nothing_at_all(text: str | bytes) -> None:
    with pytest.raises(ProfileFormatError, match="the file is empty"):
        parse_ncu_csv(text)


def test_logs_without_launches_or_cut_off() -> None:
    for text in (details(), raw([(DURATION, "ns")])):
        with pytest.raises(ProfileFormatError, match="no launches in it: a header only"):
            parse_ncu_csv(PREAMBLE + text)
    with pytest.raises(ProfileFormatError, match="cut off within the header"):
        parse_ncu_csv(details()[:40])
    text = (
        "ID,Process ID,Kernel Name,Section Name,Metric Name,Metric Unit,Metric Value\n"
        "0,455,k,s,gpu__time_duration.sum,ns,492384\n"
        "1,455,k,s,gpu__time_duration.sum,ns,4923"
    )
    profile = parse_ncu_csv(text)
    assert [x.launch_id for x in profile.launches] == [0]
    assert len(profile.warnings) == 1
    assert len(parse_ncu_csv(text + "84\n").launches) == 2
    with pytest.raises(ProfileFormatError, match="the program launched cudnn_generated") as caught:
        read_profile(DATA / "no_kernels_profiled.csv")
    assert "flash_forward_kernel, flash_fwd_kernel" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["details_basic_h200.csv", "raw_4metrics_h200.csv"])
def test_cut_anywhere_no_value_changes(name: str) -> None:
    """A killed profiler: what is left reads as before, and what was cut off is missing."""
    text = (DATA / name).read_text()
    whole = {(x.process_id, x.launch_id): x for x in parse_ncu_csv(text).launches}
    start = text.rindex("\n", 0, len(text) - 1) + 1
    complete = parse_ncu_csv(text[:start])
    row = range(start + 1, len(text) - 1)
    for end in {*row[:60], *row[::37], *row[-60:]}:
        profile = parse_ncu_csv(text[:end])
        for launch in profile.launches:
            known = whole[launch.process_id, launch.launch_id]
            for key, value in launch.metrics.items():
                assert value in (known.metrics[key], Missing("empty")), (end, key)
        # Only the comma after the last value, or nothing but a quotation mark, may be lost
        # without a word.
        lost = sum(len(x.metrics) for x in profile.launches) < sum(
            len(x.metrics) for x in whole.values()
        )
        if lost and end > start + 1:
            assert any("is incomplete and was left out" in w for w in profile.warnings), end
            assert profile.launches == complete.launches


# Kernel names --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kernel",
    [
        "void k<C{5, 128, 64}>(float *, int)",
        "void (anonymous namespace)::k<(int)5, (bool)1>(T1::Params)",
        'void k<Text{"a", "b"}>()',
        "_ZN5flash20flash_forward_kernelEv",
        "void k<'x'>(char)",
        "k<" + "cute::tuple<cute::C<128>, " * 160 + ">",
        "\u03bb \u2014 kernel",
    ],
)
def test_kernel_names_come_back_as_they_were(kernel: str) -> None:
    launch = identity(kernel=kernel)
    assert one_name(details((launch, [TEN_US, CLOCK]))) == kernel
    assert one_name(raw([(DURATION, "us")], (launch, ["1.25"]))) == kernel


def one_name(text: str) -> str:
    return only(parse_ncu_csv(text)).kernel_name


def test_a_quotation_mark_that_was_not_doubled() -> None:
    text = details((identity(kernel="KERNEL"), [TEN_US, CLOCK]))
    text = text.replace("KERNEL", 'void k<Text{"a"}>(int)')
    launch = only(parse_ncu_csv(text))
    assert launch.kernel_name == 'void k<Text{"a"}>(int)'
    assert len(launch.metrics) == 2
