"""Who is timed how often, and in what order."""

import itertools
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from fa_tune import libraries
from fa_tune.core.jobs import Reading
from fa_tune.core.stopping import StoppingRule, StopReason
from fa_tune.core.workload import DType, Workload

pytest.importorskip("torch", reason="torch is not installed: no jobs to test")


from fa_tune.gpu import telemetry
from fa_tune.gpu.jobs import time_events

WORKLOAD = Workload(1, 1, 1, 64, 64, 64, DType.FP16)


class Spoken:
    """What a job reported, in order."""

    def __init__(self) -> None:
        self.begun = ""
        self.limits_s: dict[str, float | None] = {}  # of the first call
        self.partials: list[tuple[str, list[float | None]]] = []
        self.results: dict[str, Any] = {}
        self.failures: dict[str, str] = {}

    def begin(self, item: str, timeout_s: float | None = None) -> None:
        assert item not in self.results
        self.begun = item
        self.limits_s.setdefault(item, timeout_s)

    def partial(self, item: str, value: list[float | None]) -> None:
        self.partials.append((item, value))

    def done(self, item: str, value: Any) -> None:
        assert item == self.begun
        self.results[item] = value

    def failed(self, item: str, outcome: object, reason: str) -> None:
        self.failures[item] = reason


class FakeSubject(time_events.Subject):
    """A subject that takes as long as its item says."""

    def __init__(self, runner: Any, problems: list[Any]) -> None:
        super().__init__(runner, problems)
        self.time = runner.time
        self.host_s = [30e-6, 20e-6, 10e-6]

    def estimate(self) -> float:
        if self.time is None:
            raise RuntimeError("it cannot be launched")
        return 1.0  # so long that each launch is a sample of its own

    def sample(self) -> float:
        return float(self.time)


def guarded(report: Spoken, name: str, action: Callable[[], Any]) -> Any | None:
    assert name == report.begun
    try:
        result = action()
    except RuntimeError as error:
        report.failed(name, "crashed", str(error))
        return None
    return True if result is None else result


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Spoken]:
    times_of: dict[str, float | None] = {}
    problems = {(WORKLOAD, "normal", 1): [0, 1, 2]}
    monkeypatch.setattr(time_events, "use_device", [None].__getitem__)
    monkeypatch.setattr(time_events, "problems_of", lambda *given: problems[given])
    monkeypatch.setattr(
        time_events,
        "runner_of",
        lambda item: SimpleNamespace(
            subject=item.subject,
            time=times_of[item.subject],
            versions={"torch": "2"},
            bind=lambda problem: (item.subject, problem),
        ),
    )
    monkeypatch.setattr(time_events, "Subject", FakeSubject)
    monkeypatch.setattr(time_events, "guarded", guarded)
    monkeypatch.setattr(time_events, "warm_up", lambda: None)
    monkeypatch.setattr(time_events, "SETTLE_S", -1.0)
    monkeypatch.setattr(telemetry, "watched", [lambda: Reading(1.98e9)].__getitem__)

    def go(
        times: Mapping[str, float | None],
        *,
        partials: Mapping[str, list[float]] | None = None,
        ratios: Mapping[str, float] | None = None,
        **shared: Any,
    ) -> Spoken:
        items = {
            name: {
                "subject": name,
                "_partials": [
                    [s, (ratios or {}).get(name)] for s in (partials or {}).get(name, [])
                ],
            }
            for name in times
        }
        times_of.update(times)
        report = Spoken()
        common = {"device": 0, "workload": WORKLOAD.key, "runs": 3, "seed": 1, "keep": []}
        common |= {"baseline": "", "order": [], "margin": 0.01}
        time_events.handle({**common, "adaptive": True, "check": False, **shared}, items, report)  # type: ignore[arg-type]
        return report

    return go


def test_rounds_are_interleaved_in_changing_order(run: Callable[..., Spoken]) -> None:
    report = run(dict.fromkeys("abcdef", 1.0), runs=20, adaptive=False)
    names = [name for name, _ in report.partials]
    rounds = [names[i : i + 6] for i in range(0, len(names), 6)]
    assert len(rounds) == 20
    assert all(sorted(one) == list("abcdef") for one in rounds), "each once in every round"
    assert len({tuple(one) for one in rounds}) > 15, "in fresh order"
    assert run(dict.fromkeys("abcdef", 1.0), runs=20, adaptive=False).partials == report.partials


