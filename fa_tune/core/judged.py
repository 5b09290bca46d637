"""What a judge and the processes that work for it tell each other, and the report that is kept.

judge ── one JSON line: Calls or Check ──▶ process
judge ◀─ one JSON line: Called or Checked ── process
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fa_tune.core import codec, files
from fa_tune.core.errors import ProfileFormatError
from fa_tune.core.model import CaseError

# What is done to drawn inputs, so that they resemble those of an earlier call: one key's values are
# another's; the values of all keys change places, which leaves their sum; a query is NaN.
KEY, FLIPPED, NAN = "key", "flipped", "nan"
CLAIMS = ("kernel", "torch", "library")
REQUIREMENTS = ("deterministic", "nan")


@dataclass(frozen=True)
class Contents:
    """What the inputs of a call hold: what the seed draws, then `edit`, one of the words above."""

    seed: int
    edit: str = ""


@dataclass(frozen=True)
class Case:
    """A problem, by its key, and a word for its inputs; with `extra_heads` no stride is natural."""

    workload: str
    inputs: str = "normal"
    extra_heads: int = 0


@dataclass(frozen=True)
class Calls:
    """Bind a subject to tensors that hold `bound`, then call it with each of `contents` in them.
    Output `name` of call i becomes the file `i.name` in `folder` (empty: none is kept).

    `repeats` launches make a call; `traced` calls are watched by torch's profiler.
    """

    subject: str
    case: Case
    bound: int
    contents: tuple[Contents, ...]
    folder: str = ""
    repeats: int = 1
    traced: bool = False


@dataclass(frozen=True)
class Fault:
    """Something that a call may not do: a word for its kind, and what it was."""

    kind: str
    what: str


@dataclass(frozen=True)
class Call:
    """One call: seconds between two events on its stream, what it did wrong, how often torch ran
    what, by name, and the digest of its output files as they were written."""

    seconds: float
    faults: tuple[Fault, ...] = ()
    ran: Mapping[str, int] = field(default_factory=dict)
    digest: str = ""


@dataclass(frozen=True)
class Called:
    """All calls of a request; or why the subject has none for the problem, or what it raised."""

    calls: tuple[Call, ...] = ()
    no_call: str = ""
    raised: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """Compare output files, the `number`th of `folder`, with what must come out.  `quick`: in fp32
    instead of fp64."""

    case: Case
    contents: Contents
    folder: str
    number: int
    quick: bool = False


@dataclass(frozen=True)
class Checked:
    """The errors, or what is wrong with the files."""

    error: CaseError | None = None
    damaged: str = ""


def digest_of(digests: Iterable[bytes]) -> str:
    """One for several files, given the SHA-256 of each in the order of their names."""
    return hashlib.sha256(b"".join(digests)).hexdigest()


# The report --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refusal:
    """Why a target is refused: a word for the kind, a sentence, and the problem by its key."""

    kind: str
    reason: str
    workload: str = ""


@dataclass(frozen=True)
class JudgedCase:
    """The errors on a case, those nearest to their limits; `no_call`: why the target takes no
    such problem.  `drawn`: nobody could know the shape beforehand."""

    workload: str
    inputs: str
    drawn: bool
    calls: int
    error: CaseError | None = None
    no_call: str = ""


@dataclass(frozen=True)
class Timing:
    """Seconds on a workload: of calls with new contents, of calls with the same contents again,
    and of references beside them.  `least_s`: what the GPU needs at its peak rates, if they are
    known; `inside_s` and `outside_s`: of `repeats` launches without a pause, by the clock in the
    target's process and by the judge's."""

    workload: str
    samples_s: tuple[float, ...]
    again_s: tuple[float, ...]
    references: Mapping[str, tuple[float, ...]]
    least_s: float | None
    repeats: int
    inside_s: float
    outside_s: float


@dataclass(frozen=True, kw_only=True)
class JudgeReport:
    """`fa-tune judge --json`"""

    schema: Literal["fa-tune-judge-1"] = "fa-tune-judge-1"
    target: str
    files: Mapping[str, str]  # name -> SHA-256
    claim: str
    required: tuple[str, ...]
    workloads: tuple[str, ...]
    references: tuple[str, ...]
    runs: int
    seed: int
    accepted: bool
    refusals: tuple[Refusal, ...]
    cases: tuple[JudgedCase, ...]
    timings: tuple[Timing, ...]
    deterministic: bool | None
    passes_nan_on: bool | None
    ran: tuple[str, ...]  # what torch ran in the target's calls
    device: str
    driver: str
    versions: Mapping[str, str]
    tool: Mapping[str, str]  # version and hash of the package that judged
    taken_at: str
    digest: str = ""

    def sealed(self) -> JudgeReport:
        """The same with its own digest."""
        return replace(self, digest=self.contents_digest)

    @property
    def contents_digest(self) -> str:
        """SHA-256 of all fields but `digest`, as JSON with sorted keys and without spaces."""
        fields = {name: value for name, value in codec.dump(self).items() if name != "digest"}
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def read_report(path: Path) -> JudgeReport:
    """The report in a file.  Raises StorageError, and ProfileFormatError for one that is damaged
    or was changed after it was written."""
    raw: Any = files.read_json(path)
    try:
        report = codec.load(JudgeReport, raw)
    except ValueError as error:
        raise ProfileFormatError(f"{path} is no report of fa-tune judge: {error}") from None
    if report.digest != report.contents_digest:
        raise ProfileFormatError(f"{path} is not as it was written: its digest is another")
    return report
