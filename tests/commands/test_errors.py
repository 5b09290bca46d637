"""Errors and exit statuses, whichever command they come from."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from fa_tune.core import errors
from tests.commands.console import Console

REGISTRY_WITHOUT_SCHEMA = json.dumps({"entries": []})


def _raises(
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    where: str = "fa_tune.tune.machine_check.doctor",
) -> None:
    def raising(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(where, raising)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidConfig, 2),
        (errors.ToolMissing, 3),
        (errors.StorageError, 3),
        (errors.NoUsableVariant, 4),
        (errors.ProfileFormatError, 5),
        (errors.UnknownUnit, 5),
        (errors.RegistryError, 5),
        (errors.JournalError, 5),
    ],
)
def test_each_error_is_one_line_and_its_status(
    console: Console, monkeypatch: pytest.MonkeyPatch, error: type[Exception], status: int
) -> None:
    _raises(monkeypatch, error("it means\nnothing"))
    done = console("doctor")
    assert (done.status, done.lines) == (status, ["error: it means nothing"])


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/data/x"), "/data/x: No space left"),
        (OSError(errno.EROFS, "Read-only file system", "/data/x"), "/data/x: Read-only"),
        (PermissionError(errno.EACCES, "Permission denied", "/data/x"), "/data/x: Permission"),
        (OSError(errno.ENOSPC, "No space left on device"), "cannot write: No space left"),
    ],
)
def test_the_disks_refusals_are_status_3(
    console: Console, monkeypatch: pytest.MonkeyPatch, error: OSError, line: str
) -> None:
    _raises(monkeypatch, error)
    done = console("doctor")
    assert done.status == 3
    assert len(done.lines) == 1
    assert done.err.startswith("error: ")
    assert line in done.err


@pytest.mark.parametrize("error", [RuntimeError("a bug"), OSError("no path"), AssertionError()])
def test_a_bug_keeps_its_traceback(
    console: Console, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    _raises(monkeypatch, error)
    with pytest.raises(type(error)):
        console("doctor")


def test_interrupt_is_status_130(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    _raises(monkeypatch, KeyboardInterrupt())
    done = console("doctor")
    assert done.status == 130
    assert done.lines[-1] == "interrupted", "nothing was measured"


@pytest.mark.parametrize(
    ("command", "where"),
    [
        (("search",), "fa_tune.tune.flow.search"),
        (
            ("record-space", "--family", "sm80", "--to", "x.space.csv.gz"),
            "fa_tune.lab.record_space.record_space",
        ),
    ],
)
def test_an_interrupted_search_says_what_is_kept(
    console: Console, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], where: str
) -> None:
    _raises(monkeypatch, KeyboardInterrupt(), where)
    done = console(*command)
    assert done.status == 130
    assert done.lines[-1] == "interrupted; finished measurements are kept"


def test_a_reader_that_left_is_no_error(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    _raises(monkeypatch, BrokenPipeError(errno.EPIPE, "Broken pipe"))
    done = console("doctor")
    assert (done.status, done.err) == (141, "")


CONFIG = "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles"
OTHER = "(FP16, 64, 64, 64, 4): async+load_0_0_0_tiles"  # not recorded with counters

BEST = ["registry", "best", "--seq-len", "64"]
MANY = ",".join(map(str, range(1, 1200)))

# What was typed, a word of the answer, and the status.
WRONG: list[tuple[list[str], str, int]] = [
    (["serch"], "'search'", 2),
    (["--limit", "3", "report"], "--limit", 2),
    (["search", "--seq-len", "x"], "--seq-lens", 2),
    (["search", "--seqlens", "512"], "--seq-lens", 2),
    (["search", "--causal"], "'--mask causal'", 2),
    (["search", "--seq-lens"], "requires an argument", 2),
    (["search", "--seq-lens", "1024,,4096"], "empty place", 2),
    (["search", "--seq-lens", "1024;4096"], "whole number", 2),
    (["search", "--seq-lens", "\u0661\u0662"], "whole number", 2),
    (["search", "--seq-lens", "512-4096"], "range", 2),
    (["search", "--seq-lens", "0"], "between 1 and", 2),
    (["search", "--dtype", "fp8"], "fp16, bf16", 2),
    (["search", "--heads", "9" * 5000], "not a whole number", 2),
    (["search", "--compile-timeout", "nan"], "not a number", 2),
    (["search", "--score-hook", "latin-1.cuh"], "UTF-8", 2),
    (["search", "--profiler", "nsys"], "--profiler", 2),
    (
        ["search", "--ref", "fa9"],
        "fa2, cudnn, fa3, fa4, flex, read, sdpa, cudnn-fe, flashinfer, none",
        2,
    ),
    (["search", "--ref", "none,fa2"], "--ref': 'none' stands alone", 2),
    (["search", "--family", "all,sm80"], "--family': 'all' stands alone", 2),
    (["search", "--arch", "hopper"], "sm_90", 2),
    (["search", "--device", "-1"], "--device", 2),
    (["search", "--devices", "0,0"], "GPU 0 is named twice", 2),
    (["search", "--devices", "0-3"], "is not a list of GPUs", 2),
    (["search", "--softmax-scale", "0"], "--softmax-scale", 2),
    (["search", "--family", "sm70"], "'sm70' is not one of sm80, all", 2),
    (["search", "--kernels", CONFIG, "--d-head", "64,128"], "--d-head 128", 2),
    (["bench", "--inputs", "peaked:x"], "needs a number of nats", 2),
    (["bench", "--inputs", "flat"], "names no inputs; known are normal", 2),
    (["search", "--csv", "."], "folder", 2),
    (["search", "--csv", "no/such/folder/t.csv"], "no folder", 2),
    (["search", "--csv", "-", "--json"], "choose one", 2),
    (["search", "--profiler", "replay", "--record", "x"], "--record", 2),
    (["search", "--kernels", " "], "missing", 2),
    (["search", "--cache-dir", "a-file"], "is a file", 2),
    (["search", "--registry", "a-folder"], "is a directory", 2),
    (["search", "--resume=yes"], "--resume", 2),
    (["profile", CONFIG, "--export", "x.txt"], ".ncu-rep", 2),
    (["profile", CONFIG, "--export", "x.ncu-rep", "--profiler", "events"], "--export", 2),
    (["report", "a-file", "--format", "html"], "--format", 2),
    (["report", "a-file", "--html", "-"], "--html", 2),
    (["report", "a-file"], "a-file", 5),
    (["report", "a-folder"], "no .csv file", 3),
    (["report", "no-file"], "no such file", 3),
    (["run", CONFIG, CONFIG], "unexpected extra argument", 2),
    (["space", "--kernels", "fastest"], "allowed: fast, wide, tune", 2),
    (["space", "--kernels", "(FP16, 128, 64, 64, 4): warp9"], "warp9", 2),
    (["space", "--axis", "Br=64"], "B_r", 2),
    (["space", "--axis", "swizzled=maybe"], "neither true nor false", 2),
    (["space", "--axis", "B_r=64", "--axis", "B_r=128"], "given twice", 2),
    (["space", "--axis", f"B_r={MANY}", "--axis", f"B_c={MANY}"], "at most 1,000,000", 2),
    (["space", "--d-head", "100"], "d_head", 4),
    (["registry", "sho"], "'show'", 2),
    (["registry", "best", "--workload", "b1"], "not a workload key", 2),
    (["registry", "best", "--seq-len", "64", "--heads", "3", "--kv-heads", "2"], "kv heads", 2),
    (["registry", "show", "--registry", "no-schema.json"], "schema", 5),
    (["registry", "show", "--registry", "no-file.json"], "nothing in the registry", 4),
    (["registry", "merge", "no-schema.json"], "--output", 2),
    (["registry", "merge", "no-file.json", "-o", "x.json"], "no such file", 3),
    (["completion", "tcsh"], "bash", 2),
    (["search", "--csv", "a-file", "--html", "./a-file"], "--csv and --html are both", 2),
    (["search", "--html", "a-file", "--registry", "a-file"], "--html and --registry are both", 2),
    (["report", "x", "--html", "a-file", "--against", "a-file"], "--against and --html are", 2),
    (["report", "x", "--mask", "full", "--causal"], "--mask full and --causal: name one mask", 2),
    ([*BEST, "--mask", "causal", "--bottom-right"], "and --bottom-right: name one mask", 2),
    # An empty path is not the folder one is in.
    (["search", "--cache-dir", ""], "empty", 2),
    (["report", ""], "empty", 2),
    # Of a replay date and kernel sources would be those of today.
    (["search", "--record", "to"], "--record", 3),
    # 2048 is 952 from 3000, and further in doublings than 4096 is.
    (["search", "--seq-lens", "3000"], "--seq-lens 4096", 4),
    (["search", "--kv-heads", "4", "--dtype", "fp16"], "--kv-heads 16", 4),
    (["search", "--strategy", "magic"], "magic", 2),
    (["search", "--strategy", "optuna-ga"], "'optuna-ga' is gone; take 'learned'", 2),
    (["search", "--budget", "9" * 5000], "--budget", 2),
    (["search", "--budget", "0"], "allows no measurement", 2),
    (["search", "--audit", "3"], "give --strategy or --budget", 2),
    (["explain", "nonsense"], "neither a config's short form nor one of fa2", 2),
    (["explain", "fa2", "cudnn", "fa2"], "two kernels at most", 2),
    (["explain", OTHER, "fa2"], f"no counters of {OTHER}; there are", 4),
    (["explain", "--recordings", "."], "no GPU to measure on, and no counters recorded", 3),
    (["bench-decisions"], "no GPU found: tuning measures on one", 3),
    (["bench-decisions", "--simulate"], "--simulate draws from recorded tunings", 2),
    (["bench-decisions", "--from", "x.json", "--to", "y.json"], "--to keeps new tunings", 2),
    (["bench-decisions", "--profiler", "replay"], "a replay repeats itself", 2),
    (["bench-search", "--plot", "x.gif"], "a plot is .svg, .png, .pdf", 2),
    (["bench-between", "--recordings", "a-folder"], "no recording has several workloads", 4),
    (["spaces", "import", "no-schema.json", "--to", "y.space.csv.gz"], "json: entries", 5),
    (["export", "--to", "to", "--arch", "sm_90a,"], "an empty place", 2),
    (["export", "--to", "to", "--kernels", "x", "--arch", "sm_80"], "unknown kernel set", 2),
    (["verify", "--devices", "all"], "no GPU found: verify runs kernels on one", 3),
    (["verify", "--devices", "0,1"], "build compiles them without", 3),
    (["prove", "--", "no-such-program"], "no GPU found", 3),
    (["judge", "no-file.cu:k"], "error: no-file.cu:k: there is no file", 3),
    (["verify", "--with", "no-file.cu:k"], "error: no-file.cu:k: there is no file", 3),
    (["capture", "--no-such", "--", "true"], "No such option '--no-such'", 2),
    (["export", "--to", "to"], "--arch names architectures", 4),
]


@pytest.mark.usefixtures("only_sm80")  # whose sets are listed
@pytest.mark.parametrize(
    ("arguments", "word", "status"), WRONG, ids=[" ".join(w[0])[:60] for w in WRONG]
)
def test_garbage_is_answered_in_one_line(
    console: Console, tmp_path: Path, arguments: list[str], word: str, status: int
) -> None:
    (tmp_path / "a-file").write_text("nothing of use\n")
    (tmp_path / "a-folder").mkdir()
    (tmp_path / "no-schema.json").write_text(REGISTRY_WITHOUT_SCHEMA)
    (tmp_path / "latin-1.cuh").write_bytes("// é".encode("latin-1"))
    before = _files(tmp_path)
    done = console(*arguments)
    assert done.status == status, done.err
    assert len(done.lines) == 1, done.err
    assert done.lines[0].startswith("error: ")
    assert word in done.lines[0]
    assert len(done.lines[0]) < 1000, "a long word is not repeated whole"
    if status == 2:
        assert not done.out
    assert _files(tmp_path) == before


def _files(folder: Path) -> dict[Path, bytes]:
    """What is in each, but for those of the user's home."""
    found = (p for p in folder.rglob("*") if "home" not in p.parts and p.is_file())
    return {path: path.read_bytes() for path in found}


