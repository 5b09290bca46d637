"""Calls counted by their form; of some the time is taken, and masks and lengths are looked at.

Nothing here waits for a GPU: times and looks are read when they are there.  What costs more than
counting is paid from a budget, a share of the time that goes by.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fa_tune.core.stats import median
from fa_tune.store.capture import masks
from fa_tune.store.capture.schema import Problem, Served, Usage

FIRST, EVERY = 8, 32  # calls of a form that are timed: the first ones, then one of so many
SHARE, MOST_SAVED_S = 0.01, 0.05  # of the time that goes by; what may be spent at once
SPIN_CYCLES, SPIN_S = 200_000, 1e-4  # what keeps a GPU busy until the host has made a call
MOST_SAMPLES = 64
MOST_LOOKS = 32  # of a form
MOST_ELEMENTS = 1 << 22  # of a mask, rows of which are looked at where it has more
HIDES = -1e4  # or less is added to a hidden key: BERT's way; torch gives cuDNN -65504
ROWS, ELEMENTS = 256, 4  # so many then, of so many batch elements and heads


class Budget:
    """Seconds that may be spent: a share of the time that went by, little of it saved."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._saved, self._then = MOST_SAVED_S, clock()

    @property
    def is_left(self) -> bool:
        now = self._clock()
        self._saved = min(MOST_SAVED_S, self._saved + SHARE * (now - self._then))
        self._then = now
        return self._saved > 0

    def spend(self, seconds: float) -> None:
        self._saved -= seconds


@dataclass(eq=False)
class Counts:
    """Calls of one form that one kernel served.  `late` samples may have the host's time in them,
    which took longer to make the call than the GPU was kept busy."""

    calls: int = 0
    captured: int = 0
    replayed: int = 0
    samples: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_SAMPLES))
    late: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_SAMPLES))

    @property
    def call_s(self) -> float | None:
        """The median time of a call; the first one is seldom like the others."""
        found = [*self.samples] or [*self.late]
        return median(found[len(found) > 1 :]) if found else None


@dataclass(eq=False)
class Tally:
    """Calls of one form.  `by` whom, and why not by ours, tells them apart."""

    problem: Problem
    n: int = 0
    of: dict[tuple[str, str], Counts] = field(default_factory=dict)
    looks: int = 0
    masks: Counter[str] = field(default_factory=Counter)
    lengths_q: Counter[int] = field(default_factory=Counter)
    lengths_kv: Counter[int] = field(default_factory=Counter)
    inputs: list[str] = field(default_factory=list)

    @property
    def is_due(self) -> bool:
        """Whether the next call would be timed."""
        return self.n < FIRST or self.n % EVERY == 0

    def counts(self, by: str, why: str) -> Counts:
        """The counts of who served it."""
        found = self.of.get((by, why))
        if found is None:
            found = self.of[by, why] = Counts()
        return found

    def usages(self, served: Callable[[Problem, str, str], Served]) -> list[Usage]:
        """What is counted so far."""
        return [
            Usage(
                problem=self.problem,
                served=served(self.problem, *who),
                calls=counts.calls,
                captured=counts.captured,
                replayed=counts.replayed,
                timed=len(counts.samples) or len(counts.late),
                call_s=counts.call_s,
                masks=dict(self.masks),
                lengths_q=_quantiles(self.lengths_q),
                lengths_kv=_quantiles(self.lengths_kv),
                looked_at=self.looks,
                inputs=tuple(self.inputs),
            )
            for who, counts in list(self.of.items())
        ]


def _quantiles(lengths: Counter[int]) -> tuple[int, ...]:
    """The shortest, those in steps of an eighth, and the longest."""
    ordered = sorted(lengths.elements())
    if not ordered or ordered[0] == ordered[-1]:
        return tuple(ordered[:1])
    return tuple(ordered[round(i / 8 * (len(ordered) - 1))] for i in range(9))


class Timed(NamedTuple):
    """A call that is being timed."""

    device: torch.device
    start: Any  # an event, None on the CPU
    host: float