def test_without_noise_the_first_rounds_decide_and_a_loser_has_one(
    run: Callable[..., Spoken],
) -> None:
    times = {"a": 1.0, "b": 1.015, "c": 1.04, "d": 2.0, "e": 4.0, "ref:fa2": 9.0, "keep": 5.0}
    report = run(times, keep=["keep"])
    counts = {name: len(value["samples_s"]) for name, value in report.results.items()}
    assert counts == {"a": 3, "b": 3, "c": 3, "d": 3, "e": 1, "ref:fa2": 3, "keep": 3}
    assert {name: value["stop_reason"] for name, value in report.results.items()} == {
        **dict.fromkeys(("a", "b", "ref:fa2", "keep"), StopReason.DECIDED),
        **dict.fromkeys(("c", "d"), StopReason.DOMINATED),
        "e": StopReason.ABANDONED,
    }


def test_a_new_worker_goes_on_where_the_last_one_died(run: Callable[..., Spoken]) -> None:
    report = run({"a": 1.0, "b": 2.0}, partials={"a": [1.5, 1.5], "b": [2.5]}, adaptive=False)
    assert report.results["a"]["samples_s"] == [1.5, 1.5, 1.0]
    assert report.results["b"]["samples_s"] == [2.5, 2.0, 2.0]
    assert report.partials[0] == ("b", [2.0, None]), "who lags behind comes first"


def test_ratios_go_on_as_well(run: Callable[..., Spoken]) -> None:
    """Unless some sample has none: then times are compared."""
    times, taken = {"base": 1.0, "a": 2.0}, {"base": [1.0], "a": [2.5]}
    common = {"runs": 3, "baseline": "base", "keep": ["base"], "partials": taken}
    found = run(times, ratios={"base": 1.0, "a": 2.4}, **common).results
    assert found["a"]["relative"][:2] == [2.4, 2.0]
    assert len(found["a"]["relative"]) == len(found["a"]["samples_s"])
    found = run(times, ratios={"base": 1.0}, **common).results
    assert found["a"]["samples_s"][0] == 2.5
    assert found["a"]["relative"] == found["base"]["relative"] == []
    times, taken = {"base": 1.0, "a": 0.98}, {"base": [1.0] * 3, "a": [9.0] * 3}
    found = run(times, ratios=times, **common | {"partials": taken}).results
    assert found["a"]["stop_reason"] == StopReason.DECIDED, "its times are of another clock"


def test_one_that_cannot_be_prepared_costs_only_itself(run: Callable[..., Spoken]) -> None:
    report = run({"a": 1.0, "b": None, "c": 1.0}, adaptive=False)
    assert list(report.results) == ["a", "c"]
    assert report.failures == {"b": "it cannot be launched"}


def test_the_value_says_how_it_was_taken(run: Callable[..., Spoken]) -> None:
    assert run({"a": 1.0}, adaptive=False).results["a"] == {
        "samples_s": [1.0, 1.0, 1.0],
        "relative": [],
        "sm_clock_hz": 1.98e9,
        "host_s": 20e-6,
        "sets": 3,
        "launches_per_sample": 1,
        "stop_reason": StopReason.ENOUGH,
        "flagged": {},
        "rounds": [],
        "versions": {"torch": "2"},
        "held_out_s": [],
        "held_out_relative": [],
        "no_graph": "",
    }


def test_a_first_call_that_compiles_may_take_longer(run: Callable[..., Spoken]) -> None:
    limits_s = run({"sm80:a": 1.0, "ref:flex": 1.0}, adaptive=False).limits_s
    assert limits_s == {"sm80:a": None, "ref:flex": libraries.first_call_s("ref:flex")}
    assert limits_s["ref:flex"] is not None


def test_who_was_finished_before_has_no_clock(run: Callable[..., Spoken]) -> None:
    report = run({"a": 1.0}, partials={"a": [1.0, 1.0, 1.0]}, adaptive=False)
    assert report.results["a"]["sm_clock_hz"] is None


