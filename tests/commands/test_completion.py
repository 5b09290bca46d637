from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from fa_tune import families
from tests.commands.console import Console


def _complete(console: Console, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    """What fish, whose protocol is the plainest, would be offered."""
    monkeypatch.setenv("_FA_TUNE_COMPLETE", "fish_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(["fa-tune", *words[:-1]]))
    monkeypatch.setenv("COMP_CWORD", words[-1])
    lines = console().out.split("\n")
    return [line.partition(",")[2].partition("\t")[0] for line in lines if line.startswith("plain")]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("registry", ""), ["show", "check", "best", "merge"]),
        (("search", "--dtype", "fp16,"), ["fp16,bf16"]),
        (("search", "--family", ""), [*families.family_names(), "all"]),
        (("search", "--family", "all,"), []),
        (
            ("search", "--family", "sm80,"),
            [f"sm80,{n}" for n in families.family_names() if n != "sm80"],
        ),
        (("build", "--arch", "sm_8"), ["sm_80", "sm_86", "sm_89"]),
        (("search", "--seq"), ["--seq-lens", "--seq-lens-kv"]),
    ],
)
def test_words_are_completed(
    console: Console,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    offered: list[str],
) -> None:
    assert _complete(console, monkeypatch, *words) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_is_for_the_shell(
    console: Console, monkeypatch: pytest.MonkeyPatch, shell: str
) -> None:
    script = console("completion", shell).out
    assert "_FA_TUNE_COMPLETE" in script
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    assert console("completion").out == script


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_takes_the_script(console: Console) -> None:
    script = console("completion", "bash").out
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{script}\ncomplete -p fa-tune"],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"]},
    )
    assert done.returncode == 0, done.stderr
    assert "_fa_tune_completion" in done.stdout


def test_an_unknown_shell_is_asked_for(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/ksh")
    done = console("completion")
    assert done.status == 2
    assert done.lines == ["error: name the shell: bash, zsh, fish (see: fa-tune completion --help)"]
