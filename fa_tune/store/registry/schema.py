"""What a registry holds, and its JSON form.  Start with `Entry`.

The dataclasses are the schema: reading is strict (no coercion, no unknown field, no NaN), and
nothing that is read is ever executed.  docs/registry.md describes the file for people who
write programs against it; `json_schema()` does so for machines.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple

from fa_tune import families
from fa_tune.core import codec
from fa_tune.core.codec import FILLED, NOT_NEGATIVE, POSITIVE
from fa_tune.core.comparison import Confirmation, OnInputs
from fa_tune.core.errors import InvalidConfig, RegistryError, one_line
from fa_tune.core.inputs import NORMAL
from fa_tune.core.model import BARE_READ, Provenance, Variant, Verdict, parse_time, reference_name
from fa_tune.core.stats import ORDERED, Interval, Ratio
from fa_tune.core.workload import Workload
from fa_tune.operations.memory import MemoryRate, memory_rate

# What is written; a change of the types below is a new number and a new reader.
SCHEMA: Literal[6] = 6

Text = Annotated[str, FILLED]
Positive = Annotated[float, POSITIVE]
NotNegative = Annotated[float, NOT_NEGATIVE]
Count = Annotated[int, POSITIVE]
_BELOW = 1 - 1e-9  # what rounding may do


@dataclass(frozen=True)
class Gpu:
    """A GPU model: `name` as the driver spells it, compute capability as (major, minor)."""

    name: Text
    compute_capability: tuple[int, int]


@dataclass(frozen=True)
class RunnerUp:
    """A variant that was not chosen; `ratio` is its time over the chosen one's."""

    variant: Variant
    median_s: Positive
    ratio: Ratio


@dataclass(frozen=True)
class VerdictSummary:
    """How right the chosen variant is: the case that came nearest its limit, of `cases`.  Entries
    of earlier versions have no root mean square."""

    correct: bool
    cases: Count
    max_abs_error: NotNegative
    limit: NotNegative
    rms_error: NotNegative | None = None
    rms_limit: NotNegative | None = None

    @classmethod
    def of(cls, verdict: Verdict) -> VerdictSummary | None:
        """The summary of a verdict; None if it tried no case and so says nothing."""
        if not verdict.cases:
            return None
        worst = max(verdict.cases, key=lambda c: c.share)
        return cls(
            *(verdict.correct, len(verdict.cases), worst.max_abs_error, worst.limit),
            *(worst.rms_error, worst.rms_limit),
        )


@dataclass(frozen=True)
class Confirmed:
    """What became of a search's choice when it was compared with the default once more, in a
    process of its own and as a program runs it: `ratio` is the time of `variant`, which the
    search preferred, over that of `default`, in `n` pairs.  Not `upheld`: it gained nothing, and
    the default was kept in its place."""

    variant: Variant
    default: Variant
    ratio: Ratio
    n: Count
    upheld: bool

    @classmethod
    def of(cls, found: Confirmation) -> Confirmed:
        """A comparison as an entry has it."""
        chosen, default = Variant.from_key(found.chosen), Variant.from_key(found.default)
        return cls(chosen, default, found.ratio, found.n, found.upheld)


@dataclass(frozen=True)
class InputFigures:
    """What the chosen variant does on one kind of inputs: its median, its time over the default's
    in the same rounds, None for the default itself, and over its own on the inputs of the search,
    of samples paired within rounds, None where that was not measured.  `error_to_fa2`: its root
    mean square error over FlashAttention 2's; None where that has none."""

    median_s: Positive
    ratio_to_default: Ratio | None
    ratio_to_own_inputs: Positive | None = None
    error_to_fa2: NotNegative | None = None


@dataclass(frozen=True)
class Served:
    """A library that is called in place of the chosen variant where `packages`, the text of
    `libraries.installed`, are installed.  `ratio`: its time over that variant's, as a program runs
    them, in `n` pairs."""

    library: Text
    packages: Text
    ratio: Ratio
    n: Count


class EntryKey(NamedTuple):
    """What an entry is about.  A registry has at most one entry per key, so results of
    different methods live side by side and are never weighed against each other."""

    gpu: str
    compute_capability: tuple[int, int]
    workload: str
    method: str


