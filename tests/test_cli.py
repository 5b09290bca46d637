"""The program as a shell sees it: start-up, exit statuses, streams."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from fa_tune import __version__
from fa_tune.cli import COMMANDS
from tests.interrupts import interruptible
from tests.project_files import ROOT

RUN = "import sys; sys.argv[0] = 'fa-tune'; from fa_tune.cli import main; sys.exit(main())"
RAW = ROOT / "profiles" / "nvidia_h200" / "tune_ncu.csv"
NOTED = ROOT / "tests" / "report" / "data" / "raw_h200_seq4096.csv"  # its workload is inferred
HEAVY = ("torch", "pandas", "numpy", "cuda", "cupy", "rich", "prettytable", "pynvml")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Nothing of the user's."""
    home = tmp_path / "home"
    home.mkdir()
    return {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(ROOT)}


def _fa_tune(
    environment: dict[str, str], *arguments: str, code: str = RUN, **streams: object
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-c", code, *arguments],
        env=environment,
        cwd=environment["HOME"],
        text=True,
        timeout=600,  # for what hangs: a busy machine takes minutes
        **(streams or {"capture_output": True}),
    )


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_start_up_loads_nothing_heavy(environment: dict[str, str], argument: str) -> None:
    code = (
        "import json, sys\nfrom fa_tune.cli import main\n"
        "try: main([sys.argv[1]])\n"
        "finally: print(json.dumps(sorted(sys.modules)))"
    )
    done = _fa_tune(environment, argument, code=code)
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}
    assert not loaded & set(HEAVY)


def test_help_of_one_command_loads_only_that_command(environment: dict[str, str]) -> None:
    code = (
        "import json, sys\nfrom fa_tune.cli import main\n"
        "try: main(['report', '--help'])\n"
        "finally: print(json.dumps(sorted(sys.modules)))"
    )
    loaded = set(json.loads(_fa_tune(environment, code=code).stdout.splitlines()[-1]))
    assert "fa_tune.commands.report" in loaded
    assert not {f"fa_tune.commands.{n}" for n in COMMANDS if n != "report"} & loaded
    assert not {name.partition(".")[0] for name in loaded} & set(HEAVY)


def test_version(environment: dict[str, str]) -> None:
    assert _fa_tune(environment, "--version").stdout == f"fa-tune {__version__}\n"


@pytest.mark.parametrize("arguments", [(), ("registry",)])
def test_no_command_shows_the_help_as_an_error(
    environment: dict[str, str], arguments: tuple[str, ...]
) -> None:
    done = _fa_tune(environment, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: fa-tune")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("report", str(RAW)), 0),
        (("search", "--seq-lens", "many"), 2),
        (("report", "nowhere.csv"), 3),
        (("registry", "show"), 4),
        (("report", os.devnull), 5),
    ],
)
def test_exit_statuses(
    environment: dict[str, str], arguments: tuple[str, ...], status: int
) -> None:
    done = _fa_tune(environment, *arguments)
    assert done.returncode == status
    assert bool(done.stderr) == bool(status)
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == (1 if status else 0)


def test_a_bug_shows_its_traceback(environment: dict[str, str]) -> None:
    code = f"import fa_tune.report.load as x; x.load_report_source = None\n{RUN}"
    done = _fa_tune(environment, "report", str(RAW), code=code)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "TypeError" in done.stderr


WAIT = (
    "import sys, time, fa_tune.report.load as x\n"
    "def wait(*a, **k):\n    print('here', flush=True)\n    time.sleep(60)\n"
    f"x.load_report_source = wait\n{RUN}"
)


