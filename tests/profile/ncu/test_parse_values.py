"""Values that are none, units, separators and encodings."""

from __future__ import annotations

import re

import pytest

from fa_tune.core.errors import ProfileFormatError, UnknownUnit
from fa_tune.core.model import Quantity
from fa_tune.profile.ncu.launches import Missing
from fa_tune.profile.ncu.parse import parse_ncu_csv
from tests.profile.ncu.ncu_text import (
    CLI,
    CLOCK,
    DATA,
    DURATION,
    PREAMBLE,
    SOL,
    STYLES,
    TEN_US,
    Metric,
    details,
    identity,
    one,
    only,
    raw,
    rule_row,
    seconds,
)

# Values that are none ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no data", "no data"),
        ("n/a", "n/a"),
        ("N/A", "n/a"),
        ("nan", "nan"),
        ("-nan", "nan"),
        ("nan(ind)", "nan"),
        ("(!) nan", "nan"),
        ("(!) n/a", "n/a"),
        ("inf", "inf"),
        ("-inf", "inf"),
        ("", "empty"),
        ("  ", "empty"),
    ],
)
@pytest.mark.parametrize("unit", ["ns", "%", "", "inst"])
def test_missing_values_are_missing(text: str, reason: str, unit: str) -> None:
    name = DURATION if unit == "ns" else "sm__x.sum"
    assert one((CLI, name, unit, text)).metrics == {name: Missing(reason)}
    launch = only(parse_ncu_csv(raw([(name, unit)], (identity(), [text]))))
    assert launch.metrics == {name: Missing(reason)}


def test_not_collected_is_missing_and_names_are_text() -> None:
    launch = one(TEN_US, CLOCK)
    assert launch.value("sm__warps_active.avg") == Missing("not collected")
    assert launch.quantity("sm__warps_active.avg") is None
    assert launch.quantity(DURATION) == Quantity(10240e-9, "s")
    columns = [("launch__func_cache_config", ""), ("device__attribute_display_name", "")]
    columns += [("launch__tpc_enabled", ""), ("device__attribute_driver", "")]
    values = ["CachePreferNone", "NVIDIA H200", "all", "580.159.03"]
    launch = only(parse_ncu_csv(raw(columns, (identity(), values))))
    assert list(launch.metrics.values()) == values


@pytest.mark.parametrize("text", ["12x4", "PolicySpread", "1,23", "0x1f", "580.159.03"])
@pytest.mark.parametrize("unit", ["ns", "hz", "byte", "%"])
def test_text_where_a_measurement_belongs_is_refused(text: str, unit: str) -> None:
    if text == "1,23":
        text = "1,2,3"
    with pytest.raises(ProfileFormatError, match=r"line 2, .*is not a number") as caught:
        one((CLI, "sm__x.avg", unit, text), (CLI, "sm__y.avg", "", "0.5"))
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    "text", ["240; 240; 240", "1,234 (3; 4)", "12 (0: 3; 1: 4)", "7.50 (7.50)"]
)
def test_cells_that_list_instances_are_not_read(text: str) -> None:
    metric: Metric = (CLI, "smsp__inst_executed.sum", "inst", text)
    profile = parse_ncu_csv(details((identity(), [metric, CLOCK])))
    assert only(profile).metrics["smsp__inst_executed.sum"] == Missing("instances")
    assert any("--print-metric-instances none" in w for w in profile.warnings)


@pytest.mark.parametrize(
    "text",
    ["1e99999999999999999999", "1e-99999999999999999999", "9" * 400, "1e400", "1_0", "\u0661"],
)
def test_what_is_no_number_of_this_world_is_refused(text: str) -> None:
    for name, unit in ((DURATION, "ns"), (DURATION, "us"), ("launch__registers_per_thread", "")):
        for page in (
            details((identity(), [(CLI, name, unit, text)])),
            raw([(name, unit)], (identity(), [text])),
            raw([(name, unit)], (identity(), ["1"]), (identity(1), [text])),
        ):
            with pytest.raises(ProfileFormatError, match=name):
                parse_ncu_csv(page)


@pytest.mark.parametrize("rollup", ["sum", "avg", "min", "max"])
def test_one_launch_has_one_duration_by_any_rollup(rollup: str) -> None:
    launch = one((CLI, f"gpu__time_duration.{rollup}", "us", "1.5"), CLOCK)
    assert launch.value(DURATION) == launch.quantity(DURATION) == Quantity(1.5e-6, "s")
    absent = one((CLI, f"gpu__time_duration.{rollup}", "us", "n/a"), CLOCK)
    assert absent.quantity(DURATION) is None


