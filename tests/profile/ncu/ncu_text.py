"""What the parser's tests share: text as ncu prints it, in any page, unit and separator style,
and the launch that is read back from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from fa_tune.core.model import Quantity
from fa_tune.profile.ncu.launches import Launch, Profile
from fa_tune.profile.ncu.parse import parse_ncu_csv

IDENTITY = (
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream",
    "Block Size", "Grid Size", "Device", "CC",
)  # fmt: skip
METRIC = ("Section Name", "Metric Name", "Metric Unit", "Metric Value")
RULE = (
    "Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup",
)  # fmt: skip

Metric = tuple[str, str, str, str]  # section, name, unit, value
PREAMBLE = (
    "==WARNING== Note: Running with unmodified GPU clocks.\n"
    "==PROF== Connected to process 455 (/usr/bin/python3.12)\n"
    "==PROF== Disconnected from process 455\n"
)


@dataclass(frozen=True)
class Style:
    """A decimal mark and a grouping mark ("" for none)."""

    decimal: str
    group: str


STYLES = {
    "c": Style(".", ""),
    "en": Style(".", ","),
    "de": Style(",", "."),
    "fr": Style(",", "\u202f"),
    "fr-nbsp": Style(",", "\u00a0"),
    "fr-thin": Style(",", "\u2009"),
    "si": Style(".", " "),
    "ch": Style(".", "'"),
    "ch-typographic": Style(".", "\u2019"),
}


def number(value: Decimal | int, style: Style, decimals: int | None = 2) -> str:
    """`value` as a program in that locale prints it."""
    text = f"{value:,}" if decimals is None else f"{value:,.{decimals}f}"
    return text.replace(",", "\0").replace(".", style.decimal).replace("\0", style.group)


def line(fields: Sequence[str]) -> str:
    return ",".join('"' + f.replace('"', '""') + '"' for f in fields) + "\n"


def identity(
    launch: int = 0, process: int = 455, kernel: str = "flash_forward_kernel"
) -> dict[str, str]:
    values = (
        str(launch), str(process), "python3.12", "127.0.0.1", kernel, "1", "7", "(128, 1, 1)",
        "(16, 16, 16)", "0", "9.0",
    )  # fmt: skip
    return dict(zip(IDENTITY, values, strict=True))


def details_row(launch: Mapping[str, str], metric: Metric, trailing: str = ",") -> str:
    """A metric's row under a header with rule columns: 15 fields and a lone comma."""
    return line([*launch.values(), *metric]).removesuffix("\n") + trailing + "\n"


def rule_row(launch: Mapping[str, str], section: str = "SpeedOfLight") -> str:
    rule = ("SOLBottleneck", "OPT", "Low use, see (https://x.y/z), 12.5% and more", "local", "87.5")
    return line([*launch.values(), section, "", "", "", *rule])


def details(*launches: tuple[Mapping[str, str], Sequence[Metric]], rules: bool = True) -> str:
    rows = [line([*IDENTITY, *METRIC, *(RULE if rules else ())])]
    for launch, metrics in launches:
        rows += [details_row(launch, m, "," if rules else "") for m in metrics]
    return "".join(rows)


def raw(
    columns: Sequence[tuple[str, str]],
    *launches: tuple[Mapping[str, str], Sequence[str]],
) -> str:
    """A raw page: (name, unit) of each metric column, then launches with their values."""
    rows = [line([*IDENTITY, *(name for name, _ in columns)])]
    rows += [line([*[""] * len(IDENTITY), *(unit for _, unit in columns)])]
    rows += [line([*launch.values(), *values]) for launch, values in launches]
    return "".join(rows)


# Reading back ---------------------------------------------------------------------------------

DATA = Path(__file__).parent / "data"
DURATION = "gpu__time_duration.sum"
SOL = "GPU Speed Of Light Throughput"
CLI = "Command line profiler metrics"
TEN_US: Metric = (SOL, "Duration", "ns", "10,240")
CLOCK: Metric = (SOL, "SM Frequency", "hz", "1,764,804,248.31")


def only(profile: Profile) -> Launch:
    """The one launch of a profile."""
    (launch,) = profile.launches
    return launch


def seconds(launch: Launch) -> float:
    """A launch's duration, which must be a number."""
    value = launch.value(DURATION)
    assert isinstance(value, Quantity)
    assert value.unit == "s"
    return value.value


def one(metric: Metric, *more: Metric, decimal: str | None = None) -> Launch:
    """The launch of a details page with these metrics."""
    return only(parse_ncu_csv(details((identity(), [metric, *more])), decimal=decimal))