def test_variables_are_refused_like_options(
    console: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a-file").write_text("")
    monkeypatch.setenv("FA_TUNE_CACHE_DIR", "a-file")
    done = console("search")
    assert done.status == 2
    assert len(done.lines) == 1
    assert "--cache-dir" in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("search", "--csv", "FILE"),
        ("search", "--html", "FILE"),
        ("search", "--registry", "FILE"),
        ("search", "--record", "FILE"),
        ("capture", "--out", "FILE", "--", "no-such-program"),
        ("prove", "--html", "FILE", "--", "true"),
        ("export", "--to", "FILE"),
        ("profile", CONFIG, "--export", "FILE"),
        ("judge", "x", "--report", "FILE"),
        ("report", "x", "--html", "FILE"),
        ("record-space", "--family", "sm80", "--to", "FILE"),
        ("bench-search", "--plot", "FILE"),
        ("bench-decisions", "--to", "FILE"),
        ("spaces", "export", "x", "--to", "FILE"),
        ("spaces", "import", "x", "--to", "FILE"),
        ("registry", "merge", "x", "-o", "FILE"),
    ],
    ids=lambda a: " ".join(a[:3]),
)
@pytest.mark.parametrize("is_there", [False, True])
def test_a_place_without_permission_is_status_3_before_any_work(
    console: Console,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
    is_there: bool,
) -> None:
    """Also where the file itself could be written: it is replaced."""
    locked, file = tmp_path / "locked", tmp_path / "locked" / "x.space.csv.gz"
    locked.mkdir()
    if is_there and not {"--record", "export"} & {*arguments}:
        file.touch()
    # Modes do not keep root out.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != locked)
    done = console(*(str(file) if a == "FILE" else a for a in arguments))
    assert done.status == 3, done.err
    assert len(done.lines) == 1
    assert f"{locked} is not writable" in done.lines[0]


