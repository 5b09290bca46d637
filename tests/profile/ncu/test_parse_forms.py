"""Headers of other releases, other column orders, and forms that hold no launches."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_tune.core.errors import ProfileFormatError
from fa_tune.core.model import Quantity
from fa_tune.profile.ncu.parse import parse_ncu_csv, read_profile
from tests.profile.ncu.ncu_text import (
    CLOCK,
    DURATION,
    IDENTITY,
    METRIC,
    PREAMBLE,
    RULE,
    SOL,
    TEN_US,
    details,
    identity,
    line,
    only,
    raw,
    seconds,
)

# Forms and headers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        '"Process ID","Process Name","Host Name","Kernel Name","Block Size","Grid Size","Device",'
        '"CC","Invocations","Section Name","Metric Name","Metric Unit","Minimum","Maximum",'
        '"Average"\n'
        '"109199","app","127.0.0.1","k","(256, 1, 1)","(4096, 1, 1)","0","9.0","14","Occupancy",'
        '"Theoretical Occupancy","%","100.00","100.00","100.00"\n',
        '"Device","CC","Kernel Name","Invocations","Metric Name","Metric Unit","Minimum",'
        '"Maximum","Average"\n',
    ],
)
def test_a_summary_is_named_and_the_option_to_leave_out(header: str) -> None:
    with pytest.raises(ProfileFormatError, match=r"rerun ncu without --print-summary"):
        parse_ncu_csv(PREAMBLE + header)


OLD_HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Kernel Time","Context","Stream",'
    '"Section Name","Metric Name","Metric Unit","Metric Value"\n'
)


def test_an_old_header_with_kernel_time() -> None:
    """2020: no grouping, no block or grid column, `nsecond`, another section name."""
    row = '"0","21524","cfd","127.0.0.1","step","2020-Apr-07 17:01:05","1","7",'
    text = (
        "==PROF== Connected to process 21524\n"
        + OLD_HEADER
        + "\n"
        + row
        + '"GPU Speed Of Light","Memory Frequency","cycle/second","772656250"\n'
        + row
        + '"GPU Speed Of Light","SOL FB","%","39.60"\n'
        + row
        + '"GPU Speed Of Light","Elapsed Cycles","cycle","11733"\n'
        + row
        + '"GPU Speed Of Light","Duration","usecond","9.18"\n'
    )
    profile = parse_ncu_csv(text)
    assert profile.warnings == ()
    launch = only(profile)
    assert launch.metrics == {
        "dram__cycles_elapsed.avg.per_second": Quantity(772656250, "hz"),
        "GPU Speed Of Light/SOL FB": Quantity(39.6, "%"),
        "gpc__cycles_elapsed.max": Quantity(11733, "cycle"),
        DURATION: Quantity(9.18e-6, "s"),
    }
    assert (launch.block, launch.grid) == (None, None)
    assert (launch.device, launch.compute_capability) == ("", "")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("(128, 1, 1)", (128, 1, 1)),
        ("(128,1,1)", (128, 1, 1)),
        ("(16,384, 16, 1)", (16384, 16, 1)),
        ("(16.384, 16, 1)", (16384, 16, 1)),
        ("(16\u202f384, 16, 1)", (16384, 16, 1)),
        ("128, 2, 1", (128, 2, 1)),
        ("", None),
    ],
)
def test_sizes(text: str, size: tuple[int, int, int] | None) -> None:
    launch = only(parse_ncu_csv(details((identity() | {"Grid Size": text}, [TEN_US, CLOCK]))))
    assert launch.grid == size


@pytest.mark.parametrize(
    "text", ["(128, 1)", "(a, 1, 1)", "128", "(1.5, 1, 1)", f"({'9' * 5000}, 1, 1)"]
)
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ProfileFormatError, match=r"line 2: .* is no Block Size"):
        parse_ncu_csv(details((identity() | {"Block Size": text}, [TEN_US, CLOCK])))


@pytest.mark.parametrize(("text", "number"), [("1234", 1234), ("1,234", 1234), ("1.234", 1234)])
def test_ids_may_be_grouped(text: str, number: int) -> None:
    launch = only(parse_ncu_csv(details((identity() | {"ID": text}, [TEN_US, CLOCK]))))
    assert launch.launch_id == number


@pytest.mark.parametrize("text", ["1.0", "-1", "0x1", "", "1_0", "9" * 5000, "1" + ",000" * 2000])
def test_ids_that_are_no_whole_numbers_are_refused(text: str) -> None:
    with pytest.raises(ProfileFormatError, match="line 2 does not fit the header"):
        parse_ncu_csv(details((identity() | {"ID": text}, [TEN_US, CLOCK])))


def test_columns_in_another_order_and_unknown_ones_are_told() -> None:
    names = ["Metric Value", "Colour", "Grid Size", "Kernel Name", "Metric Unit", "ID", "CC"]
    names += ["Section Name", "Process ID", "Metric Name", "Block Size", *RULE]
    values = ["10,240", "green", "(2, 3, 4)", "k<1, 2>", "ns", "7", "9.0", SOL, "455", "Duration"]
    values += ["(32, 1, 1)"]
    text = line(names) + line(values)
    profile = parse_ncu_csv(text + line(["no data", *values[1:9], "SM Frequency", *values[10:]]))
    launch = only(profile)
    assert (launch.process_id, launch.launch_id, launch.kernel_name) == (455, 7, "k<1, 2>")
    assert (launch.block, launch.grid) == ((32, 1, 1), (2, 3, 4))
    assert seconds(launch) == 10240e-9
    assert profile.warnings == ("column 'Colour' is not known and was ignored",)
    nvtx = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"
    values = [*identity().values()]
    text = line([*IDENTITY[:4], nvtx, *IDENTITY[4:], *METRIC])
    text += line([*values[:4], "fa_tune:measure", *values[4:], *TEN_US])
    profile = parse_ncu_csv(text)
    assert profile.warnings == ()
    assert seconds(only(profile)) == 10240e-9
    columns = [("Some New Column", ""), (DURATION, "us"), ("inst_executed", "inst")]
    profile = parse_ncu_csv(raw(columns, (identity(), ["blue", "1.25", "512"])))
    assert only(profile).metrics.keys() == {DURATION, "inst_executed"}
    assert profile.warnings == ("column 'Some New Column' is not known and was ignored",)


@pytest.mark.parametrize("name", [DURATION, "Grid Size", "launch__registers_per_thread"])
def test_a_column_that_stands_twice_is_refused(name: str) -> None:
    columns = [(DURATION, "us"), ("launch__registers_per_thread", ""), (name, "us")]
    with pytest.raises(ProfileFormatError, match=f"line 1 has {name} twice"):
        parse_ncu_csv(raw(columns, (identity(), ["1.25", "168", "9.5"])))


@pytest.mark.parametrize("column", ["Process ID", "Metric Unit", "Section Name"])
def test_a_header_that_lacks_a_column_is_refused_by_its_name(column: str) -> None:
    names = [n for n in (*IDENTITY, *METRIC) if n != column]
    with pytest.raises(ProfileFormatError, match=f"lacks {column}"):
        parse_ncu_csv(line(names) + line(["0"] * len(names)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello\nworld\n", "no ncu table in it"),
        (details((identity(), [TEN_US])).replace('","', '";"'), "something other than commas"),
        (
            "  flash_forward_kernel (16, 16, 16)x(128, 1, 1)\n    Section: Occupancy\n"
            "    ------------------- ----------- ------------\n"
            "    Metric Name         Metric Unit Metric Value\n",
            "table for the console",
        ),
        ('"Kernel Name","k"\n"#","Address","Source"\n"0","0x0","LDC R1"\n', "no ncu table in it"),
        ('{"version": 1}', "no ncu table in it"),
        (b"NVR\x00\x10\x00binary", "ncu --import"),
        (b"\x28\xb5\x2f\xfd\x10\x00binary", "ncu --import"),
    ],
)
def test_what_is_no_page_is_named(text: str | bytes, words: str) -> None:
    with pytest.raises(ProfileFormatError, match=words) as caught:
        parse_ncu_csv(text)
    assert "--page raw --csv" in str(caught.value) or "--csv --page raw" in str(caught.value)


def test_raw_pages_of_several_processes_and_whole_counts_are_read() -> None:
    columns = [(DURATION, "ns")]
    pages = (raw(columns, (identity(0, process), [f"{process}00"])) for process in (7, 8))
    launches = parse_ncu_csv("".join(pages)).launches
    assert [one.process_id for one in launches] == [7, 8]
    assert [one.metrics[DURATION] for one in launches] == [
        Quantity(700e-9, "s"),
        Quantity(800e-9, "s"),
    ]
    assert {one.host for one in launches} == {"127.0.0.1"}
    registers = "launch__registers_per_thread"
    columns = [(DURATION, "ns"), ("sm__cycles_elapsed.avg.per_second", "cycle/second")]
    text = raw(columns, (identity(0), ["1.024", "3.248"]), (identity(1), ["3.248", "3.248"]))
    first, _ = parse_ncu_csv(text).launches
    assert first.metrics[DURATION] == Quantity(1024e-9, "s")
    named = raw([(registers, "register/thread")], (identity(0), ["1.024"]))
    assert parse_ncu_csv(named).launches[0].metrics[registers] == Quantity(1024, "register/thread")


@pytest.mark.parametrize(("decimal", "value"), [(",", 1.024e-6), (".", 1024e-6)])
def test_a_mark_that_is_told_holds_for_a_file(tmp_path: Path, decimal: str, value: float) -> None:
    path = tmp_path / "log.csv"
    path.write_text(raw([(DURATION, "us")], (identity(0), ["1,024"])))
    found = read_profile(path, decimal=decimal).launches[0].metrics[DURATION]
    assert found == Quantity(pytest.approx(value), "s")  # type: ignore[arg-type]
