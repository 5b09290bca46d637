"""Supervision of crashing, hanging and lying children; the handlers are in job_handlers.py."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from fa_tune import job_child
from fa_tune.errors import ToolMissing
from fa_tune.job_protocol import Event, Kind, ProcessRef
from fa_tune.jobs import ChildEnd, ItemResult, WorkerUnusable, run_child, run_items
from fa_tune.model import Outcome
from fa_tune.worker import EXIT_ORPHANED

TESTS = Path(__file__).parent
SILENCE_S = 0.6  # the time limit of items that hang; ample for a record on a busy machine
NOISY_WRAPPER = [
    "sh",
    "-c",
    'echo "==PROF== Connected"; printf \'\\036{"kind":"finished"}\\n\'; "$@"; status=$?;'
    ' echo "==PROF== Disconnected"; exit $status',
    "wrapper",
]


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After every test: no process of it, no zombie, no temporary file."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield
    wait_until(lambda: not running(tmp_path))
    assert list(temporary.iterdir()) == []
    assert zombies() == []


def running(marker: Path) -> list[str]:
    """The command lines that mention a path; every worker's and wrapper's holds its job file."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes()
        except OSError:
            continue
        if str(marker).encode() in words and int(entry.parent.name) != os.getpid():
            found.append(words.replace(b"\0", b" ").decode())
    return found


