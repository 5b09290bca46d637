"""Records between supervisor and worker: framing, round trips, torn lines."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_tune.core.model import Outcome
from fa_tune.workers.protocol import Event, EventKind, ProcessRef, ProgressReader, decode, encode

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
EVENTS = st.builds(
    Event,
    st.sampled_from(EventKind),
    item=st.text(),
    value=JSON.filter(lambda value: value != ""),
    text=st.text(),
    outcome=st.none() | st.sampled_from(Outcome),
    timeout_s=st.none() | st.floats(min_value=0),
)


@given(EVENTS)
def test_an_event_is_read_as_it_was_written(event: Event) -> None:
    record = encode(event)
    assert record.startswith(b"\x1e")
    assert record.count(b"\n") == record.count(b"\x1e") == 1
    assert decode(record[:-1]) == event


@given(st.binary())
def test_no_line_upsets_the_reader(line: bytes) -> None:
    assert isinstance(decode(line), Event)


@pytest.mark.parametrize(
    "line", [b"", b"noise", b"\x1e", b"\x1e[]", b"\x1e{}", b'\x1e{"kind":"x"}', b"\x1enull"]
)
def test_what_is_no_record_is_shown_as_garbled(line: bytes) -> None:
    assert decode(line) == Event(EventKind.GARBLED, text=repr(line))


def test_an_unfinished_line_is_left_for_later(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    record = encode(Event(EventKind.RAISED, text="whole"))
    path.write_bytes(record + record[:7])
    reader = ProgressReader(path)
    assert [event.text for event in reader.read()] == ["whole"]
    assert reader.read() == []
    with path.open("ab") as file:
        file.write(record[7:])
    assert [event.text for event in reader.read()] == ["whole"]


def test_a_process_is_told_from_its_zombie_and_its_successor() -> None:
    me = ProcessRef.me()
    assert me.is_alive()
    assert not ProcessRef(me.pid, me.start_ticks + 1).is_alive()
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert ProcessRef.of(ended.pid) is None
    ended.wait()
