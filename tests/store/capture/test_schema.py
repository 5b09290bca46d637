"""Captures are read as they were written, or refused in one line."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from fa_tune.core import codec
from fa_tune.core.errors import FaTuneError, ProfileFormatError, StorageError
from fa_tune.store.capture.schema import Capture, Served, load, merged, to_json
from tests.fuzz.mutations import mutants
from tests.store.capture.captures import capture, usage

WHOLE = capture(
    usage(op="backward", mask="causal", scale=0.5),
    usage(mask="tensor", mask_tensor="bool [1, 1, 8, 8]", masks={"causal": 3, "other": 1}),
    usage(kind="packed", total_q=9, total_kv=9, lengths_q=(1, 5), looked_at=2, inputs=("a.st",)),
    exit_status=-9,
    notes=("a note",),
)
PIECES = (
    "-1",
    "1e400",
    "NaN",
    "null",
    "true",
    '"',
    "{}",
    "[]",
    "[" * 99,
    '"\\u001b[2J"',
    "9" * 400,
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(to_json(WHOLE))
    assert load(file) == WHOLE
    Draft202012Validator(codec.schema(Capture)).validate(json.loads(to_json(WHOLE)))


def test_damaged_files_are_read_as_they_stand_or_refused_in_a_line(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    read = 0
    for text in mutants(to_json(WHOLE), 1500, random.Random("capture"), pieces=PIECES):
        file.unlink(missing_ok=True)  # some file systems wait for the disk where one is emptied
        file.write_text(text, encoding="utf-8")
        try:
            found = load(file)
        except FaTuneError as error:
            assert "\n" not in str(error)  # noqa: PT017 - many texts, one test
            assert str(file) in str(error)  # noqa: PT017
            continue
        read += 1
        assert codec.dump(found) == json.loads(text)
    assert read > 20


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        load(tmp_path / "none.json")
    for content in (b"", b"\xff\xfe", b"[]", b'{"schema": "fa-tune-capture-2"}'):
        (tmp_path / "b.json").write_bytes(content)
        with pytest.raises(ProfileFormatError):
            load(tmp_path / "b.json")


def test_processes_are_merged_by_problem_and_server() -> None:
    ours = Served("fa_tune", "a", "exact", "measured")
    a, b, c = usage(10, 1e-4), usage(30, 3e-4), usage(5, 1.0, served=ours)
    both = merged([a, usage(1, None), b, c])
    assert [u.served for u in both] == [ours, a.served], "the costliest first"
    assert (both[1].calls, both[1].timed) == (41, 6)
    assert both[1].call_s == pytest.approx(2e-4)
    masks = merged([usage(masks={"full": 1}), usage(masks={"full": 2, "bias": 1})])
    assert masks[0].masks == {"full": 3, "bias": 1}
    assert capture(*both).attention_s == pytest.approx(5 + 41 * 2e-4)