def _waiting(
    environment: dict[str, str], launcher: Sequence[str] = (), code: str = WAIT
) -> subprocess.Popen[str]:
    """A command that is at work for a minute, and has begun."""
    child = interruptible(
        [*launcher, sys.executable, "-c", code, "report", "x"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout.readline() == "here\n"
    return child


def test_ctrl_c_is_said_in_a_line(environment: dict[str, str]) -> None:
    child = _waiting(environment)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert err.strip() == "interrupted"


WAIT_IN_IMPORTS = """
import runpy, sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "MODULE":
            print("here", flush=True)
            time.sleep(60)
sys.modules.pop("MODULE", None)
sys.meta_path.insert(0, Slow())
runpy.run_module("fa_tune", run_name="__main__")
"""


@pytest.mark.parametrize("module", ["signal", "click"])
def test_ctrl_c_while_modules_are_read_ends_it_at_once(
    environment: dict[str, str], module: str
) -> None:
    child = _waiting(environment, code=WAIT_IN_IMPORTS.replace("MODULE", module))
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert (child.returncode, err) == (-signal.SIGINT, "")


def test_ctrl_c_is_heeded_once_the_modules_are_read(environment: dict[str, str]) -> None:
    started = WAIT.replace(RUN, "import runpy; runpy.run_module('fa_tune', run_name='__main__')")
    child = _waiting(environment, code=started)
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=30)
    assert child.returncode == 130


def test_in_a_shells_background_ctrl_c_is_for_others(environment: dict[str, str]) -> None:
    """The shell starts it with SIGINT ignored, and so it stays; SIGTERM ends it."""
    shell = ["sh", "-c", 'trap "" INT; exec "$@"', "sh"]
    child = _waiting(environment, shell)
    child.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        child.communicate(timeout=0.5)
    child.terminate()
    child.communicate(timeout=30)
    assert child.returncode == -signal.SIGTERM


@pytest.mark.parametrize("form", ["text", "csv"])
def test_a_closed_pipe_is_quiet(environment: dict[str, str], form: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = _fa_tune(
            environment,
            *("report", str(RAW), "--format", form, "--limit", "100"),
            stdout=writer,
            stderr=subprocess.PIPE,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("form", ["text", "csv"])
def test_a_full_disk_under_stdout_is_status_3(environment: dict[str, str], form: str) -> None:
    with open("/dev/full", "w") as full:
        done = _fa_tune(
            environment,
            *("report", str(RAW), "--format", form),
            stdout=full,
            stderr=subprocess.PIPE,
        )
    assert done.returncode == 3
    assert done.stderr == "error: cannot write: No space left on device\n"


def test_an_output_that_cannot_show_a_character_gets_it_escaped(
    environment: dict[str, str],
) -> None:
    done = _fa_tune({**environment, "PYTHONIOENCODING": "ascii"}, "report", "--wide", str(RAW))
    assert done.returncode == 0
    assert "\\u2026 20 more" in done.stdout


def test_json_stays_json_in_any_encoding(environment: dict[str, str]) -> None:
    done = _fa_tune(
        {**environment, "PYTHONIOENCODING": "ascii"}, "space", "--json", "--kernels", "prog"
    )
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("name", ["é😀.json", os.fsdecode(b"\xff.json")])
def test_a_path_in_json_stays_itself_in_any_encoding(
    environment: dict[str, str], encoding: str, name: str
) -> None:
    done = _fa_tune(
        {**environment, "PYTHONIOENCODING": encoding, "FA_TUNE_REGISTRY": name, "PYTHONUTF8": "0"},
        *("doctor", "--json", "--recordings", "."),  # to read ours takes seconds
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding=encoding,
    )
    assert "Traceback" not in done.stderr
    assert any(name in check["detail"] for check in json.loads(done.stdout)["checks"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_notes_that_do_not_fit_on_the_disk_cost_no_result(environment: dict[str, str]) -> None:
    asked = ("report", str(NOTED), "--format", "csv")
    with open("/dev/full", "w") as full:
        done = _fa_tune(environment, *asked, stdout=subprocess.PIPE, stderr=full)
    assert done.returncode == 0
    assert done.stdout == _fa_tune(environment, *asked).stdout


def test_a_script_whose_stderr_is_closed_shows_the_result(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """The shell has the script itself open in the place of the closed stream."""
    script = tmp_path / "script"
    program = f"{sys.executable} -c 'from fa_tune.cli import main; main()'"
    script.write_text(f"#!/bin/bash\nexec {program} report --format csv {NOTED}\n")
    done = subprocess.run(
        f"bash {script} 2>&-", shell=True, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stdout == _fa_tune(environment, "report", "--format", "csv", str(NOTED)).stdout


@pytest.mark.parametrize("closed", [(1,), (2,), (0,), (0, 1, 2)])
def test_closed_standard_streams_end_in_no_traceback(
    environment: dict[str, str], closed: tuple[int, ...], tmp_path: Path
) -> None:
    """What would be printed goes nowhere; above all into no file that takes the stream's number."""
    shut = " ".join({0: "<&-", 1: ">&-", 2: "2>&-"}[number] for number in closed)
    program = (
        f"{sys.executable} -c 'from fa_tune.cli import main; main()' registry show "
        f"--registry {tmp_path / 'none.json'}"
    )
    done = subprocess.run(
        f"{{ {program} {shut}; }} 2>&1", shell=True, env=environment, capture_output=True, text=True
    )
    assert "Traceback" not in done.stdout
    assert done.returncode == 4
