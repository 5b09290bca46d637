"""One journal line: a record as JSON text and back.

The reader is written out by hand because `--resume` reads ten thousand lines before it may
do anything.  It still checks every type: a line that does not fit raises ValueError, and a
missing value never becomes a zero.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NoReturn

from fa_tune.core.model import Attempt, CaseError, Measurement, Outcome, Quantity, Verdict
from fa_tune.store import measurement_fields
from fa_tune.store.fingerprint import Fingerprint

VERSION = 1
# The end of a line that has a checksum: of the bytes before it, brace included.
_CHECKSUM = re.compile(rb',"crc32":"([0-9a-f]{8})"\}\s*\Z')
_COMMON = {"kind", "fp", "at", "subject"}
_KEYS = {
    "attempt": _COMMON | {"workload", "outcome", "reason", "measurement"},
    "verdict": _COMMON | {"verdict"},
    "build_failure": _COMMON | {"traits", "outcome", "reason"},
}
HEADER = b'{"kind":"fa-tune journal","version":1}\n'


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class AttemptRecord:
    """A finished attempt at measuring; `recorded_at` is UTC, ISO 8601."""

    fingerprint: Fingerprint
    attempt: Attempt
    recorded_at: str = field(default_factory=_now)


@dataclass(frozen=True)
class VerdictRecord:
    """A finished verification of one subject, on all its cases."""

    fingerprint: Fingerprint
    subject: str
    verdict: Verdict
    recorded_at: str = field(default_factory=_now)


@dataclass(frozen=True)
class BuildFailureRecord:
    """A variant that did not compile, so that a resumed search need not try again.

    `outcome` is COMPILE_FAILED, TIMED_OUT or CRASHED.
    """

    fingerprint: Fingerprint
    subject: str
    traits: str
    outcome: Outcome
    reason: str
    recorded_at: str = field(default_factory=_now)


Record = AttemptRecord | VerdictRecord | BuildFailureRecord


def encode_fingerprint(fingerprint: Fingerprint) -> bytes:
    """The line that later lines refer to by `digest`."""
    return _line({"kind": "fingerprint", "digest": fingerprint.digest} | _plain(fingerprint))


def encode_record(record: Record) -> bytes:
    """The record's line, newline included.

    Raises ValueError or TypeError for a record that could not be read back (a time that is
    not finite, a value of a foreign type): such a line must not reach the file.
    """
    common: dict[str, Any] = {"fp": record.fingerprint.digest, "at": record.recorded_at}
    body: dict[str, Any]
    match record:
        case AttemptRecord(attempt=attempt):
            body = {"kind": "attempt"} | common
            body |= {
                "subject": attempt.subject,
                "workload": attempt.workload,
                "outcome": attempt.outcome.value,
                "reason": attempt.reason,
                "measurement": _measurement_fields(attempt),
            }
        case VerdictRecord():
            body = {"kind": "verdict"} | common
            body |= {"subject": record.subject, "verdict": _verdict_fields(record.verdict)}
        case BuildFailureRecord():
            body = {"kind": "build_failure"} | common
            body |= {
                "subject": record.subject,
                "traits": record.traits,
                "outcome": record.outcome.value,
                "reason": record.reason,
            }
    line = _line(body)
    decode_body(parse_line(line), {record.fingerprint.digest: record.fingerprint})
    return line


def parse_lines(lines: Sequence[bytes]) -> list[dict[str, Any]] | None:
    """The JSON objects of many lines in one go, which takes half the time of one by one.

    None if they are not exactly one object per line: `parse_line` then finds the bad line.
    """
    if not all(line.startswith(b'{"kind":') for line in lines):
        return None
    try:
        bodies: list[dict[str, Any]] = _decode(
            "[" + b",".join(map(_without_checksum, lines)).decode() + "]"
        )
    except (ValueError, RecursionError):
        return None
    return bodies if len(bodies) == len(lines) else None


def parse_line(line: bytes) -> dict[str, Any]:
    """The JSON object of one line; raises ValueError with the reason."""
    line = _without_checksum(line)
    try:
        body = _decode(line.decode())
    except json.JSONDecodeError as e:
        raise ValueError(f"not JSON: {e.msg} at column {e.colno}") from None
    except UnicodeDecodeError as e:
        raise ValueError(f"not UTF-8 at byte {e.start}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if type(body) is not dict:
        raise ValueError("not a JSON object")
    return body


def _without_checksum(line: bytes) -> bytes:
    """A line as it was before its checksum was added; raises ValueError if it was changed since.
    Lines of older journals have none."""
    found = _CHECKSUM.search(line)
    if found is None:
        return line
    body = line[: found.start()] + b"}"
    if zlib.crc32(body) != int(found[1], 16):
        raise ValueError("its checksum does not fit: the line was changed")
    return body


def decode_body(body: Mapping[str, Any], known: Mapping[str, Fingerprint]) -> Record | Fingerprint:
    """The record or fingerprint of one line's object; `known` are the fingerprints of earlier
    lines by digest.  Raises ValueError with the reason for anything that does not fit."""
    try:
        known_keys = _KEYS.get(body["kind"], body.keys())
        if (unknown := sorted(body.keys() - known_keys)) and known_keys <= body.keys():
            raise ValueError(f"unknown field {_shown(unknown[0])}")
        match body["kind"]:
            case "attempt":
                return _attempt(body, known)
            case "verdict":
                return _verdict(body, known)
            case "build_failure":
                return BuildFailureRecord(
                    _fingerprint_of(body, known),
                    _text(body["subject"]),
                    _text(body["traits"]),
                    Outcome(body["outcome"]),
                    _text(body["reason"]),
                    _text(body["at"]),
                )
            case "fingerprint":
                return _fingerprint(body)
            case kind:
                raise ValueError(f"unknown kind {_shown(kind)}")
    except KeyError as e:
        raise ValueError(f"field {e.args[0]!r} is missing") from None
    except (TypeError, AttributeError):
        raise ValueError("a field has a value of the wrong type") from None
    except OverflowError:
        raise ValueError("a number is out of range") from None


def _line(body: Mapping[str, Any]) -> bytes:
    text = json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
    return text[:-1] + b',"crc32":"%08x"}\n' % zlib.crc32(text)


def _plain(fingerprint: Fingerprint) -> dict[str, Any]:
    return {f.name: getattr(fingerprint, f.name) for f in dataclasses.fields(Fingerprint)}


def _measurement_fields(attempt: Attempt) -> dict[str, Any] | None:
    """The fields that the attempt's subject and workload do not already say."""
    m = attempt.measurement
    if m is None:
        return None
    if (m.subject, m.workload) != (attempt.subject, attempt.workload):
        raise ValueError(f"measurement of {m.subject} in an attempt at {attempt.subject}")
    return {
        "method": m.method,
        "samples_s": m.samples_s,
        "counters": {k: [q.value, q.unit] for k, q in m.counters.items()},
        **measurement_fields.encode(m),
    }


