"""A target before its judge: its calls, what the trusted process says of their results, and what is
refused so far."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    Refusal,
    Timing,
    digest_of,
)
from fa_tune.core.model import CaseError
from fa_tune.core.workload import Workload
from fa_tune.libraries.user import UserRunner
from fa_tune.tune.judge import rules
from fa_tune.tune.judge.process import Ended, Limits, Process
from fa_tune.tune.session import Machine


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

    def refuse(self, kind: str, reason: str, workload: str = "") -> None:
        """Keep the first reason of each kind."""
        if all(known.kind != kind for known in self.refusals):
            self.refusals.append(Refusal(kind, reason, workload))

    def call(
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
            self.refuse("crashed", called.raised, case.workload)
            raise Refused
        if len(called.calls) != len(contents):
            raise Ended("forged", f"its process answered {len(called.calls)} calls")
        for call in called.calls:
            for one in call.faults:
                self.refuse(one.kind, one.what, case.workload)
        if self.refusals:
            raise Refused
        self.versions |= called.versions
        digests = [digest(folder.glob(f"{number}.*")) for number in range(len(called.calls))]
        if digests != [call.digest for call in called.calls]:
            raise Ended("forged", "its results were written again after they were handed over")
        return called, digests, folder

    def judged(
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
            self.refuse("form", found.damaged, case.workload)
        elif not found.error.ok and own.edit != NAN:
            before = zip(contents[:number], digests, strict=False)
            earlier = [digest for one, digest in before if one != own]
            self.refuse(*rules.wrong(found.error, earlier, digests[number]), case.workload)
        return found.error

    def note_same(self, same: bool) -> None:
        self.deterministic = same and self.deterministic is not False

    def require(self) -> None:
        if "deterministic" in self.options.required and not self.deterministic:
            self.refuse("nondeterministic", "equal inputs gave other bits")
        if "nan" in self.options.required and self.passes_nan_on is False:
            self.refuse("nan", "a query that is NaN does not give NaN, or others become NaN")


def digest(files: Iterable[Path]) -> str:
    """SHA-256 of files' contents, in the order of their names."""
    return digest_of(hashlib.sha256(file.read_bytes()).digest() for file in sorted(files))