@dataclass(frozen=True)
class Entry:
    """The chosen variant for one GPU model and workload, and what the choice rests on.

    Times are seconds per launch.  `interval_s` is the 95 % bootstrap interval of the median of
    `n` samples, None for a single one.  `traits` are the compile-time facts of this very
    workload.  `tflops` counts 4·s²·d, of a backward pass 10·s²·d (causal: unmasked pairs
    only).  `ratio_to_default` and `ratio_to_references` are the chosen variant's time over the
    other's.  `tie_set` is what the measurements cannot tell from the fastest.  `verdict` is
    None if the variant was not verified in that run.  `confirmation` is None if the choice is
    the default, or was not compared with it once more.  `inputs` are those that the choice was
    made on, as text, and `per_inputs` what became of it on these and others, by their text, in
    the comparison after the search; empty without one.  `recording` is the recording's path for
    a replay, else None.  `reason` is one sentence: which rule ended the choice.  `served` is a
    library that is faster than the chosen variant; None unless the search had libraries among its
    candidates.

    Raises ValueError where the fields contradict each other.
    """

    gpu: Gpu
    workload: Workload
    method: Text
    inputs: Text
    source: Literal["measured", "replay"]
    recording: Text | None
    chosen: Variant
    traits: str
    reason: str
    median_s: Positive
    interval_s: Annotated[Interval, ORDERED] | None
    n: Count
    tflops: Positive
    default: Variant | None
    ratio_to_default: Ratio | None
    ratio_to_references: Mapping[str, Ratio]
    tie_set: tuple[Variant, ...]
    runners_up: tuple[RunnerUp, ...]
    verdict: VerdictSummary | None
    confirmation: Confirmed | None
    per_inputs: Mapping[str, InputFigures]
    provenance: Provenance
    served: Served | None

    def __post_init__(self) -> None:
        p = self.provenance
        if p.method != self.method:
            raise ValueError(f"method is {self.method}, but provenance.method {p.method}")
        if p.gpu != self.gpu.name:
            raise ValueError(f"gpu.name is {self.gpu.name}, but provenance.gpu {p.gpu}")
        if (self.source == "replay") != (self.recording is not None):
            raise ValueError("a replay names its recording, and nothing else does")
        if self.verdict is not None and not self.verdict.correct:
            raise ValueError("a variant that failed verification cannot be chosen")
        c = self.confirmation
        if c is not None and self.chosen != (c.variant if c.upheld else c.default):
            raise ValueError("the chosen variant is not the one that the confirmation leaves")
        parse_time(p.recorded_at)
        ratios = {**self.ratio_to_references, "ratio_to_default": self.ratio_to_default}
        figures = [(name, r.value, r.interval) for name, r in ratios.items() if r is not None]
        for name, value, ends in (*figures, ("median_s", self.median_s, self.interval_s)):
            if ends is not None and (value < ends[0] * _BELOW or value * _BELOW > ends[1]):
                raise ValueError(f"{name} is outside its interval")
        self._check_chosen()

    def _check_chosen(self) -> None:
        """What was chosen for a workload computes it.  A config that no family of today can read
        is left for who asks for it."""
        try:
            config = families.config_of(self.chosen)
        except InvalidConfig:
            return
        if not families.fits(config, self.workload):
            raise ValueError(f"{self.chosen.config} is not for {self.workload.key}")

    @property
    def key(self) -> EntryKey:
        """What the entry is about."""
        return EntryKey(self.gpu.name, self.gpu.compute_capability, self.workload.key, self.method)

    @property
    def on_inputs(self) -> tuple[OnInputs, ...]:
        """The figures per inputs, as searches have them."""
        return tuple(
            OnInputs(
                *(name, found.median_s, found.ratio_to_default, found.ratio_to_own_inputs),
                error=found.error_to_fa2,
            )
            for name, found in self.per_inputs.items()
        )

    @property
    def memory_rate(self) -> MemoryRate | None:
        """How near the choice is to the speed of the GPU's memory; None where that is not its
        limit."""
        ratios = {reference_name(k): ratio.value for k, ratio in self.ratio_to_references.items()}
        of_read = 1.0 / ratios[BARE_READ] if BARE_READ in ratios else None
        return memory_rate(self.workload, self.median_s, self.gpu.name, of_read)


@dataclass(frozen=True)
class Registry:
    """All entries, kept sorted by GPU, workload and method; raises ValueError for two entries
    with one key."""

    schema: Literal[6]
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        ordered = sorted(self.entries, key=lambda e: (e.gpu.name, e.workload, e.key))
        for a, b in pairwise(ordered):
            if a.key == b.key:
                raise ValueError(
                    f"two entries for {a.key.workload} on {a.gpu.name} by {a.method}; keep one"
                )
        object.__setattr__(self, "entries", tuple(ordered))

    @classmethod
    def of(cls, entries: Sequence[Entry] = ()) -> Registry:
        return cls(SCHEMA, tuple(entries))

    def get(self, key: EntryKey) -> Entry | None:
        return next((e for e in self.entries if e.key == key), None)


