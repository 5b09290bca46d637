"""Raw pages of many launches are read by columns: the values are those of each cell by itself."""

from __future__ import annotations

import pytest

from fa_tune.core.errors import ProfileFormatError
from fa_tune.core.model import Quantity
from fa_tune.core.units import to_base
from fa_tune.profile.ncu.launches import Missing
from fa_tune.profile.ncu.log_tables import BLOCK_ROWS
from fa_tune.profile.ncu.parse import parse_ncu_csv
from tests.profile.ncu.ncu_text import CLI, DURATION, details, identity, raw

COLUMNS = [
    (DURATION, "ns"),
    ("launch__registers_per_thread", "register/thread"),
    ("sm__warps_active.avg", "%"),
    ("device__attribute_display_name", ""),
]
LAUNCHES = 2 * BLOCK_ROWS + 3


def _cells(i: int) -> list[str]:
    active = "n/a" if i % 7 == 0 else f"{i / 4:,.2f}"
    return [f"{1000 + i:,}", "168", active, "NVIDIA H200" if i % 2 else "NVIDIA H100"]


def test_every_launch_has_its_own_values() -> None:
    text = raw(COLUMNS, *((identity(i), _cells(i)) for i in range(LAUNCHES)))
    launches = parse_ncu_csv(text).launches
    assert [launch.launch_id for launch in launches] == list(range(LAUNCHES))
    for i, launch in enumerate(launches):
        assert launch.metrics == {
            DURATION: Quantity((1000 + i) / 10**9, "s"),
            "launch__registers_per_thread": Quantity(168.0, "register/thread"),
            "sm__warps_active.avg": Missing("n/a") if i % 7 == 0 else Quantity(i / 4, "%"),
            "device__attribute_display_name": "NVIDIA H200" if i % 2 else "NVIDIA H100",
        }
        assert launch.value("dram__bytes.sum") == Missing("not collected")


@pytest.mark.parametrize("text", ["-5", "seven", "1e400", "1,23"])
def test_one_bad_cell_among_many_is_refused_with_its_line(text: str) -> None:
    rows = [(identity(i), _cells(i)) for i in range(LAUNCHES)]
    bad = BLOCK_ROWS + 5
    rows[bad][1][0] = text
    with pytest.raises(ProfileFormatError, match=rf"line {bad + 3}, {DURATION}|{text}"):
        parse_ncu_csv(raw(COLUMNS, *rows))


@pytest.mark.parametrize(
    ("name", "unit", "good", "bad"),
    [
        (DURATION, "ns", "0", "-1"),
        (DURATION, "s", "86400", "86401"),
        ("sm__cycles_elapsed.max", "cycle", "5", "-5"),
        ("dram__bytes_read.sum", "byte", "5", "-5"),
        ("lts__t_bytes.sum", "byte", "5", "-5"),
        ("dram__bytes.sum.per_second", "Gbyte/s", "1.5", "-1.5"),
        ("sm__cycles_elapsed.avg.per_second", "Ghz", "1.5", "-1.5"),
        ("lts__t_sector_hit_rate.pct", "%", "1000", "1000.01"),  # 258 was seen
        ("lts__t_sector_hit_rate.pct", "%", "93.5", "-0.01"),
        ("launch__registers_per_thread", "register/thread", "168", "168.5"),
        ("launch__registers_per_thread", "", "168", "-3"),
    ],
)
def test_what_cannot_be_is_refused_on_every_page(name: str, unit: str, good: str, bad: str) -> None:
    read = to_base(float(good), unit)
    for text, refused in ((good, False), (bad, True)):
        pages = (
            raw([(name, unit)], (identity(), [text])),
            raw([(name, unit)], (identity(), [good]), (identity(1), [text])),
            details((identity(), [(CLI, name, unit, text)])),
        )
        for page in pages:
            if refused:
                with pytest.raises(ProfileFormatError, match=rf"line \d, {name}: '{text}' is"):
                    parse_ncu_csv(page, decimal=".")
            else:
                assert parse_ncu_csv(page, decimal=".").launches[-1].quantity(name) == read


@pytest.mark.parametrize("other", ["flash_forward_kernel", "another_kernel"])
def test_one_number_of_one_process_stands_for_one_launch(other: str) -> None:
    rows = (identity(3), ["1.5"]), (identity(4), ["2.5"]), (identity(3, kernel=other), ["3.5"])
    with pytest.raises(ProfileFormatError, match="launch 3 of process 455"):
        parse_ncu_csv(raw([(DURATION, "us")], *rows))