def zombies() -> list[int]:
    """Our own children that ended and were not waited for."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, *_ = entry.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if state == "Z" and int(parent) == os.getpid():
            found.append(int(entry.parent.name))
    return found


def wait_until(condition: Callable[[], bool], patience_s: float = 10) -> None:
    """Give the system time to make something true."""
    limit = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.02)


def start(
    doing: dict[str, Any], handler: str = "work", **options: Any
) -> Generator[ItemResult, None, None]:
    """run_items over items given as {name: what to do, or the whole spec}."""
    items = {name: do if isinstance(do, dict) else {"do": do} for name, do in doing.items()}
    shared = options.pop("shared", {})
    options = {"item_timeout_s": 20.0, "start_timeout_s": 20.0, **options}
    options["env"] = {"PYTHONPATH": str(TESTS), **options.get("env", {})}
    return run_items(f"job_handlers:{handler}", shared, items, **options)


def run(doing: dict[str, Any], handler: str = "work", **options: Any) -> dict[str, ItemResult]:
    """All results by item; each item must have exactly one."""
    results = list(start(doing, handler, **options))
    assert sorted(result.item for result in results) == sorted(doing)
    return {result.item: result for result in results}


def value_of(do: str) -> Any:
    """What a single well-behaved item returns."""
    result = run({"only": do})["only"]
    assert result.outcome is Outcome.OK
    return result.value


def pid_of(result: ItemResult) -> int:
    """The process that did an "ok" item."""
    assert result.value is not None
    return int(result.value["pid"])


# --- ordinary work -------------------------------------------------------------------------


def test_many_items_share_one_process_and_stream_back() -> None:
    results = start({"a": "ok", "b": "ok", "c": {"do": "nap", "nap_s": 3600}})
    first, second = next(results), next(results)
    assert [first.item, second.item] == ["a", "b"]
    assert pid_of(first) == pid_of(second)
    results.close()


def test_no_items_need_no_process(tmp_path: Path) -> None:
    assert run({}, run_dir=tmp_path / "runs") == {}
    assert not (tmp_path / "runs").exists()


def test_values_round_trip() -> None:
    nan, *rest = value_of("nan")
    assert math.isnan(nan)
    assert rest == [math.inf, -math.inf, 0.1, 1e-300]
    assert value_of("text") == "line\nbreak \x1e{} \u2028 ü \ud800 \x00"


def test_a_value_of_five_megabytes() -> None:
    assert value_of("huge") == "x" * 5_000_000


def test_a_failure_reported_by_the_handler_is_its_own() -> None:
    results = run({"bad": "wrong", "good": "ok"})
    assert results["bad"].outcome is Outcome.WRONG_RESULT
    assert results["bad"].reason == "error 0.5 above limit 0.01"
    assert results["good"].outcome is Outcome.OK


def test_only_the_first_final_result_counts() -> None:
    assert value_of("twice") == 1


@pytest.mark.parametrize("order", [("forgotten", "good"), ("good", "forgotten")])
def test_an_item_without_a_result_is_said_so(order: tuple[str, str]) -> None:
    doing = {"forgotten": "forget", "good": "ok"}
    results = run({name: doing[name] for name in order})
    assert results["good"].outcome is Outcome.OK
    assert results["forgotten"].outcome is Outcome.CRASHED
    assert "without a result" in results["forgotten"].reason


def test_the_environment_of_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    (tmp_path / "json.py").write_text("raise ImportError('shadowed')")
    monkeypatch.chdir(tmp_path)  # where a file happens to be named like a library
    env = {"TMPDIR": "{run_dir}", "PYTHONPATH": str(TESTS)}
    (result,) = start({"only": "environment"}, env=env, run_dir=tmp_path / "runs")
    assert result.value is not None
    seen = result.value["env"]
    assert seen["LC_ALL"] == "C"
    assert seen["CUDA_MODULE_LOADING"] == "LAZY"
    assert seen["PYTHONUNBUFFERED"] == "1"
    assert seen["TMPDIR"] == str(tmp_path / "runs" / "child-000")


# --- one bad item --------------------------------------------------------------------------


CRASHES = {
    "segfault": "killed by SIGSEGV",
    "oom": "killed by SIGKILL (out of memory?)",
    "leave": "exited with status 0 before it was done; stderr ends: last words on stderr",
    "sys_exit": "SystemExit: gone",
    "raise": "RuntimeError: bad tile",
    "poison": "an illegal memory access was encountered",
    "not_json": "TypeError: Object of type object is not JSON serializable",
    "unknown_item": "ValueError: not an item of this job: 'no such item'",
}


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ItemResult]:
    """One run with every way to crash, between two ordinary items."""
    doing = {"before": "ok", **{do: do for do in CRASHES}, "after": "ok"}
    return run(doing, run_dir=tmp_path_factory.mktemp("crashes"))


@pytest.mark.parametrize("do", CRASHES)
def test_a_crash_is_blamed_on_the_item_begun(crashes: dict[str, ItemResult], do: str) -> None:
    assert crashes[do].outcome is Outcome.CRASHED
    assert crashes[do].reason == CRASHES[do]
    assert crashes[do].value is None


def test_a_crash_leaves_the_others_alone(crashes: dict[str, ItemResult]) -> None:
    assert crashes["before"].outcome is crashes["after"].outcome is Outcome.OK
    assert pid_of(crashes["before"]) != pid_of(crashes["after"])


def test_a_crash_leaves_its_stack_in_the_stderr_tail(crashes: dict[str, ItemResult]) -> None:
    assert "job_handlers.py" in crashes["segfault"].stderr_tail
    assert "second line" in crashes["raise"].stderr_tail


def test_a_hang_is_ended_at_the_deadline() -> None:
    started = time.monotonic()
    results = run({"bad": "hang", "after": "ok"}, item_timeout_s=SILENCE_S)
    assert time.monotonic() - started < SILENCE_S + 5
    assert results["bad"].outcome is Outcome.TIMED_OUT
    assert results["bad"].reason == f"silent for {SILENCE_S:g} s"
    assert results["after"].outcome is Outcome.OK


def test_a_hang_deaf_to_sigterm_goes_with_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_child, "TERM_GRACE_S", 0.3)
    results = run({"bad": "hang_hard", "after": "ok"}, item_timeout_s=SILENCE_S)
    assert results["bad"].outcome is Outcome.TIMED_OUT
    assert results["after"].outcome is Outcome.OK


def test_begin_can_set_its_own_limit() -> None:
    results = run({"bad": {"do": "hang", "timeout_s": SILENCE_S}, "after": "ok"})
    assert results["bad"].outcome is Outcome.TIMED_OUT
    slow = {"do": "nap", "nap_s": 0.6, "timeout_s": 20}
    assert run({"slow": slow}, item_timeout_s=0.3)["slow"].outcome is Outcome.OK


def test_any_record_is_a_sign_of_life() -> None:
    assert run({"a": "chatter"}, item_timeout_s=0.6)["a"].outcome is Outcome.OK


def test_a_slow_consumer_costs_no_item_its_life() -> None:
    kinds: list[Kind] = []

    def dawdle(event: Event) -> None:
        kinds.append(event.kind)
        if event.kind is Kind.BEGIN and event.item == "a":
            time.sleep(0.7)  # meanwhile `a` is done in time, and `b` is under way

    a = {"do": "nap", "nap_s": 0.1, "timeout_s": 0.5}
    b = {"do": "nap", "nap_s": 1.0}
    results = run({"a": a, "b": b}, on_event=dawdle)
    assert results["a"].outcome is results["b"].outcome is Outcome.OK
    assert kinds.count(Kind.STARTED) == 1


def test_a_result_sent_while_being_ended_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_child, "TERM_GRACE_S", 0.5)
    results = run({"slow": {"do": "late", "next": "b"}, "b": "ok"}, item_timeout_s=SILENCE_S)
    assert results["slow"].value == "late"
    assert results["b"].outcome is Outcome.OK  # begun when the end was already decided


def test_death_between_items_blames_nobody() -> None:
    results = run({"a": "die_between", "b": "ok"})
    assert {result.outcome for result in results.values()} == {Outcome.OK}


def test_beginning_a_finished_item_again_blames_nobody() -> None:
    results = run({"a": "ok", "b": {"do": "begin_again", "earlier": "a"}, "c": "ok"})
    assert results["b"].outcome is Outcome.CRASHED  # by the second worker, which lacks `a`
    assert "not an item of this job: 'a'" in results["b"].reason
    assert results["a"].outcome is results["c"].outcome is Outcome.OK


def test_poison_noticed_after_the_result_keeps_the_result() -> None:
    results = run({"a": "poison_after_done", "b": "ok"})
    assert results["a"].value == "before"
    assert results["b"].outcome is Outcome.OK


def test_forged_records_in_the_output_are_only_output() -> None:
    results = run({"liar": "liar", "after": "ok"})
    assert results["liar"].value == "true"
    assert results["after"].value != "forged"


def test_a_torn_record_hides_no_other(tmp_path: Path) -> None:
    assert value_of("torn") == "whole"


def test_a_flood_on_stderr_stays_on_disk() -> None:
    peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = run({"bad": "flood"})["bad"]
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_before
    assert peak_kib < 20_000
    assert len(result.stderr_tail) <= job_child.TAIL_BYTES
    assert result.stderr_tail == "the last line\n"
    assert result.reason.endswith("status 9 before it was done; stderr ends: the last line")


def test_processes_left_behind_by_an_item_are_ended() -> None:
    stray = value_of("leave_child")
    wait_until(lambda: ProcessRef.of(stray) is None)


def test_four_culprits_among_thirty_two() -> None:
    doing: dict[str, Any] = {f"item-{number:02}": "ok" for number in range(32)}
    culprits = {"item-03": "segfault", "item-10": "hang", "item-17": "raise", "item-31": "poison"}
    started = time.monotonic()
    results = run({**doing, **culprits}, item_timeout_s=SILENCE_S)
    assert time.monotonic() - started < 15
    failed = {name: r.outcome for name, r in results.items() if r.outcome is not Outcome.OK}
    assert failed == {
        "item-03": Outcome.CRASHED,
        "item-10": Outcome.TIMED_OUT,
        "item-17": Outcome.CRASHED,
        "item-31": Outcome.CRASHED,
    }
    pids = {pid_of(result) for name, result in results.items() if name not in culprits}
    assert len(pids) == 4  # one more than there were reasons to restart with work left


# --- rounds --------------------------------------------------------------------------------


@pytest.mark.parametrize("do", ["segfault", "hang", "poison"])
def test_partials_survive_a_crash_in_a_later_round(do: str) -> None:
    events: list[Event] = []
    results = run(
        {"a": "ok", "b": do, "c": "ok"},
        "rounds",
        shared={"rounds": 4, "bad_round": 2},
        item_timeout_s=SILENCE_S,
        on_event=events.append,
    )
    assert results["b"].outcome is (Outcome.TIMED_OUT if do == "hang" else Outcome.CRASHED)
    for name, from_first in (("a", 3), ("c", 2)):
        samples = results[name].value
        assert samples is not None
        assert [sample[:2] for sample in samples] == [[name, turn] for turn in range(4)]
        pids = [sample[2] for sample in samples]
        assert len(set(pids)) == 2
        assert pids.count(pids[0]) == from_first  # none was measured again
    partials = [event.value[:2] for event in events if event.kind is Kind.PARTIAL]
    assert sorted(partials) == sorted(
        [[n, t] for n in "ac" for t in range(4)] + [["b", t] for t in range(2)]
    )
    assert [event.kind for event in events].count(Kind.STARTED) == 2


def test_partials_of_an_earlier_run_are_passed_on() -> None:
    kept = [["a", 0, 1], ["a", 1, 1]]
    items = {"a": {"do": "ok", "_partials": kept}}
    samples = run(items, "rounds", shared={"rounds": 3, "bad_round": 9})["a"].value
    assert samples is not None
    assert samples[:2] == kept
    assert len(samples) == 3


# --- workers that never get anywhere -------------------------------------------------------


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        ("job_handlers:no_such_function", "AttributeError"),
        ("job_handlers:not_callable", "is not a function"),
        ("no_such_module:work", "No module named 'no_such_module'"),
        ("broken:work", "libcuda.so.1: cannot open"),
    ],
)
def test_a_handler_that_cannot_be_loaded(tmp_path: Path, handler: str, reason: str) -> None:
    (tmp_path / "broken.py").write_text("raise ImportError('libcuda.so.1: cannot open')")
    ends: list[ChildEnd] = []
    path = {"PYTHONPATH": os.pathsep.join([str(TESTS), str(tmp_path)])}
    items = {"a": {"do": "ok"}, "b": {"do": "ok"}}
    with pytest.raises(WorkerUnusable, match=reason) as caught:
        list(run_items(handler, {}, items, item_timeout_s=9, env=path, on_child_end=ends.append))
    assert caught.value.remaining == ("a", "b")
    assert caught.value.exit_status == 3
    assert "\n" not in str(caught.value)
    assert "Traceback" in caught.value.stderr_tail
    assert len(ends) == 1  # trying again would change nothing


def test_death_at_import_is_tried_twice(tmp_path: Path) -> None:
    (tmp_path / "fatal.py").write_text("import os\nos._exit(11)")
    ends: list[ChildEnd] = []
    path = {"PYTHONPATH": str(tmp_path)}
    with pytest.raises(WorkerUnusable, match="cannot start: exited with status 11"):
        list(
            run_items(
                "fatal:x", {}, {"a": {}}, item_timeout_s=9, env=path, on_child_end=ends.append
            )
        )
    assert len(ends) == 2


def test_death_before_the_first_item_is_forgiven_once(tmp_path: Path) -> None:
    once = {"times": 1, "counter": str(tmp_path / "once")}
    assert run({"a": "ok"}, "die_first", shared=once)["a"].outcome is Outcome.OK
    always = {"times": 99, "counter": str(tmp_path / "always")}
    with pytest.raises(WorkerUnusable, match="stderr ends: no CUDA-capable device is detected"):
        run({"a": "ok"}, "die_first", shared=always)


def test_results_come_before_the_worker_is_found_unusable(tmp_path: Path) -> None:
    shared = {"marker": str(tmp_path / "marker")}
    results = start({"a": "die_between", "b": "ok"}, "good_once", shared=shared)
    assert next(results).item == "a"
    with pytest.raises(WorkerUnusable, match="GPU has fallen off the bus") as caught:
        next(results)
    assert caught.value.remaining == ("b",)


def test_a_hang_at_startup() -> None:
    with pytest.raises(WorkerUnusable, match=r"cannot start: silent for 0\.5 s"):
        run({"a": "ok"}, "hang_first", start_timeout_s=0.5)


def test_a_hang_at_exit_costs_only_time() -> None:
    results = run({"a": "ok"}, "hang_at_exit", exit_timeout_s=0.5)
    assert results["a"].outcome is Outcome.OK


def test_restarts_can_be_limited() -> None:
    results = start(dict.fromkeys("abcd", "segfault"), max_restarts=1)
    assert [next(results).item, next(results).item] == ["a", "b"]
    with pytest.raises(
        WorkerUnusable, match="gave up after 2 workers: killed by SIGSEGV"
    ) as caught:
        next(results)
    assert caught.value.remaining == ("c", "d")


# --- wrappers ------------------------------------------------------------------------------


def test_a_noisy_wrapper_changes_nothing(tmp_path: Path) -> None:
    ends: list[ChildEnd] = []
    results = run(
        {"a": "ok", "liar": "liar", "bad": "segfault", "slow": "hang", "z": "ok"},
        wrapper=NOISY_WRAPPER,
        item_timeout_s=SILENCE_S,
        run_dir=tmp_path / "runs",
        on_child_end=ends.append,
    )
    assert results["bad"].outcome is Outcome.CRASHED
    assert "(SIGSEGV)" in results["bad"].reason
    assert results["slow"].outcome is Outcome.TIMED_OUT
    assert {results[name].outcome for name in ("a", "liar", "z")} == {Outcome.OK}
    assert [end.culprit for end in ends] == ["bad", "slow", None]
    assert "==PROF== Disconnected" in ends[0].stdout_path.read_text(errors="replace")


def test_a_wrapper_can_write_into_the_run_folder(tmp_path: Path) -> None:
    wrapper = ["sh", "-c", 'echo log > "$0"; "$@"', "{run_dir}/tool.log"]
    run({"a": "ok"}, wrapper=wrapper, run_dir=tmp_path)
    assert (tmp_path / "child-000" / "tool.log").read_text() == "log\n"


def test_a_wrapper_that_leaves_first_ends_the_run(tmp_path: Path) -> None:
    wrapper = ["sh", "-c", '"$@" & sleep 0.6; exit 6', "wrapper"]
    end = child(tmp_path, {"a": "ok", "b": "hang"}, wrapper=wrapper)
    assert end.exit_code == 6
    assert not end.finished
    assert end.results["a"].outcome is Outcome.OK
    assert end.culprit == "b"


def test_a_wrapper_can_tidy_up_before_it_is_killed(tmp_path: Path) -> None:
    script = 'trap "echo clocks reset >$0; exit 1" TERM; "$@" & wait $!'
    wrapper = ["sh", "-c", script, "{run_dir}/tidy.log"]
    results = run({"a": "hang"}, wrapper=wrapper, item_timeout_s=SILENCE_S, run_dir=tmp_path)
    assert results["a"].outcome is Outcome.TIMED_OUT
    assert (tmp_path / "child-000" / "tidy.log").read_text() == "clocks reset\n"


def test_a_worker_moved_out_of_the_group_is_ended_too() -> None:
    results = run({"bad": "hang", "z": "ok"}, wrapper=["setsid", "-w"], item_timeout_s=SILENCE_S)
    assert results["bad"].outcome is Outcome.TIMED_OUT
    assert results["z"].outcome is Outcome.OK


def test_a_wrapper_that_is_not_installed() -> None:
    with pytest.raises(ToolMissing, match="no-such-profiler not found on PATH"):
        run({"a": "ok"}, wrapper=["no-such-profiler"])


def test_a_wrapper_that_cannot_be_run(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/no/such/interpreter\n")
    (tmp_path / "tool").chmod(0o755)
    with pytest.raises(WorkerUnusable, match=r"cannot run .*tool"):
        run({"a": "ok"}, wrapper=[str(tmp_path / "tool")])


# --- one child -----------------------------------------------------------------------------


def child(tmp_path: Path, doing: dict[str, str], **options: Any) -> ChildEnd:
    """run_child over `work`."""
    items = {name: {"do": do} for name, do in doing.items()}
    env = {"PYTHONPATH": str(TESTS)}
    return run_child(
        "job_handlers:work", {}, items, run_dir=tmp_path, item_timeout_s=20, env=env, **options
    )


def test_the_end_of_a_child_that_finished(tmp_path: Path) -> None:
    end = child(tmp_path, {"a": "liar", "b": "wrong"})
    assert (end.exit_code, end.signal, end.finished, end.timed_out) == (0, None, True, False)
    assert end.culprit is None
    assert end.results["a"].value == "true"
    assert end.results["b"].outcome is Outcome.WRONG_RESULT
    kinds = [event.kind for event in end.events]
    assert kinds == [
        Kind.STARTED,
        Kind.BEGIN,
        Kind.DONE,
        Kind.BEGIN,
        Kind.FAILED,
        Kind.FINISHED,
    ]
    assert "garbage without end" in end.stdout_path.read_text(errors="replace")
    assert end.stderr_path.parent == tmp_path


def test_the_end_of_a_child_that_crashed(tmp_path: Path) -> None:
    end = child(tmp_path, {"a": "ok", "b": "segfault", "c": "ok"})
    assert (end.exit_code, end.signal, end.finished) == (None, "SIGSEGV", False)
    assert end.culprit == "b"
    assert list(end.results) == ["a", "b"]
    assert end.results["b"].outcome is Outcome.CRASHED


def test_a_folder_can_be_used_again(tmp_path: Path) -> None:
    child(tmp_path, {"a": "ok"})
    end = child(tmp_path, {"b": "ok"})
    assert list(end.results) == ["b"]


# --- ends from outside ---------------------------------------------------------------------


def test_a_generator_closed_early_takes_the_child_along(tmp_path: Path) -> None:
    results = start({"a": "ok", "b": "hang"}, run_dir=tmp_path)
    assert next(results).item == "a"
    assert running(tmp_path)
    results.close()
    assert not running(tmp_path)


def test_an_error_in_a_callback_takes_the_child_along(tmp_path: Path) -> None:
    def explode(event: Event) -> None:
        if event.kind is Kind.BEGIN:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        list(start({"a": "hang"}, on_event=explode, run_dir=tmp_path))
    assert not running(tmp_path)


PARENT = """
    import sys, tempfile
    from fa_tune.jobs import run_items
    tempfile.tempdir = {temporary!r}
    results = run_items(
        "job_handlers:work", {{}}, {{"a": {{"do": "ok"}}, "b": {{"do": {do!r}}}}},
        item_timeout_s=3600, wrapper={wrapper!r}, env={{"PYTHONPATH": {tests!r}}},
    )
    for result in results:
        print(result.item, flush=True)