class Clock:
    """Times of calls: of the device by events that are read later, of the CPU by the clock."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._free: defaultdict[torch.device, list[Any]] = defaultdict(list)
        self._pending: deque[tuple[Timed, Any, deque[float]]] = deque()

    def begin(self, device: torch.device) -> Timed:
        """The call comes next."""
        if device.type != "cuda":
            return Timed(device, None, time.perf_counter())
        started = time.perf_counter()
        with torch.cuda.device(device):
            torch.cuda._sleep(SPIN_CYCLES)
            start = self._event(device)
            start.record()
        now = time.perf_counter()
        self._budget.spend(now - started + SPIN_S)
        return Timed(device, start, now)

    def end(self, timed: Timed, counts: Counts) -> None:
        """The call was made."""
        now = time.perf_counter()
        if timed.start is None:
            counts.samples.append(now - timed.host)
            return
        with torch.cuda.device(timed.device):
            end = self._event(timed.device)
            end.record()
        samples = counts.samples if now - timed.host < SPIN_S else counts.late
        self._pending.append((timed, end, samples))
        self._budget.spend(time.perf_counter() - now)

    def read(self) -> None:
        """Take over the times that are there."""
        while self._pending and self._pending[0][1].query():
            timed, end, samples = self._pending.popleft()
            samples.append(timed.start.elapsed_time(end) / 1e3)
            self._free[timed.device] += (timed.start, end)

    def _event(self, device: torch.device) -> Any:
        try:
            return self._free[device].pop()
        except IndexError:
            return torch.cuda.Event(enable_timing=True)


class _Look(NamedTuple):
    tally: Tally
    ready: Any  # an event, None on the CPU
    given: Mapping[str, Any]


class Looks:
    """What masks and lengths hold, of copies that are made on the way and read later."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._pending: deque[_Look] = deque()

    def take(self, tally: Tally, given: Mapping[str, Any]) -> None:
        """Copy what a call was given, where it is worth a look."""
        names = [name for name in ("mask", "cum_q", "cum_kv", "lengths") if _holds(given, name)]
        if not names or tally.looks + len(self._pending) >= MOST_LOOKS:
            return
        started = time.perf_counter()
        held: dict[str, Any] = {"n_q": tally.problem.seq_len_q}
        ready = None
        with torch.no_grad():
            for name in names:
                tensor = given[name].detach()
                if name == "mask":
                    tensor, held["rows"] = _some_rows(tensor)
                copy = tensor.to("cpu", non_blocking=True)
                held[name] = copy.clone() if tensor.device.type == "cpu" else copy
                device = tensor.device
            if device.type == "cuda":
                with torch.cuda.device(device):
                    ready = torch.cuda.Event()
                    ready.record()
        self._pending.append(_Look(tally, ready, held))
        self._budget.spend(time.perf_counter() - started)

    def read(self) -> None:
        """Take over what is there."""
        while self._pending and (self._pending[0].ready is None or self._pending[0].ready.query()):
            tally, _, held = self._pending.popleft()
            if "mask" in held:
                tally.masks[_truth(held["mask"], held["rows"], held["n_q"])] += 1
            for name, found in (("cum_q", tally.lengths_q), ("cum_kv", tally.lengths_kv)):
                if name in held:
                    found.update(held[name].diff().tolist())
            if "lengths" in held:
                tally.lengths_kv.update(held["lengths"].flatten().tolist())
            tally.looks += 1


def _holds(given: Mapping[str, Any], name: str) -> bool:
    return isinstance(given.get(name), Tensor) and given[name].numel() > 0


def _some_rows(mask: Tensor) -> tuple[Tensor, Any]:
    """[elements, rows, keys] of a mask that goes with [batch, heads, rows, keys], and which rows
    these are, None: all.  What is repeated is taken once."""
    for dim, step in enumerate(mask.stride()):
        if step == 0:
            mask = mask.narrow(dim, 0, 1) if dim < mask.ndim - 1 else mask
    while mask.ndim < 3:
        mask = mask[None]
    whole = mask.reshape(-1, *mask.shape[-2:]) if mask.numel() <= MOST_ELEMENTS else None
    if whole is not None:
        return whole, None
    n = mask.shape[-2]
    rows = np.unique(np.linspace(0, n - 1, ROWS).round().astype(int))
    for dim in range(mask.ndim - 2):
        mask = mask.narrow(dim, 0, min(ELEMENTS, mask.shape[dim]))
    mask = mask[..., torch.from_numpy(rows).to(mask.device, non_blocking=True), :]
    return mask.reshape(-1, *mask.shape[-2:])[: ELEMENTS**2], rows


def _truth(mask: Tensor, rows: Any, n_q: int) -> str:
    if mask.dtype == torch.bool:
        return masks.truth(mask.numpy(), n_q, rows)
    numbers = mask.float()
    hidden = numbers <= HIDES
    if bool((numbers[~hidden] != 0).any()):
        return masks.BIAS
    return masks.truth((~hidden).numpy(), n_q, rows)