@pytest.mark.parametrize("word", ["float16", "half", "FP16"])
def test_a_dtype_may_be_called_as_torch_calls_it(console: Console, word: str) -> None:
    listed = console("space", "--kernels", "prog", "--dtype", word)
    assert listed.status == 0
    assert listed.out == console("space", "--kernels", "prog", "--dtype", "fp16").out
    assert console("space", "--dtype", "bfloat16").out == console("space", "--dtype", "bf16").out


def test_an_option_may_be_called_as_in_another_command(console: Console) -> None:
    """Lengths are listed where there are several workloads, and one where there is one."""
    assert console("search", "--seq-len", "0").lines == console("search", "--seq-lens", "0").lines
    one = console("registry", "best", "--seq-lens", "4096", "--dtype", "half")
    assert "there is nothing in the registry" in one.err
    twice = console("search", "--seq-len", "1024", "--seq-lens", "2048")
    assert twice.status == 2
    assert "--seq-lens is given twice" in twice.err


@pytest.mark.parametrize("command", ["space", "registry show"])
def test_an_option_of_others_is_answered_with_their_names(console: Console, command: str) -> None:
    said = console(*command.split(), "--op", "backward")
    assert (said.status, len(said.lines)) == (2, 1)
    assert "search" in said.err
    assert "doctor" not in said.err
    assert "search" not in console(*command.split(), "--of-none").err


def test_what_is_not_near_is_not_suggested(console: Console) -> None:
    assert "--wide" not in console("profile", "x", "--dtype", "fp16").err