"""


def start_parent(tmp_path: Path, do: str, wrapper: list[str]) -> subprocess.Popen[str]:
    """A supervisor in a process of its own, whose second item hangs."""
    temporary = tmp_path / "of-parent"
    temporary.mkdir()
    script = textwrap.dedent(PARENT).format(
        temporary=str(temporary), wrapper=wrapper, tests=str(TESTS), do=do
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS.parent)},
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "a\n"
    assert running(temporary)
    return parent


@pytest.mark.parametrize(
    "wrapper",
    [[], NOISY_WRAPPER, ["setsid", "-w"]],
    ids=["direct", "wrapped", "wrapped-in-another-session"],
)
def test_no_child_outlives_a_parent_killed_outright(tmp_path: Path, wrapper: list[str]) -> None:
    parent = start_parent(tmp_path, "hang", wrapper)
    parent.kill()
    parent.communicate()
    wait_until(lambda: not running(tmp_path / "of-parent"), patience_s=5)


def test_a_wrapper_orphaned_before_it_runs_does_not_start() -> None:
    command = [sys.executable, "-m", "fa_tune.worker", "--tied", "0", "echo", "running"]
    env = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
    ended = subprocess.run(command, env=env, capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (EXIT_ORPHANED, b"")


@pytest.mark.parametrize("wrapper", [[], NOISY_WRAPPER], ids=["direct", "wrapped"])
def test_ctrl_c_ends_the_children_and_is_raised(tmp_path: Path, wrapper: list[str]) -> None:
    parent = start_parent(tmp_path, "hang", wrapper)
    parent.send_signal(signal.SIGINT)
    _, errors = parent.communicate(timeout=10)
    assert parent.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
    assert not running(tmp_path / "of-parent")
    assert list((tmp_path / "of-parent").iterdir()) == []


def test_a_second_ctrl_c_does_not_save_a_child_deaf_to_sigterm(tmp_path: Path) -> None:
    parent = start_parent(tmp_path, "hang_hard", [])
    time.sleep(0.3)
    parent.send_signal(signal.SIGINT)
    time.sleep(0.5)
    parent.send_signal(signal.SIGINT)
    parent.communicate(timeout=10)
    assert not running(tmp_path / "of-parent")


def test_supervising_imports_no_gpu_library() -> None:
    script = "import sys, json, fa_tune.jobs; print(json.dumps(sorted(sys.modules)))"
    env = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
    output = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, check=True
    )
    loaded = set(json.loads(output.stdout))
    assert not loaded & {"torch", "cupy", "cuda", "cuda.bindings", "pynvml", "numpy", "pandas"}