def from_json(data: str | bytes, where: str) -> Registry:
    """Read a registry.  `where` names the file in errors.

    Raises RegistryError, one line, naming the line or the field at fault.
    """
    try:
        return _read(data, where)
    except ValueError as error:
        raise RegistryError(f"{where}: {one_line(str(error))}{_MEND}") from None


def _read(data: str | bytes, where: str) -> Registry:
    """`from_json`; raises ValueError, which says what is wrong, and RegistryError for a schema that
    is newer."""
    try:
        raw = codec.parse(data if isinstance(data, str) else data.decode("utf-8-sig"))
    except UnicodeDecodeError as e:
        raise ValueError(f"not UTF-8 at byte {e.start}") from None
    _check_version(raw, where)
    codec.check_printable(raw)
    whole = _from_older(raw) if raw["schema"] < SCHEMA else raw
    if isinstance(entries := whole.get("entries"), list):
        whole = {**whole, "entries": _without_restated(entries)}
    registry: Registry = _with_todays_words(codec.load(Registry, whole))
    return registry


def _with_todays_words(value: Any) -> Any:
    """The same with every variant as its family writes it today."""
    if isinstance(value, Variant):
        return families.canonical(value)
    if type(value) is tuple:
        return tuple(_with_todays_words(part) for part in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        found = {name: _with_todays_words(part) for name, part in parts.items()}
        changed = {name: part for name, part in found.items() if part != parts[name]}
        return dataclasses.replace(value, **changed) if changed else value
    return value


def to_json(registry: Registry) -> str:
    """The file's text.

    Raises RegistryError for a registry that could not be read back (a field with a value that
    does not fit the schema): such a file must not be written.
    """
    text = json.dumps(codec.dump(registry), indent=2, ensure_ascii=False) + "\n"
    try:
        for entry in registry.entries:
            _check_free(entry.provenance.extra)
        _read(text.encode(), "the new registry")
    except ValueError as e:
        raise RegistryError(
            f"the new registry does not fit its schema: {one_line(str(e))}"
        ) from None
    return text


def _check_free(extra: Mapping[str, Any]) -> None:
    """Raise ValueError for what `dump` would give another form that JSON has."""
    try:
        json.dumps(dict(extra), allow_nan=False)
    except (ValueError, TypeError) as e:
        raise ValueError(f"provenance.extra: {e}") from None


def entry_text(entry: Entry) -> str:
    """One entry as canonical JSON: equal entries have equal texts."""
    return json.dumps(codec.dump(entry), sort_keys=True)


_MEND = "; fix the file or move it away; it was left unchanged"


def _check_version(raw: object, where: str) -> None:
    version = raw.get("schema") if isinstance(raw, dict) else None
    if type(version) is not int or version < 1:
        raise ValueError('not a registry: it has no "schema" number')
    if version > SCHEMA:
        raise RegistryError(
            f"{where}: schema {version} is newer than this fa-tune reads ({SCHEMA}); "
            "update fa-tune, or give another registry"
        )


# What a version of the schema added to an entry, with the value that older entries mean.
_ADDED: Mapping[int, Mapping[str, Any]] = {
    2: {"confirmation": None},
    3: {"inputs": str(NORMAL), "per_inputs": {}},
    5: {"served": None},
}


def _from_older(raw: dict[str, Any]) -> dict[str, Any]:
    """An older schema as the present one.  What does not fit stays as it is, to be refused where
    it is checked."""
    added = {
        name: value
        for version, fields in _ADDED.items()
        for name, value in fields.items()
        if version > raw["schema"]
    }
    entries = raw.get("entries")
    if isinstance(entries, list):
        entries = [
            {**added, **e} if isinstance(e, dict) and not added.keys() & e.keys() else e
            for e in entries
        ]
        raw = {**raw, "entries": entries}
    return {**raw, "schema": SCHEMA}


def _without_restated(entries: list[Any]) -> list[Any]:
    """The entries but those of a workload that has another key today, as one query has whose causal
    mask hides nothing, where there is one of that key, too."""
    subjects = [_subject(e) for e in entries]
    own = {s for s, e in zip(subjects, entries, strict=True) if s and s[0] == e["workload"]}
    return [
        e
        for s, e in zip(subjects, entries, strict=True)
        if s is None or s[0] == e["workload"] or s not in own
    ]


def _subject(entry: Any) -> tuple[str, str] | None:
    """The key of its workload, and where and how it was measured; None of what is no entry."""
    try:
        workload = Workload.from_key(entry["workload"])
        return workload.key, json.dumps([entry["gpu"], entry["method"]])
    except (InvalidConfig, LookupError, TypeError):
        return None