def _verdict_fields(verdict: Verdict) -> dict[str, Any]:
    """As declared, with figures that are not finite spelled out: a wrong result is often NaN."""
    fields = dataclasses.asdict(verdict)
    for case in fields["cases"]:
        for name, value in case.items():
            if isinstance(value, float) and not math.isfinite(value):
                case[name] = str(value)
    return fields


def _attempt(body: Mapping[str, Any], known: Mapping[str, Fingerprint]) -> AttemptRecord:
    subject, workload = _text(body["subject"]), _text(body["workload"])
    raw = body["measurement"]
    measurement = None
    if raw is not None:
        samples = _list(raw["samples_s"])
        counters = {}
        numbers = list(samples)
        for name, (value, unit) in raw["counters"].items():
            counters[name] = Quantity(value, unit)
            numbers.append(value)
            if type(unit) is not str:
                _text(unit)
        _check_numbers(numbers)
        more = measurement_fields.decode(raw)
        for text in more["conditions"].values():
            _text(text)
        method = _text(raw["method"])
        measurement = Measurement(subject, workload, method, tuple(samples), counters, **more)
    attempt = Attempt(
        subject, workload, Outcome(body["outcome"]), _text(body["reason"]), measurement
    )
    return AttemptRecord(_fingerprint_of(body, known), attempt, _text(body["at"]))


def _verdict(body: Mapping[str, Any], known: Mapping[str, Fingerprint]) -> VerdictRecord:
    raw = body["verdict"]
    cases = tuple(
        CaseError(
            _text(case["workload"]),
            _figure(case["max_abs_error"]),
            _figure(case["reference_max_abs_error"]),
            _figure(case["limit"]),
            _bool(case["ok"]),
            **{name: _optional_figure(case.get(name)) for name in _RMS_FIELDS},
            inputs=_text(case.get("inputs", "normal")),
        )
        for case in _list(raw["cases"])
    )
    verdict = Verdict(_bool(raw["correct"]), cases, _text(raw["reason"]))
    return VerdictRecord(
        _fingerprint_of(body, known), _text(body["subject"]), verdict, _text(body["at"])
    )


def _fingerprint(body: Mapping[str, Any]) -> Fingerprint:
    # A field that a later version added has its default; the stored digest is only the name
    # that the lines below refer to.
    _text(body["digest"])
    fields = {f.name for f in dataclasses.fields(Fingerprint)}
    given = {k: v for k, v in body.items() if k not in ("kind", "digest")}
    if unknown := sorted(given.keys() - fields):
        raise ValueError(f"unknown field {unknown[0]!r}")
    for name, value in given.items():
        if name == "metrics":
            given[name] = tuple(_text(v) for v in _list(value))
        elif name in ("runs", "after"):
            if type(value) is not int:
                raise ValueError(f"{name} is {value!r}, not a whole number")
        else:
            _text(value)
    for f in dataclasses.fields(Fingerprint):
        if f.default is dataclasses.MISSING:
            _text(given[f.name])  # a KeyError names the missing field
    return Fingerprint(**given)


def _fingerprint_of(body: Mapping[str, Any], known: Mapping[str, Fingerprint]) -> Fingerprint:
    digest = _text(body["fp"])
    if digest not in known:
        raise ValueError(f"fingerprint {digest} is not defined above")
    return known[digest]


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{_shown(value)} is not a text")
    return value


def _number(value: Any) -> float:
    _check_numbers([value])
    return float(value)


def _check_numbers(values: Sequence[Any]) -> None:
    # One pass over all of a line's numbers: this is most of the reading time.
    if not _NUMBER_TYPES.issuperset(map(type, values)):
        wrong = next(v for v in values if type(v) not in _NUMBER_TYPES)
        raise ValueError(f"{_shown(wrong)} is not a number")
    if not all(map(math.isfinite, values)):  # 1e999 reads as infinity
        raise ValueError("a number is out of range")


def _figure(value: Any) -> float:
    return float(value) if value in ("nan", "inf", "-inf") else _number(value)


def _optional_figure(value: Any) -> float | None:
    return None if value is None else _figure(value)


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{_shown(value)} is not true or false")
    return value


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise ValueError(f"{_shown(value)} is not a list")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON has")


_RMS_FIELDS = ("rms_error", "reference_rms_error", "rms_limit")  # not in earlier versions
_NUMBER_TYPES = frozenset((int, float))
_decode = json.JSONDecoder(parse_constant=_no_constant).decode
