"""Facts kept between processes: found once, found anew when in doubt."""

from pathlib import Path

import pytest

from fa_tune.build.memo import remembered


class Finder:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        return f"fact {self.calls}"


def test_a_fact_is_found_once_for_each_subject(tmp_path: Path) -> None:
    find = Finder()
    assert [remembered(s, find, tmp_path) for s in ("a", "b", "a", "b")] == [
        *("fact 1", "fact 2", "fact 1", "fact 2")
    ]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"subject": "other", "fact": "wrong"}', "\0"])
def test_a_damaged_file_is_written_anew(tmp_path: Path, damage: str) -> None:
    find = Finder()
    remembered("a", find, tmp_path)
    (file,) = tmp_path.rglob("*.json")
    file.write_text(damage)
    assert remembered("a", find, tmp_path) == "fact 2"
    assert remembered("a", find, tmp_path) == "fact 2"
    assert list(tmp_path.rglob("*.json")) == [file]


def test_where_nothing_can_be_written_it_is_found_each_time(tmp_path: Path) -> None:
    (tmp_path / "facts-v1").write_text("not a folder")
    find = Finder()
    assert [remembered("a", find, tmp_path) for _ in range(2)] == ["fact 1", "fact 2"]