def test_the_baseline_opens_and_closes_every_round(
    run: Callable[..., Spoken], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []

    class Watched(FakeSubject):
        def sample(self) -> float:
            taken.append("bcd"[int(self.time)])
            return 1.0

    monkeypatch.setattr(time_events, "Subject", Watched)
    report = run({"b": 0.0, "c": 1.0, "d": 2.0}, runs=8, adaptive=False, baseline="b", keep=["b"])
    assert sorted(taken[:3]) == ["b", "c", "d"], "once, to settle: that counts for nobody"
    orders = ["".join(taken[i : i + 5]) for i in range(3, len(taken), 5)]
    assert len(orders) == 8
    # The first one finds a GPU that waited for NVML, and counts for nobody.
    assert all(o[:2] == "bb" and o[4] == "b" and sorted(o[2:4]) == ["c", "d"] for o in orders)
    assert len(set(orders)) == 2, "in fresh order between them"
    assert report.results["b"]["samples_s"] == [1.0] * 8, "closing samples are not its samples"
    told = report.results["b"]["rounds"]
    assert [r["number"] for r in told] == list(range(8))
    assert {(r["opening_s"], r["closing_s"]) for r in told} == {(1.0, 1.0)}
    assert report.results["c"]["rounds"] == []
    (alone,) = run({"b": 0.0}, runs=1, adaptive=False, baseline="b").results["b"]["rounds"]
    assert (alone["opening_s"], alone["closing_s"]) == (1.0, None), "nothing came between"


def _readings(monkeypatch: pytest.MonkeyPatch, *found: Reading) -> None:
    """NVML tells these, round by round, and then the last one for ever."""
    left = list(found)
    monkeypatch.setattr(telemetry, "watched", lambda device: lambda: left[0])
    plain = telemetry.Log.add

    def add(log: telemetry.Log, *told: Any) -> bool:
        flagged = plain(log, *told)
        del left[: len(left) > 1]
        return flagged

    monkeypatch.setattr(telemetry.Log, "add", add)


def test_a_flagged_round_is_repeated_and_its_samples_stay(
    run: Callable[..., Spoken], monkeypatch: pytest.MonkeyPatch
) -> None:
    good, hot = Reading(1.9e9), Reading(1.9e9, reasons=("hardware thermal slowdown",))
    _readings(monkeypatch, good, hot, good)
    report = run({"a": 1.0, "b": 2.0}, runs=3, keep=["a"])
    assert {n: len(v["samples_s"]) for n, v in report.results.items()} == {"a": 4, "b": 4}
    assert report.results["a"]["flagged"] == {"1": "hardware thermal slowdown"}


def test_a_gpu_that_is_always_flagged_ends_the_run_all_the_same(
    run: Callable[..., Spoken], monkeypatch: pytest.MonkeyPatch
) -> None:
    _readings(monkeypatch, Reading(1.9e9, reasons=("hardware power brake",)))
    report = run({"a": 1.0}, runs=3)
    assert 3 + telemetry.REPEATS <= len(report.results["a"]["samples_s"]) <= 30
    assert set(report.results["a"]["flagged"].values()) == {"hardware power brake"}


def test_rounds_begin_when_the_load_is_felt(
    run: Callable[..., Spoken], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power limit slows the GPU down after a while; nobody is measured before it does."""
    launches = [0]

    class Limited(FakeSubject):
        def sample(self) -> float:
            launches[0] += 1
            return float(self.time) * (1.0 if launches[0] <= 20 else 1.15)

    monkeypatch.setattr(time_events, "Subject", Limited)
    monkeypatch.setattr(time_events.time, "monotonic", lambda: 0.001 * launches[0])
    monkeypatch.setattr(time_events, "SETTLE_S", 0.1)
    report = run({"a": 1.0, "b": 1.0}, runs=5, baseline="a", keep=["a"])
    assert set(report.results["a"]["samples_s"]) == set(report.results["b"]["samples_s"]) == {1.15}


def test_exactly_that_many_samples_are_never_repeated(
    run: Callable[..., Spoken], monkeypatch: pytest.MonkeyPatch
) -> None:
    _readings(monkeypatch, Reading(1.9e9, reasons=("hardware power brake",)))
    report = run({"a": 1.0}, runs=4, adaptive=False)
    assert len(report.results["a"]["samples_s"]) == 4
    assert len(report.results["a"]["flagged"]) == 4


def test_a_steady_drift_is_no_difference(
    run: Callable[..., Spoken], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sample takes a hundredth of the first one more: the baselines on either side, on
    average, are what the baseline takes in between."""
    taken = itertools.count()

    class Warming(FakeSubject):
        def sample(self) -> float:
            return float(self.time) * (1 + next(taken) / 100)

    monkeypatch.setattr(time_events, "Subject", Warming)
    times = {"sm80:base": 1.0, "sm80:a": 0.98, "sm80:b": 0.985, "ref:fa2": 1.5}
    found = run(times, runs=5, baseline="sm80:base", keep=["sm80:base"]).results
    for name, time_s in times.items():
        for ratios in (found[name]["relative"], found[name]["held_out_relative"]):
            assert len(ratios) >= 5
            assert ratios == pytest.approx([time_s] * len(ratios), rel=1e-12)
    assert len(found["sm80:a"]["samples_s"]) < 10, "it costs hardly a round"


@pytest.fixture
def fail_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, int], None]:
    """Have the subject of a time fail after so many samples."""

    def fail(time: float, lasts: int) -> None:
        class Failing(FakeSubject):
            def sample(self) -> float:
                self.taken = getattr(self, "taken", 0) + 1
                if self.time == time and self.taken > lasts:
                    raise RuntimeError("no more")
                return float(self.time)

        monkeypatch.setattr(time_events, "Subject", Failing)

    return fail


