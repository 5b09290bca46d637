"""Damaged pages of ncu are read as they stand, or refused, or their last row is left out with a
warning: no number comes from a row that is not there."""

import math
import random
from pathlib import Path

import pytest

from fa_tune.core.errors import FaTuneError
from fa_tune.core.model import Quantity
from fa_tune.profile.ncu.parse import parse_ncu_csv
from fa_tune.report.load import parse_report_source
from tests.fuzz import ncu_reader
from tests.fuzz.mutations import mutants
from tests.profile.ncu.ncu_text import details, identity, raw

MUTANTS = 2000  # of each page
DATA = Path(__file__).parents[1] / "report" / "data"
OURS = "void k<FlashForwardKernelConfig{5, 128, 64, 64, 4, 1, 1, 1, 2, 2, 2, 1, 1}>(Args)"
CLI = "GPU Speed Of Light Throughput"
COLUMNS = [
    ("gpu__time_duration.sum", "us"),
    ("launch__registers_per_thread", "register/thread"),
    ("lts__t_sector_hit_rate.pct", "%"),
    ("sm__cycles_elapsed.avg", "cycle"),
]
PAGES = {
    "raw": raw(
        COLUMNS,
        (identity(0, 455, OURS), ["1,234.56", "168", "93.75", "2,345,678.91"]),
        (identity(1, 455, OURS), ["1,230.5", "168", "93.5", "2,345,000.25"]),
        (identity(2, 455, "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob"),
         ["987.25", "128", "80.1", "1,000.5"]),
    ),
    "details": details(
        *(
            (
                identity(i, 455, OURS),
                [
                    (CLI, "Elapsed Cycles", "cycle", "872,051"),
                    (CLI, "Duration", "us", duration),
                    ("Launch Statistics", "Registers Per Thread", "register/thread", "168"),
                    ("Memory Workload Analysis", "L2 Hit Rate", "%", "93.74"),
                ],
            )
            for i, duration in enumerate(("1,234.56", "1,230.51"))
        )
    ),
}  # fmt: skip
ROW = PAGES["raw"].splitlines()[3]
PIECES = (
    *('"', '","', ",", '"0",', "\n", "\r", ROW + "\n", '"0","455"', "us", "1,234", "e400", "-5"),
    *("168.5", "1_0", "%", "byte", "9" * 30, '"gpu__time_duration.sum",', '"us",'),
)


def _read(text: str) -> tuple[dict[tuple[int, int], tuple[str, dict[str, float]]], bool] | None:
    """What the program reads, and whether it said that something is not as it should be."""
    try:
        profile = parse_ncu_csv(text)
    except FaTuneError as error:
        assert "\n" not in str(error)  # noqa: PT017 - many texts, one test
        return None
    facts = {
        (launch.process_id, launch.launch_id): (
            launch.kernel_name,
            {
                name: value.value
                for name in ncu_reader.WANTED
                if isinstance(value := launch.metrics.get(name), Quantity)
            },
        )
        for launch in profile.launches
    }
    assert len(facts) == len(profile.launches), "a launch is counted twice"
    return facts, bool(profile.warnings)


def _same(read: dict[str, float], expected: dict[str, float]) -> bool:
    return read.keys() == expected.keys() and all(
        math.isclose(value, expected[name], rel_tol=1e-12) for name, value in read.items()
    )


@pytest.mark.parametrize("page", PAGES)
def test_no_damaged_page_is_misread(page: str) -> None:
    whole = ncu_reader.read(PAGES[page])
    assert whole is not None
    for text in mutants(PAGES[page], MUTANTS, random.Random(page), pieces=PIECES):
        read = _read(text)
        expected = ncu_reader.read(text)
        if read is None:
            continue
        facts, warned = read
        assert warned or expected is None or len(facts) == len(expected), text
        for key, (kernel, values) in facts.items():
            if expected is not None:
                assert _same(values, expected[key][1]), (text, values, expected[key][1])
                assert kernel == expected[key][0], text
            else:  # a quotation mark in a name, a last row that was left out
                numbers = ncu_reader.numbers(text)
                for value in values.values():
                    assert any(math.isclose(value, number) for number in numbers), (text, value)
        if expected is None and not warned and text.count("\n") == PAGES[page].count("\n"):
            assert len(facts) >= len(whole), text


@pytest.mark.parametrize("page", PAGES)
def test_report_never_ends_in_a_traceback(page: str) -> None:
    for text in mutants(PAGES[page], MUTANTS // 4, random.Random(page + "report"), pieces=PIECES):
        try:
            rows = parse_report_source(text.encode("utf-8", "surrogatepass"), Path("here"))
        except FaTuneError:
            continue
        assert rows
        assert all(row.duration_s is None or 0 < row.duration_s <= 86400 for row in rows)
        assert all(row.registers is None or row.registers % 1 == 0 <= row.registers for row in rows)
