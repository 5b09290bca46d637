"""Whatever is written in any supported unit and separator style is read back as it was, and
nothing makes a missing value a number."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given, settings
from hypothesis import strategies as st

from fa_tune.core.model import Quantity
from fa_tune.core.units import to_base
from fa_tune.profile.ncu.launches import Missing
from fa_tune.profile.ncu.parse import parse_ncu_csv
from tests.profile.ncu.ncu_text import STYLES, details, identity, number, raw

CLI = "Command line profiler metrics"
UNITS = [
    "ns", "nsecond", "us", "usecond", "ms", "msecond", "s", "second", "hz", "Khz", "Mhz", "Ghz",
    "cycle/nsecond", "cycle/second", "byte", "Kbyte", "Mbyte", "Gbyte", "Kbyte/block", "byte/s",
    "Kbyte/second", "Gbyte/second", "%", "", "cycle", "inst", "warp", "sector", "register/thread",
]  # fmt: skip
MISSING = ["no data", "n/a", "nan", "-nan", "", "inf", "(!) nan"]

values = st.decimals(min_value=-(10**13), max_value=10**13, places=2)
cell = st.one_of(values, st.sampled_from(MISSING))
table = st.lists(st.lists(cell, min_size=len(UNITS), max_size=len(UNITS)), min_size=1, max_size=3)


def expected(value: Decimal | str, unit: str) -> Quantity | None:
    return None if isinstance(value, str) else to_base(value, unit)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(STYLES)), st.booleans(), table)
def test_any_table_is_read_back(
    style_name: str, as_raw: bool, rows: list[list[Decimal | str]]
) -> None:
    style = STYLES[style_name]
    names = [f"sm__metric_{i}.avg" for i in range(len(UNITS))]
    # Only counts and shares may be negative.
    signed = [u for u in UNITS if to_base(1, u).unit not in ("s", "hz", "byte", "byte/s")]
    rows = [
        [c if isinstance(c, str) or u in signed else abs(c) for c, u in zip(r, UNITS, strict=True)]
        for r in rows
    ]
    texts = [[c if isinstance(c, str) else number(c, style) for c in row] for row in rows]
    if as_raw:
        text = raw(
            list(zip(names, UNITS, strict=True)),
            *((identity(i), row) for i, row in enumerate(texts)),
        )
    else:
        text = details(
            *(
                (
                    identity(i),
                    [(CLI, n, u, t) for n, u, t in zip(names, UNITS, row, strict=True)],
                )
                for i, row in enumerate(texts)
            )
        )
    launches = parse_ncu_csv(text.encode("utf-8")).launches
    assert len(launches) == len(rows)
    for launch, row in zip(launches, rows, strict=True):
        for name, unit, value in zip(names, UNITS, row, strict=True):
            read = launch.metrics[name]
            wanted = expected(value, unit)
            assert isinstance(read, Missing) if wanted is None else read == wanted