@pytest.mark.parametrize("lasts", [*range(6, 12), 20, 30, 40])
def test_a_baseline_lost_on_the_way_leaves_the_times(
    run: Callable[..., Spoken], fail_after: Callable[[float, int], None], lasts: int
) -> None:
    fail_after(1.0, lasts)
    report = run({"base": 1.0, "a": 1.002, "b": 1.2}, runs=5, baseline="base", keep=["base"])
    assert report.failures == {"base": "no more"}
    assert report.results["a"]["samples_s"] == [1.002] * len(report.results["a"]["samples_s"])
    for result in report.results.values():
        assert result["relative"] == result["held_out_relative"] == []
    assert report.results["b"]["stop_reason"] == StopReason.DOMINATED


@pytest.mark.parametrize("adaptive", [False, True])
def test_one_lost_on_the_way_costs_no_round(
    run: Callable[..., Spoken], fail_after: Callable[[float, int], None], adaptive: bool
) -> None:
    fail_after(1.2, 2)
    times = {"base": 1.0, "a": 1.002, "b": 1.2, "c": 1.003, "d": 1.004}
    report = run(times, runs=5, adaptive=adaptive, baseline="base", keep=["base"])
    assert list(report.failures) == ["b"]
    assert len(report.results["base"]["rounds"]) == len(report.results["base"]["samples_s"])
    for name in ("a", "c", "d"):
        taken = report.results[name]["samples_s"]
        assert report.results[name]["relative"] == (taken if adaptive else [])


def test_those_that_may_be_chosen_are_measured_apart(run: Callable[..., Spoken]) -> None:
    """By these samples nothing is chosen; they are paired by rounds as the others are."""
    times = {"sm90:base": 1.0, "sm90:a": 0.98, "sm90:b": 0.985, "sm90:c": 1.1}
    times |= {"sm80:d:1": 2.0, "sm80:e:2": 2.1, "sm80:f:3": 2.02, "ref:fa2": 1.5, "ref:cudnn": 1.2}
    report = run(times, runs=5, baseline="sm90:base", keep=["sm90:base"])
    for name, result in report.results.items():
        n = 0 if name in ("sm90:c", "sm80:e:2") else time_events.HELD_OUT_ROUNDS
        assert result["held_out_s"] == [times[name]] * n
        assert result["held_out_relative"] == [times[name]] * n
    assert len(report.partials) == sum(len(r["samples_s"]) for r in report.results.values())


@pytest.mark.parametrize("check", [True, False])
def test_what_was_timed_is_checked_but_for_libraries(
    run: Callable[..., Spoken], monkeypatch: pytest.MonkeyPatch, check: bool
) -> None:
    checked: list[Any] = []

    class FakeCheck:
        def __init__(self, problem: int) -> None:
            assert problem == 0

        def passes(self, name: str, launch: Any, report: Spoken) -> bool:
            checked.append((name, launch))
            if name == "sm80:b":
                report.failed(name, "wrong", "it differs")
            return name != "sm80:b"

    monkeypatch.setattr(time_events, "FinalCheck", FakeCheck)
    names = ["ref:fa2", "sm80:b", "sm80:a", "user:mine"]
    report = run(dict.fromkeys(names, 1.0), adaptive=False, check=check)
    assert checked == ([(name, (name, 0)) for name in names[1:]] if check else [])
    assert list(report.results) == [name for name in names if name != "sm80:b" or not check]


