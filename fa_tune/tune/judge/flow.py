"""Judging a target: verification, determinism, timing, and what is refused.

The target runs in a process of its own.  It never has the expected results, nor the seeds of calls
to come.  A second, trusted process compares the bytes that the target's process hands over; this
one decides.
"""

from __future__ import annotations

import hashlib
import platform
import random
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fa_tune
from fa_tune.core.devices import pinned_to
from fa_tune.core.errors import ToolMissing
from fa_tune.core.judged import (
    NAN,
    Called,
    Calls,
    Case,
    Check,
    Checked,
    Contents,
    JudgedCase,
    JudgeReport,
    Refusal,
    Timing,
    digest_of,
)
from fa_tune.core.model import CaseError, reference_subject
from fa_tune.core.options import Progress
from fa_tune.core.workload import Workload
from fa_tune.libraries.user import UserRunner, locate
from fa_tune.tune.judge import rules
from fa_tune.tune.judge.draws import MOST_SEED, Ordeal, ordeals
from fa_tune.tune.judge.process import Ended, Limits, Process, started
from fa_tune.tune.session import Machine

CPU = -1
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # on a CPU, so that other work disturbs times less
OUTSIDE_S = 0.4  # of launches that are held against the judge's clock
MOST_REPEATS = 4096
MORE_REPEATS = 8


@dataclass(frozen=True, kw_only=True)
class JudgeOptions:
    """What is asked for.  `claim`: one of CLAIMS; `required`: some of REQUIREMENTS; `references`:
    names of libraries to time beside; `limits` are those of each process."""

    workloads: tuple[Workload, ...]
    claim: str
    seed: int
    required: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    runs: int = 15
    limits: Limits = field(default_factory=Limits)


class Refused(Exception):
    """Nothing more can be asked of the target."""


def judge(place: str, options: JudgeOptions, machine: Machine, progress: Progress) -> JudgeReport:
    """The report about a target, on the machine's GPU, or without one on its CPU.  Raises
    InvalidConfig for no target, and ToolMissing for a `.cu` without a GPU or a process that does
    not start."""
    target = locate(place)
    if machine.device is None and any(file.suffix == ".cu" for file in target.files):
        raise ToolMissing("no GPU found: a CUDA file runs on one; functions are judged without")
    with processes(options, machine) as (ours, theirs):
        return Trial(target, options, machine, ours, theirs).report(progress)


@contextmanager
def processes(options: JudgeOptions, machine: Machine) -> Iterator[tuple[Process, Process]]:
    """The trusted process and the target's."""
    gpu = machine.pool.gpus[0] if machine.pool.gpus else None
    env = ONE_THREAD if gpu is None else pinned_to(gpu.device.uuid)
    device = CPU if gpu is None else gpu.worker_device
    with ExitStack() as stack:
        ours, theirs = (
            stack.enter_context(started(device, env, options.limits, trusted=trusted))
            for trusted in (True, False)
        )
        yield ours, theirs


