"""Damaged T4 results and recorded spaces: what is read is what stands in them, by readers that
share nothing with the program's, or they are refused in one line."""

from __future__ import annotations

import gzip
import json
import math
import random
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from fa_tune.core.errors import FaTuneError
from fa_tune.lab.space_table import SUFFIX, SpaceRow, SpaceTable, load, meta_path, recorded, save
from fa_tune.lab.t4 import read_t4, to_t4
from tests.fuzz import table_reader
from tests.fuzz.mutations import mutants
from tests.lab import test_space_table, test_t4

COUNT = 600
PIECES = ("1e400", "-1", "NaN", "0", "1_0", "true", '"', "{}", "[]", ",", '"unit": "s"', '"us"')
PIECES += ('"timeunit": "seconds"', '"runtimes": [2]', '"time"', '"objectives": ["l2"]', "\n", " ")


def refused_or(read: Any, *arguments: Any) -> Any:
    """What a reader gives; None where it refuses.  Anything but a refusal is a failure."""
    try:
        return read(*arguments)
    except FaTuneError as error:
        assert "\n" not in str(error)  # noqa: PT017 - many texts, one test
        return None


def damaged(text: str, name: str) -> Iterable[str]:
    return mutants(text, COUNT, random.Random(name), pieces=PIECES)


def searchable(table: SpaceTable) -> SpaceTable:
    recorded(table)
    return table


# T4 -----------------------------------------------------------------------------------------------

SECONDS = {"s": 1, "second": 1, "seconds": 1, "sec": 1}
SECONDS |= {"ms": 10**3, "msecond": 10**3, "mseconds": 10**3, "msec": 10**3}
SECONDS |= {"milliseconds": 10**3, "miliseconds": 10**3, "microseconds": 10**6}
SECONDS |= {"us": 10**6, "ns": 10**9, "nanoseconds": 10**9}


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({name for name, _ in pairs}) == len(pairs)
    return dict(pairs)


def t4_seconds(text: str) -> list[list[float]]:
    """The seconds of every result that ended well, by exact arithmetic."""
    document = json.loads(text, parse_float=Decimal, object_pairs_hook=once)
    unit = SECONDS[document.get("metadata", {}).get("timeunit", "milliseconds")]
    found: list[list[float]] = []
    for result in document["results"]:
        if result.get("invalidity", "") not in ("", "correct"):
            found.append([])
            continue
        runtimes = result.get("times", {}).get("runtimes", [])
        if runtimes:
            assert isinstance(runtimes, list)
            found.append([float(Decimal(time) / unit) for time in runtimes])
            continue
        named = {m["name"]: m for m in result["measurements"]}
        for name in (*result.get("objectives", []), "time"):
            stated = named.get(name, {}).get("unit", "").strip()
            if name in named and (stated in SECONDS or (name == "time" and not stated)):
                of = SECONDS[stated] if stated else unit
                found.append([float(Decimal(named[name]["value"]) / of)])
                break
        else:
            raise AssertionError("no time")
    return found


@pytest.mark.parametrize("runtimes", [True, False])
def test_no_damaged_t4_is_misread(tmp_path: Path, runtimes: bool) -> None:
    document = to_t4(test_t4.small(), {"l2": "%"})
    document["results"] = [document["results"][i] for i in (3, 10, 20)]
    for result in document["results"] if not runtimes else ():
        del result["times"]
    path, read = tmp_path / "x.json", 0
    for text in damaged(json.dumps(document), f"t4 {runtimes}"):
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        table = refused_or(lambda: searchable(read_t4(path, "w")))
        if table is None:
            continue
        read += 1
        assert [list(r.samples_s) for r in table.rows] == [
            pytest.approx(times, rel=1e-12) for times in t4_seconds(text)
        ], text
        for row, result in zip(table.rows, json.loads(text)["results"], strict=True):
            assert row.knobs == result["configuration"], text
            measured = {m["name"]: m["value"] for m in result.get("measurements", ())}
            known = row.counters | {f"fact.{name}": value for name, value in row.facts.items()}
            assert known.items() <= measured.items(), text
        target = tmp_path / f"y{SUFFIX}"  # what is imported can be read again
        if refused_or(save, target, table.rows, table.meta) is not None:
            assert load(target).rows == table.rows
    assert read > COUNT / 10


# Recorded spaces ----------------------------------------------------------------------------------


WORDS = {"true": "1", "false": "0"}


def space_rows(text: str, knobs: dict[str, str]) -> list[tuple[Any, ...]]:
    """The rows of a table, cell by cell."""
    cells = table_reader.read(text)
    assert cells is not None

    def numbers(row: dict[str, str], prefix: str) -> dict[str, float]:
        return {k[len(prefix) :]: float(v) for k, v in row.items() if k.startswith(prefix) and v}

    return [
        (
            row["variant"],
            row["workload"],
            row["outcome"],
            [float(sample) for sample in row["samples_s"].split()],
            row["reason"],
            {n: float(WORDS.get(row[f"knob.{n}"], row[f"knob.{n}"])) for n in knobs},
            numbers(row, "fact."),
            numbers(row, "counter."),
        )
        for row in cells
    ]


def as_read(row: SpaceRow) -> tuple[Any, ...]:
    knobs = {name: float(value) for name, value in row.knobs.items()}
    head = row.variant, row.workload, row.outcome.value, list(row.samples_s), row.reason
    return (*head, knobs, dict(row.facts), dict(row.counters))


@pytest.fixture
def space(tmp_path: Path) -> Path:
    """A table whose files are not tied to each other, as old ones are not."""
    path = tmp_path / f"x{SUFFIX}"
    save(path, test_space_table.simple([2.0, None, 1.25e-3]), test_space_table.META)
    about = json.loads(meta_path(path).read_text())
    del about["table_sha256"]
    meta_path(path).write_text(json.dumps(about))
    return path


def test_no_damaged_table_of_a_space_is_misread(space: Path) -> None:
    text, read = gzip.decompress(space.read_bytes()).decode(), 0
    for changed in damaged(text, "space"):
        space.write_bytes(gzip.compress(changed.encode("utf-8", "surrogatepass"), 1))
        table = refused_or(lambda: searchable(load(space)))
        if table is None:
            continue
        read += 1
        rows = [as_read(row) for row in table.rows]
        assert rows == space_rows(changed, table.meta.knobs), changed
        numbers = [n for row in table.rows for n in (*row.samples_s, *row.facts.values())]
        assert all(map(math.isfinite, numbers))
        assert all(time > 0 for row in table.rows for time in row.samples_s)
    assert read > COUNT / 10


def test_no_damaged_file_about_a_space_is_misread(space: Path) -> None:
    """Whatever is read as the type of a knob, the default or the GPU stands there."""
    text, read = meta_path(space).read_text(), 0
    for changed in damaged(text, "about a space"):
        meta_path(space).write_text(changed, encoding="utf-8", errors="surrogatepass")
        table = refused_or(lambda: searchable(load(space)))
        if table is None:
            continue
        read += 1
        about, meta = json.loads(changed, object_pairs_hook=once), table.meta
        assert meta.knobs == about["knobs"], changed
        assert meta.defaults == about.get("defaults", {}), changed
        device = about.get("device")
        assert (meta.device and meta.device.name) == (device and device["name"]), changed
    assert read > COUNT / 10
