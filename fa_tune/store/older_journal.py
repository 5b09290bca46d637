"""Reads journals of version 1: one JSON object a line.

    {"kind":"fa-tune journal","version":1}
    {"kind":"fingerprint","digest":"5d1c…","kernel_source_sha256":"…","gpu":"NVIDIA H200",…}
    {"kind":"attempt","fp":"5d1c…","subject":"sm80:(FP16, …","outcome":"ok","measurement":{…}}
    {"kind":"verdict","fp":"…",…}
    {"kind":"build_failure","fp":"…",…}

Lines may end in a checksum, `"crc32":"…"`, of the bytes before it.  A measurement holds `fields`
beside its samples; in the oldest lines these are texts among the conditions, some under another
name.  A last line that was cut short is left out; anything else that does not read is damage.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fa_tune.core import codec
from fa_tune.core.errors import JournalError
from fa_tune.core.files import read_bytes
from fa_tune.store.fingerprint import Fingerprint
from fa_tune.store.journal_records import AttemptRecord, BuildFailureRecord, Record, VerdictRecord

_MEND = "delete that line, or move the file away to start anew; nothing was changed"
_CHECKSUM = re.compile(rb',"crc32":"([0-9a-f]{8})"\}\s*\Z')
_OLDEST = {  # name among the conditions -> field, and whether it is JSON there
    **dict.fromkeys(("relative", "preference", "host_launch_s", "default_s"), True),
    **dict.fromkeys(("search", "replayed_from", "board"), False),
    "calibrated": True,
}
_RENAMED = {"board": "gpu_uuid", "calibrated": "scaled_by"}


def read(path: Path) -> tuple[list[Record], str]:
    """The records of a file in order, and a warning for a reader; raises JournalError with the line
    at fault, StorageError."""
    *lines, rest = read_bytes(path).split(b"\n")
    known: dict[str, Fingerprint] = {}
    records: list[Record] = []
    number = 0
    try:
        for number, line in enumerate(lines, 1):
            if number == 1:
                _check_header(line)
            elif line.strip():  # nothing is left where a damaged line was blanked out
                _add(line, known, records)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        what = f"field {error} is missing" if isinstance(error, KeyError) else error
        raise JournalError(f"{path}:{number}: {what}; {_MEND}") from None
    if not rest:
        return records, ""
    try:
        _add(rest, known, records) if lines else _check_header(rest)
    except (ValueError, TypeError, AttributeError, KeyError):
        return records, f"{path}: the last line was cut short ({len(rest)} bytes) and is ignored"
    return records, ""


def _check_header(line: bytes) -> None:
    try:
        header = codec.parse(line)
        is_one = (header["kind"], header["version"]) == ("fa-tune journal", 1)
    except (ValueError, KeyError, TypeError):
        is_one = False
    if not is_one:
        raise ValueError("not an fa-tune journal of version 1")


def _add(line: bytes, known: dict[str, Fingerprint], records: list[Record]) -> None:
    raw = codec.parse(_without_checksum(line))
    kind = raw.pop("kind")
    if kind == "fingerprint":
        digest = raw.pop("digest")
        known[digest] = codec.load(Fingerprint, raw)
        return
    digest = raw.pop("fp")
    if digest not in known:
        raise ValueError(f"fingerprint {digest} is not defined above")
    common = {"fingerprint": known[digest], "recorded_at": raw.pop("at")}
    if kind == "attempt":
        if (measured := raw["measurement"]) is not None:
            about = {"subject": raw["subject"], "workload": raw["workload"]}
            raw["measurement"] = about | _measurement(measured)
        records.append(codec.load(AttemptRecord, {**common, "attempt": raw}))
    elif kind == "verdict":
        records.append(codec.load(VerdictRecord, {**common, **raw}))
    elif kind == "build_failure":
        records.append(codec.load(BuildFailureRecord, {**common, **raw}))
    else:
        raise ValueError(f"unknown kind {kind!r}")


def _without_checksum(line: bytes) -> bytes:
    found = _CHECKSUM.search(line)
    if found is None:
        return line
    body = line[: found.start()] + b"}"
    if zlib.crc32(body) != int(found[1], 16):
        raise ValueError("its checksum does not fit: the line was changed")
    return body


def _measurement(raw: Mapping[str, Any]) -> dict[str, Any]:
    conditions = dict(raw["conditions"])
    fields = raw.get("fields")
    if fields is None:
        fields = {
            _RENAMED.get(name, name): codec.parse(text) if is_json else text
            for name, is_json in _OLDEST.items()
            if (text := conditions.pop(name, None)) is not None
        }
    return {
        "method": raw["method"],
        "samples_s": raw["samples_s"],
        "counters": {n: {"value": v, "unit": u} for n, (v, u) in raw["counters"].items()},
        "conditions": conditions,
        **fields,
    }