def test_the_rule_knows_what_the_job_says(
    run: Callable[..., Spoken], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, Any] = {}

    def rule(samples: Any, runs: int, **given: Any) -> StoppingRule:
        told.update(given)
        return StoppingRule(samples, runs, **given)

    monkeypatch.setattr(time_events, "StoppingRule", rule)
    given = {"order": ["c", "a", "b"], "margin": 0.02, "adaptive": True}
    run(dict.fromkeys("ab", 1.0), baseline="a", keep=["a"], **given)
    assert told == {**given, "order": ["a", "b"], "keep": {"a"}, "default": "a"}


class Short(FakeSubject):
    """A subject that takes as many microseconds as its item says; negative: it cannot be
    captured in a graph."""

    def estimate(self) -> float:
        return abs(float(self.time)) * 1e-6

    def capture(self, launches: int) -> None:
        if self.time < 0:
            raise RuntimeError("not permitted when a stream is capturing\nmore")
        self.launches_per_sample = launches

    def launch_singly(self) -> None:
        self.launches_per_sample = 1


@pytest.mark.parametrize(
    ("times", "launches"),
    [
        ({"a": 501.0, "b": 900.0, "ref:cudnn": 600.0}, 1),
        ({"a": 499.0, "b": 900.0, "ref:cudnn": 600.0}, 2),
        ({"a": 600.0, "b": 900.0, "ref:cudnn": 52.0}, 10),
        ({"a": 400.0, "b": 5.01}, 100),
    ],
)
def test_samples_of_a_workload_are_one_kind(
    run: Callable[..., Spoken],
    monkeypatch: pytest.MonkeyPatch,
    times: dict[str, float],
    launches: int,
) -> None:
    """One short subject makes all of them graphs, of the same number of launches."""
    monkeypatch.setattr(time_events, "Subject", Short)
    results = run(times, adaptive=False).results
    assert {r["launches_per_sample"] for r in results.values()} == {launches}
    assert {r["no_graph"] for r in results.values()} == {""}


def test_a_pair_is_one_kind() -> None:
    times = (251.0, 900.0)
    short, long = (Short(SimpleNamespace(time=time), []) for time in times)
    time_events.prepare_alike(short, long)
    assert (short.launches_per_sample, long.launches_per_sample) == (2, 2)


@pytest.mark.parametrize("order", [("a", "ref:fa3", "b"), ("ref:fa3", "a", "b")])
def test_one_that_cannot_be_captured_leaves_none_a_graph(
    run: Callable[..., Spoken], monkeypatch: pytest.MonkeyPatch, order: tuple[str, ...]
) -> None:
    monkeypatch.setattr(time_events, "Subject", Short)
    times = {"a": 10.0, "ref:fa3": -60.0, "b": 90.0}
    report = run({name: times[name] for name in order}, adaptive=False)
    assert report.failures == {}
    assert {r["launches_per_sample"] for r in report.results.values()} == {1}
    assert {r["no_graph"] for r in report.results.values()} == {
        "ref:fa3 cannot be captured in a graph: not permitted when a stream is capturing"
    }


def test_in_sustained_rounds_all_take_part_as_often(
    run: Callable[..., Spoken], monkeypatch: pytest.MonkeyPatch
) -> None:
    sustained: list[float] = []
    monkeypatch.setattr(FakeSubject, "sustain", lambda _, s: sustained.append(s), raising=False)
    report = run({"a": 1.0, "b": 3.0}, runs=4, adaptive=False, sustained_s=1.0)
    assert sustained == [1.0, 1.0]
    assert {value["no_graph"] for value in report.results.values()} == {""}
    names = [name for name, _ in report.partials]
    assert [sorted(names[i : i + 2]) for i in range(0, 8, 2)] == [["a", "b"]] * 4
    assert not any(value["held_out_s"] for value in report.results.values())
