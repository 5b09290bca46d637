"""What rounds were taken under: flags, and what NVML tells."""

import sys
import threading
import time

import pytest

pytest.importorskip("torch", reason="torch is not installed: no jobs to test")


from fa_tune.core.jobs import Reading
from fa_tune.gpu import telemetry


def test_a_power_cap_is_how_good_kernels_run() -> None:
    log = telemetry.Log()
    assert not log.add(0, 1.0, 1.0, Reading(1.6e9, 690.0, 60.0, ("software power cap",)))
    assert log.reported[0].reading.reasons == ("software power cap",)


def test_a_clock_far_from_the_others_and_a_baseline_that_moves_are_flagged() -> None:
    log = telemetry.Log()
    for i in range(3):
        assert not log.add(i, 1.0, 1.02, Reading(1.8e9 * (1 + i / 1000)))
    assert log.add(3, 1.0, 1.0, Reading(1.7e9))
    assert log.add(4, 1.0, 1.05, Reading(1.8e9))
    assert log.add(5, 1.0, 0.95, Reading(1.8e9))
    assert log.add(6, 2.0, 2.0, Reading(1.9e9))
    assert not log.add(7, None, None, Reading())
    assert [r.flags for r in log.rounds[3:]] == [
        ("the clock is off by -5.6 %",),
        ("the baseline changed by +5.0 %",),
        ("the baseline changed by -5.0 %",),
        ("the clock is off by +5.6 %",),
        (),
    ]


@pytest.mark.parametrize(("clock", "flagged"), [(1.08, False), (1.1, True), (0.92, False)])
def test_unusual_is_three_standard_deviations_of_the_rounds_before(
    clock: float, flagged: bool
) -> None:
    """Half of them are within 0.02 of the middle one: of a normal distribution that is 0.0297."""
    log = telemetry.Log()
    for number, before in enumerate((1.0, 1.02, 0.98, 1.04, 0.96)):
        log.add(number, None, None, Reading(before * 1e9))
    assert log.add(5, None, None, Reading(clock * 1e9)) is flagged


def test_nvml_is_asked_again_beside_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()
    clocks = iter([1.0e9, 1.5e9])

    def read() -> Reading:
        clock = next(clocks, 2.0e9)
        if clock == 2.0e9:
            asked.set()
        return Reading(clock)

    monkeypatch.setattr(telemetry, "reader", lambda device: read)
    monkeypatch.setattr(telemetry, "WATCH_S", 0.001)
    latest = telemetry.watched(0)
    assert asked.wait(10)
    until = time.monotonic() + 10
    while latest() != Reading(2.0e9):
        assert time.monotonic() < until


def test_without_nvml_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert telemetry.reader(0)() == Reading()


class FakeNvml:
    """A board, which may not tell clocks."""

    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def __init__(self, clock_mhz: int | None) -> None:
        self._clock_mhz = clock_mhz

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        if self._clock_mhz is None:
            raise self.NVMLError("not supported")
        return self._clock_mhz

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 690_000

    def nvmlDeviceGetTemperature(self, handle: str, kind: int) -> int:
        return 61

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return 0x4 | 0x20 | 0x200  # SwPowerCap, SwThermalSlowdown and one of later drivers


@pytest.mark.parametrize(("clock_mhz", "clock_hz"), [(1980, 1.98e9), (None, None)])
def test_what_nvml_tells_and_does_not(
    monkeypatch: pytest.MonkeyPatch, clock_mhz: int | None, clock_hz: float | None
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(clock_mhz))
    monkeypatch.setattr(telemetry, "nvml_handle", "GPU {}".format)
    reasons = ("software power cap", "software thermal slowdown")
    assert telemetry.reader(0)() == Reading(clock_hz, 690.0, 61.0, reasons)


def test_of_very_many_rounds_the_first_and_the_last_are_reported() -> None:
    log = telemetry.Log()
    for i in range(1000):
        log.add(i, None, None, Reading())
    told = [r.number for r in log.reported]
    assert told == [*range(telemetry.KEPT), *range(1000 - telemetry.KEPT, 1000)]


def test_repeats_are_bounded() -> None:
    repeats = telemetry.Repeats(5)
    assert [repeats.take(i) for i in range(7)] == [True, True, False, False, False, True, True]


def test_what_scatters_all_the_while_is_not_unusual() -> None:
    """As on a power-limited GPU: after a few rounds none is, until one is really off."""
    log = telemetry.Log()
    clocks = [1.62, 1.70, 1.60, 1.67, 1.59, 1.70, 1.64, 1.60, 1.68, 1.62]
    closings = [1.01, 0.97, 1.02, 0.96, 1.03, 1.0, 1.04, 0.97, 1.02, 0.98]
    flagged = [
        log.add(i, 1.0, closing, Reading(clock * 1e9))
        for i, (clock, closing) in enumerate(zip(clocks, closings, strict=True))
    ]
    assert sum(flagged[5:]) == 0
    assert log.add(10, 1.0, 1.0, Reading(1.2e9))
    assert log.add(11, 1.0, 1.3, Reading(1.65e9))


def test_after_a_step_the_new_level_is_usual() -> None:
    """A clock that falls and stays there flags the rounds of the step, not all that follow."""
    log = telemetry.Log()
    flagged = [log.add(i, 1.0, 1.0, Reading(1.84e9 if i < 10 else 1.6e9)) for i in range(40)]
    assert flagged[10]
    assert sum(flagged) <= telemetry.RECENT
    assert not any(flagged[20:])