# Units ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "unit", "text", "quantity"),
    [
        (DURATION, "nsecond", "1,767.00", Quantity(1.767e-6, "s")),
        ("sm__cycles_elapsed.avg.per_second", "cycle/nsecond", "1.76", Quantity(1.76e9, "hz")),
        ("dram__bytes_read.sum", "Mbyte", "12.50", Quantity(12.5e6, "byte")),
        ("dram__bytes.sum.per_second", "Gbyte/second", "1.93", Quantity(1.93e9, "byte/s")),
        ("launch__shared_mem_per_block", "Kbyte/block", "33.79", Quantity(33790, "byte/block")),
        (
            "launch__registers_per_thread",
            "register/thread",
            "128",
            Quantity(128, "register/thread"),
        ),
        ("launch__registers_per_thread", "", "128", Quantity(128, "")),
        ("sm__new_counter.sum", "widget", "12.50", Quantity(12.5, "widget")),
    ],
)
def test_units(name: str, unit: str, text: str, quantity: Quantity) -> None:
    assert one((CLI, name, unit, text)).metrics[name] == quantity


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        (DURATION, "fortnight"),
        (DURATION, "minute"),
        (DURATION, ""),
        (DURATION, "%"),
        (DURATION, "hz"),
        ("sm__cycles_elapsed.avg.per_second", "cycle"),
        ("lts__t_sector_hit_rate.pct", ""),
        ("sm__cycles_elapsed.max", "us"),
        ("sm__cycles_elapsed.max", "Kcycle"),
        ("sm__cycles_elapsed.max", "register/thread"),
        ("launch__registers_per_thread", "cycle"),
        ("launch__registers_per_thread", "byte"),
        ("smsp__inst_executed.sum", "%"),
        ("sm__other.sum", "Xbyte"),
        ("sm__other.sum", "inst/minute"),
    ],
)
def test_unknown_and_unfitting_units_are_refused(name: str, unit: str) -> None:
    with pytest.raises(UnknownUnit, match=r"^line 2, ") as caught:
        one((CLI, name, unit, "12.50"))
    assert name in str(caught.value)
    assert repr(unit) in str(caught.value)
    assert isinstance(one((CLI, name, unit, "no data")).metrics[name], Missing)


# Separators and encodings --------------------------------------------------------------------


def test_a_single_time_and_a_page_cut_within_a_character_are_read() -> None:
    """The commonest request of all prints one number, and there are no parts of a ns."""
    assert seconds(one((CLI, DURATION, "ns", "21,248"))) == 21248e-9
    assert seconds(one((CLI, DURATION, "nsecond", "21.248"))) == 21248e-9
    data = details((identity(), [TEN_US, CLOCK])).encode("utf-16")
    profile = parse_ncu_csv(data[:-21])
    assert only(profile).metrics.keys() == {DURATION}
    assert len(profile.warnings) == 1


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252"]
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_encodings_and_line_ends(encoding: str, newline: str) -> None:
    metrics: list[Metric] = [(SOL, "Duration", "\u00b5s", "1\u00a0234,50")]
    text = PREAMBLE + details((identity(), metrics)) + rule_row(identity())
    data = text.replace("\n", newline).encode(encoding)
    profile = parse_ncu_csv(data)
    assert seconds(only(profile)) == 1234.5e-6
    assert profile.diagnostics == tuple(PREAMBLE.splitlines())
    assert profile.warnings == (
        ("not UTF-8; read as Windows-1252",) if encoding == "cp1252" else ()
    )


@pytest.mark.parametrize("style_name", sorted(STYLES))
@pytest.mark.parametrize(
    "name", ["details_basic_h200.csv", "details_full_h100.csv", "raw_4metrics_h200.csv"]
)
def test_a_recording_reads_the_same_in_every_locale(name: str, style_name: str) -> None:
    """Real pages, their values as another locale would have printed them."""
    style = STYLES[style_name]
    marks = str.maketrans({",": style.group, ".": style.decimal})
    text = (DATA / name).read_text()
    localised = re.sub(
        r'(?<=")[0-9]{1,3}(?:,[0-9]{3})*(?:\.[0-9]+)?(?=")', lambda m: m[0].translate(marks), text
    )
    assert style_name == "en" or localised != text
    localised = localised.replace(f'"9{style.decimal}0"', '"9.0"')  # the CC column has no locale
    assert parse_ncu_csv(localised).launches == parse_ncu_csv(text).launches