@dataclass
class Trial:
    """One target before its judge."""

    target: UserRunner
    options: JudgeOptions
    machine: Machine
    ours: Process
    theirs: Process
    refusals: list[Refusal] = field(default_factory=list)
    cases: list[JudgedCase] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)
    ran: Counter[str] = field(default_factory=Counter)
    deterministic: bool | None = None
    passes_nan_on: bool | None = None
    versions: dict[str, str] = field(default_factory=dict)

    def report(self, progress: Progress) -> JudgeReport:
        """Judge it."""
        files, tool = file_digests(self.target), tool_digest()
        rng = random.Random(self.options.seed)
        try:
            for workload in self.options.workloads:
                drawn = ordeals(workload, rng)
                progress.stage("judge", len(drawn))
                for ordeal in drawn:
                    self._verify(ordeal)
                    progress.advance(ordeal.case.workload)
                    if self.refusals:
                        raise Refused
                self._check_calls_taken(workload)
                self._require()
                if self.refusals:
                    raise Refused
                self._time(workload, rng)
        except Refused:
            pass
        except Ended as ended:
            self._refuse(ended.kind, str(ended))
        if file_digests(self.target) != files:
            self._refuse("patched", "its files changed while it was judged")
        if tool_digest() != tool:
            self._refuse("patched", "files of fa-tune changed while it was judged")
        return self._sealed(files, {"version": fa_tune.__version__, "sha256": tool})

    def _refuse(self, kind: str, reason: str, workload: str = "") -> None:
        """Keep the first reason of each kind."""
        if all(known.kind != kind for known in self.refusals):
            self.refusals.append(Refusal(kind, reason, workload))

    # Verification ---------------------------------------------------------------------------

    def _verify(self, ordeal: Ordeal) -> None:
        called, digests, folder = self._call(ordeal.case, ordeal.bound, ordeal.contents)
        if called.no_call:
            case = ordeal.case
            self.cases.append(
                JudgedCase(case.workload, case.inputs, ordeal.drawn, 0, no_call=called.no_call)
            )
            return
        errors = [
            self._judged(ordeal.case, ordeal.contents, number, folder, digests)
            for number in range(len(digests))
            if (ordeal.contents[number], digests[number])
            not in zip(ordeal.contents[:number], digests, strict=False)
        ]
        shutil.rmtree(folder)
        self.cases.append(
            JudgedCase(
                *(ordeal.case.workload, ordeal.case.inputs, ordeal.drawn, len(called.calls)),
                max(filter(None, errors), key=lambda e: (not e.ok, e.share), default=None),
            )
        )
        self._note_same(digests[0] == digests[1])
        if ordeal.watched:
            self._watch(ordeal)

    def _call(
        self, case: Case, bound: int, contents: Sequence[Contents], **more: Any
    ) -> tuple[Called, list[str], Path]:
        """The target's calls, the digests of their outputs, and the folder of these."""
        folder = self.theirs.new_folder()
        subject = self.target.subject
        request = Calls(subject, case, bound, tuple(contents), str(folder), **more)
        called = self.theirs.ask(request, Called)
        if called.no_call:
            return called, [], folder
        if called.raised:
            self._refuse("crashed", called.raised, case.workload)
            raise Refused
        if len(called.calls) != len(contents):
            raise Ended("forged", f"its process answered {len(called.calls)} calls")
        for call in called.calls:
            for one in call.faults:
                self._refuse(one.kind, one.what, case.workload)
        if self.refusals:
            raise Refused
        self.versions |= called.versions
        digests = [_digest(folder.glob(f"{number}.*")) for number in range(len(called.calls))]
        if digests != [call.digest for call in called.calls]:
            raise Ended("forged", "its results were written again after they were handed over")
        return called, digests, folder

    def _judged(
        self,
        case: Case,
        contents: Sequence[Contents],
        number: int,
        folder: Path,
        digests: Sequence[str],
        *,
        quick: bool = False,
    ) -> CaseError | None:
        """The errors of one of several calls, by the trusted process."""
        own = contents[number]
        try:
            found = self.ours.ask(Check(case, own, str(folder), number, quick), Checked)
        except Ended as ended:
            raise ToolMissing(f"the process that compares results failed: {ended}") from None
        if found.error is None:
            self._refuse("form", found.damaged, case.workload)
        elif not found.error.ok and own.edit != NAN:
            before = zip(contents[:number], digests, strict=False)
            earlier = [digest for one, digest in before if one != own]
            self._refuse(*rules.wrong(found.error, earlier, digests[number]), case.workload)
        return found.error

    def _watch(self, ordeal: Ordeal) -> None:
        """What runs in its calls; those with equal contents must do the same."""
        called, _, folder = self._call(ordeal.case, ordeal.bound, ordeal.watched, traced=True)
        shutil.rmtree(folder)
        first, again = (call.ran for call in called.calls)
        self.ran.update(first)
        self.ran.update(again)
        for found in (
            rules.remembered(first, again),
            rules.borrowed(self.options.claim, self.ran, self.target.name),
        ):
            if found is not None:
                self._refuse(*found, ordeal.case.workload)

    def _note_same(self, same: bool) -> None:
        self.deterministic = same and self.deterministic is not False

    def _check_calls_taken(self, workload: Workload) -> None:
        taken = [case for case in self.cases if not case.no_call]
        if not any(case.drawn for case in taken):
            why = next((case.no_call for case in self.cases if case.no_call), "")
            self._refuse("shapes", f"it takes no shape that was drawn: {why}", workload.key)
        if all(case.workload != workload.key for case in taken):
            self._refuse("shapes", "it takes no problem that is timed", workload.key)

    def _require(self) -> None:
        if "deterministic" in self.options.required and not self.deterministic:
            self._refuse("nondeterministic", "equal inputs gave other bits")
        if "nan" in self.options.required and self.passes_nan_on is False:
            self._refuse("nan", "a query that is NaN does not give NaN, or others become NaN")

    # Timing ---------------------------------------------------------------------------------

    def _time(self, workload: Workload, rng: random.Random) -> None:
        """Samples of the target and the references in turn, each with contents of its own; every
        result of a sample is judged."""
        case, bound = Case(workload.key), rng.randrange(MOST_SEED)
        quick = self.machine.device is not None
        if not workload.uneven:
            self._pass_nan(case, bound, Contents(rng.randrange(MOST_SEED), NAN))
        samples, again = [], []
        others: dict[str, list[float]] = {name: [] for name in self.options.references}
        for _ in range(self.options.runs):
            warm, now = (Contents(rng.randrange(MOST_SEED)) for _ in range(2))
            contents = (warm, now, now)
            called, digests, folder = self._call(case, bound, contents)
            self._judged(case, contents, 1, folder, digests, quick=quick)
            shutil.rmtree(folder)
            self._note_same(digests[1] == digests[2])
            samples.append(called.calls[1].seconds)
            again.append(called.calls[2].seconds)
            for name, seconds in others.items():
                asked = Calls(reference_subject(name), case, bound, (warm, now))
                answer = self.ours.ask(asked, Called)
                seconds += [answer.calls[1].seconds] if answer.calls else []
        timing = Timing(
            *(workload.key, tuple(samples), tuple(again)),
            {name: tuple(seconds) for name, seconds in others.items() if seconds},
            rules.least_seconds(workload, self.machine.device.name if self.machine.device else ""),
            *self._held_against_our_clock(case, bound, rng),
        )
        self.timings.append(timing)
        for found in rules.timed(timing):
            self._refuse(*found, workload.key)
        self._require()

    def _held_against_our_clock(
        self, case: Case, bound: int, rng: random.Random
    ) -> tuple[int, float, float]:
        """Repeats, more and more of them, and their seconds less those of one launch: by the
        process's own account, and by how long it took to answer."""

        def taken(repeats: int) -> tuple[float, float]:
            contents = (Contents(rng.randrange(MOST_SEED)),)
            called, digests, folder = self._call(case, bound, contents, repeats=repeats)
            seconds = called.calls[0].seconds, self.theirs.wall_s
            self._judged(case, contents, 0, folder, digests, quick=self.machine.device is not None)
            shutil.rmtree(folder)
            return seconds

        one = min(taken(1) for _ in range(3))
        repeats = MORE_REPEATS
        while True:
            inside, outside = (a - b for a, b in zip(taken(repeats), one, strict=True))
            if outside > OUTSIDE_S or repeats >= MOST_REPEATS:
                return repeats, inside, outside
            repeats *= MORE_REPEATS

    def _pass_nan(self, case: Case, bound: int, contents: Contents) -> None:
        _, digests, folder = self._call(case, bound, (contents,))
        error = self._judged(case, (contents,), 0, folder, digests)
        shutil.rmtree(folder)
        same = error is not None and error.ok
        self.passes_nan_on = same and self.passes_nan_on is not False

    # The report -----------------------------------------------------------------------------

    def _sealed(self, files: Mapping[str, str], tool: Mapping[str, str]) -> JudgeReport:
        device, options = self.machine.device, self.options
        return JudgeReport(
            target=self.target.place,
            files=files,
            claim=options.claim,
            required=options.required,
            workloads=tuple(workload.key for workload in options.workloads),
            references=options.references,
            runs=options.runs,
            seed=options.seed,
            accepted=not self.refusals,
            refusals=tuple(self.refusals),
            cases=tuple(self.cases),
            timings=tuple(self.timings),
            deterministic=self.deterministic,
            passes_nan_on=self.passes_nan_on,
            ran=tuple(sorted(self.ran)),
            device=device.name if device else f"CPU, {platform.machine()}",
            driver=device.driver if device else "",
            versions=self.versions,
            tool=tool,
            taken_at=datetime.now(UTC).isoformat(timespec="seconds"),
        ).sealed()


def file_digests(target: UserRunner) -> dict[str, str]:
    """SHA-256 of a target's files, or the version of the package that offers it."""
    if not target.files:
        return {target.place: target.identity}
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in target.files}


def tool_digest() -> str:
    """SHA-256 of this package's Python files."""
    return _digest(sorted(Path(fa_tune.__file__).parent.rglob("*.py")))


def _digest(files: Iterable[Path]) -> str:
    return digest_of(hashlib.sha256(file.read_bytes()).digest() for file in sorted(files))
