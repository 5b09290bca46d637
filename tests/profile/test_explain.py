"""Known pairs are explained by the right counter: recorded ones, and made-up ones for what no
recording holds."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_tune.core.errors import NoUsableVariant, ProfileFormatError
from fa_tune.core.model import Measurement, Quantity
from fa_tune.profile.explain import REASONS, Explanation, explain_pair, rank_correlations
from fa_tune.profile.ncu import metrics
from fa_tune.profile.profile_json import load
from tests.project_files import ROOT

# A run of an H200 that is kept as it was: these sentences are of its counters.
RECORDED = ROOT / "tests" / "data" / "explain" / "ladder_h200.json"
LADDER = {one.subject: one for one in load(RECORDED)}
RUNG = "sm80:(FP16, 128, 64, 64, 4): "
PLAIN = RUNG + "async+load_0_0_0_tiles"
SWIZZLED = RUNG + "async+swizzled+load_0_0_0_tiles"
EAGER = RUNG + "async+eager+swizzled+load_0_0_0_tiles"
TILES = RUNG + "async+eager+swizzled+load_2_2_2_tiles"
BUFFER = TILES + "+buffer"
SOFTMAX = BUFFER + "+opt_softmax"
IN_TURNS = (
    "sm80:(FP16, 128, 256, 64, 8): async+eager+swizzled+load_1_1_1_tiles+opt_softmax+stages_3"
    "+rescale_8+pingpong"
)

WORKLOAD = "b16_h16_kv16_q4096_k4096_d128_fp16_full"


def of(a: str, b: str) -> Explanation:
    return explain_pair(LADDER[a], LADDER[b], {a: "A", b: "B"})


# Recorded pairs ---------------------------------------------------------------------------------


def test_recorded_pairs_are_explained_by_the_right_counter() -> None:
    found = of(PLAIN, SWIZZLED)
    assert found.findings[0].cause == "bank conflicts in shared memory"
    assert found.findings[0].share == pytest.approx(0.98, abs=0.01)
    assert found.time_ratio == pytest.approx(5.25, abs=0.01)
    assert found.cycle_ratio == pytest.approx(5.24, abs=0.01)
    conflicts = next(e for e in found.findings[0].evidence if e.metric == metrics.SHARED_CONFLICTS)
    assert (conflicts.slow.value, conflicts.fast.value) == (
        pytest.approx(7.546e9, rel=1e-3),
        pytest.approx(4.554e5, rel=1e-3),
    )
    found = of(TILES, EAGER)
    assert found.findings[0].cause == "more shared-memory traffic"
    assert "achieved occupancy 18.6 % against 12.4 %" in found.sentences[-1]
    found = of(BUFFER, SOFTMAX)
    assert "That is little, so what it consists of is known roughly." in found.sentences
    assert "more instructions" in {f.cause for f in found.findings}
    found = of(EAGER, IN_TURNS)
    assert [f.cause for f in found.findings[:3]] == [
        "more shared-memory traffic",
        "tensor and arithmetic pipes",
        "more instructions",
    ]
    assert all(f.agrees for f in found.findings)
    assert "stall: math pipe throttle 0.37 against 0.03" in found.sentences[2]
    assert "fewer cycles: synchronisation 0.333 million" in found.sentences[-1], "its turn"
    found = of("ref:fa2", IN_TURNS)
    assert [f.cause for f in found.findings[:2]] == [
        "tensor and arithmetic pipes",
        "more instructions",
    ]
    assert "It also spills (46.2 million more local accesses)" in found.sentences[-1]


@pytest.mark.parametrize(("slow", "fast"), [(EAGER, IN_TURNS), ("ref:fa2", IN_TURNS)])
def test_the_parts_that_are_told_add_up_to_the_difference(slow: str, fast: str) -> None:
    text = " ".join(of(slow, fast).sentences)
    parts = re.findall(r": ([\d.]+) million of the ([\d.]+) million more", text)
    fewer = re.findall(r"([\d.]+) million(?=[,.])", text.partition("needs fewer cycles")[2])
    told = sum(float(part) for part, _ in parts) - sum(map(float, fewer))
    assert told == pytest.approx(float(parts[0][1]), rel=0.2)  # small parts are not told


@pytest.mark.parametrize(("a", "b"), list(itertools.combinations(sorted(LADDER), 2)))
def test_every_recorded_pair_is_explained_the_same_both_ways(a: str, b: str) -> None:
    one, other = explain_pair(LADDER[a], LADDER[b]), explain_pair(LADDER[b], LADDER[a])
    assert one == other
    assert one.time_ratio >= 1
    assert all(0 < len(sentence) < 600 and sentence.endswith(".") for sentence in one.sentences)


# Made-up pairs ----------------------------------------------------------------------------------


def made(
    subject: str, cycles: float = 1e7, stalls: dict[str, float] | None = None, **more: float
) -> Measurement:
    """A kernel whose warps mostly wait for fixed latencies; `more` are counters by name."""
    ratios = (
        dict.fromkeys(metrics.STALL_REASONS, 0.05) | {"selected": 1.0, "wait": 1.5} | (stalls or {})
    )
    counters = {metrics.stall_metric(r): Quantity(v, "inst") for r, v in ratios.items()}
    counters[metrics.CYCLES] = Quantity(cycles, "cycle")
    counters[metrics.SM_CLOCK] = Quantity(more.pop("clock", 1.8e9), "hz")
    base = {
        metrics.INSTRUCTIONS: 2e9,
        metrics.LOCAL_LOADS: 0.0,
        metrics.LOCAL_STORES: 0.0,
        metrics.SHARED_CONFLICTS: 1e6,
        metrics.SHARED_WAVEFRONTS: 1e9,
    }
    values = base | {getattr(metrics, name): value for name, value in more.items()}
    counters |= {name: Quantity(value, "inst") for name, value in values.items()}
    seconds = cycles / counters[metrics.SM_CLOCK].value
    return Measurement(subject, WORKLOAD, "ncu", (seconds,), counters)


Counters = dict[str, float]
LONG, SHORT = {"long_scoreboard": 4.0}, {"short_scoreboard": 4.0}
MORE = {"INSTRUCTIONS": 2.5e9}  # 500 million more, of which three tenths are 150 million
TRAFFIC = {"SHARED_WAVEFRONTS": 2e9}  # a twentieth is a hundred million


@pytest.mark.parametrize(
    ("cycles", "stalls", "slow", "fast", "cause"),
    [
        (2e7, LONG, {"LOCAL_LOADS": 5e8, **MORE}, {}, "register spills to local memory"),
        (
            2e7,
            LONG,
            {"LOCAL_LOADS": 1.2e8, **MORE},
            {"LOCAL_LOADS": 1e8},
            "global loads are waited for",
        ),
        (2e7, LONG, {"DRAM_READ": 9e9}, {"DRAM_READ": 1e9}, "more DRAM traffic"),
        (1.25e7, {}, {"LOCAL_STORES": 1.6e8, **MORE}, {}, "register spills, as more instructions"),
        (1.25e7, {}, {"LOCAL_LOADS": 1.4e8, **MORE}, {}, "more instructions"),
        (2e7, SHORT, {"SHARED_CONFLICTS": 9e7, **TRAFFIC}, {}, "more shared-memory traffic"),
        (2e7, SHORT, {"SHARED_CONFLICTS": 11e7, **TRAFFIC}, {}, "bank conflicts in shared memory"),
        (
            *(2e7, SHORT, {"SHARED_CONFLICTS": 9.9e8, **TRAFFIC}, {"SHARED_CONFLICTS": 9e8}),
            "more shared-memory traffic",
        ),
        (2e7, {"barrier": 4.0}, {}, {}, "warps wait for each other at barriers"),
    ],
)
def test_a_cause_is_what_the_counters_say_of_the_stalls(
    cycles: float,
    stalls: dict[str, float],
    slow: dict[str, float],
    fast: dict[str, float],
    cause: str,
) -> None:
    found = explain_pair(made("slow", cycles, stalls, **slow), made("fast", **fast))
    assert found.findings[0].cause == cause


def test_a_contradiction_and_a_clock_that_decides_are_said() -> None:
    found = explain_pair(made("slow", 2e7, {"short_scoreboard": 3.0}), made("fast"))
    assert found.findings[0].cause == "shared memory is waited for longer"
    assert not found.findings[0].agrees
    assert "they contradict the stalls" in found.sentences[1]
    some = replace(made("a", 2e7), samples_s=(9e-3, 1e-3, 2e-3))
    other = replace(made("b", 1e7), samples_s=(0.5e-3, 1e-3, 4e-3))
    assert explain_pair(some, other).time_ratio == 2.0
    found = explain_pair(made("slow", 9e6, clock=1.5e9), made("fast", 1e7, clock=1.8e9))
    assert (found.slow, found.time_ratio > 1, found.cycle_ratio < 1) == ("slow", True, True)
    assert "the clock decides" in found.sentences[-1]
    assert found.findings
    assert all(f.share == pytest.approx(f.cycles / 1e6, rel=1e-9) for f in found.findings)
    assert "at 0.833 times the clock" in found.sentences[0]


def test_what_cannot_be_compared_is_one_line() -> None:
    one = made("a")
    with pytest.raises(NoUsableVariant, match="not measured on one workload"):
        explain_pair(one, replace(made("b"), method="events"))
    bare = replace(made("b"), counters={metrics.CYCLES: Quantity(1e7, "cycle")})
    with pytest.raises(NoUsableVariant, match="b has no stall counters"):
        explain_pair(one, bare)


@given(
    st.lists(st.floats(0, 30), min_size=19, max_size=19),
    st.floats(1e6, 1e9),
    st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_parts_add_up_to_the_difference(ratios: list[float], cycles: float, unit: float) -> None:
    """Whatever the ratios add up to: they say what share of the cycles went where."""
    stalls = dict(zip(metrics.STALL_REASONS, ratios, strict=True)) | {"selected": 1.0}
    scaled = {reason: ratio * unit for reason, ratio in stalls.items()}
    slow, fast = made("a", cycles, scaled), made("b", 5e5)
    found = explain_pair(slow, fast)
    told = sum(f.cycles for f in found.findings)
    left_out = len(REASONS) - len(found.findings)
    assert abs(told - (cycles - 5e5)) <= 0.1 * left_out * (cycles - 5e5) + 1e-3 * cycles


# Correlations and documents ---------------------------------------------------------------------


def test_rank_correlations_are_those_of_these_measurements() -> None:
    some = [
        made(str(i), 1e7 + i, INSTRUCTIONS=1e9 - i, SHARED_CONFLICTS=(i * 7) % 5) for i in range(5)
    ]
    found = rank_correlations(some)
    assert found[metrics.INSTRUCTIONS] == pytest.approx(-1.0)
    assert found[metrics.CYCLES] == pytest.approx(1.0)
    assert metrics.LOCAL_LOADS not in found  # does not vary
    assert rank_correlations(some[:2]) == {}
    assert list(found) == sorted(found, key=lambda name: (-abs(found[name]), name))
    some = [made(str(i), 1e7 + i, INSTRUCTIONS=n) for i, n in enumerate((1e9, 1e9, 2e9, 9e9))]
    assert rank_correlations(some)[metrics.INSTRUCTIONS] == pytest.approx(0.9**0.5)


MEASURED = json.loads(RECORDED.read_text())["measurements"][0]


def counted(name: str, value: float, unit: str) -> dict[str, object]:
    """The same measurement with one counter."""
    return {**MEASURED, "counters": {name: {"value": value, "unit": unit}}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "other"}, "is not the output of fa-tune profile"),
        ({"measurements": [{}]}, "is missing"),
        ({"measurements": 3}, "ladder"),
        ({"rows": None}, "ladder"),
        ({"measurements": [MEASURED | {"samples_s": [-1e-3]}]}, "no duration"),
        ({"measurements": [MEASURED | {"samples_s": [0]}]}, "no duration"),
        ({"measurements": [MEASURED | {"samples_s": [10**400]}]}, "not a number"),
        ({"measurements": [MEASURED | {"samples_s": ["1_0"]}]}, "not a number"),
        ({"measurements": [counted(metrics.REGISTERS, 168.5, "")]}, "no whole number"),
        ({"measurements": [counted(metrics.CYCLES, -1, "cycle")]}, "negative"),
        ({"measurements": [counted(metrics.L2_HIT_RATE, 9300, "%")]}, "percentage"),
        ({"measurements": [counted(metrics.L2_HIT_RATE, 93, "cycle")]}, "'cycle' is not a unit"),
    ],
)
def test_damaged_documents_are_one_line(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "ladder.json"
    path.write_text(json.dumps(json.loads(RECORDED.read_text()) | change))
    with pytest.raises(ProfileFormatError, match=message):
        load(path)
    path.write_text("{")
    with pytest.raises(ProfileFormatError, match="cannot be read as JSON"):
        load(path)
