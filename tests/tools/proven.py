"""What is known to pass with exactly the present sources, so that a run need not try all of it
again: builds of many kernels, and the tests of emulated kernels.

What the compiler makes depends on the code, the options, the instantiation and its version, and
on nothing else.  A test of many builds asks `due` which of them to compile: all, unless a note in
tests/data/proven.json says that they passed with these very inputs; then a few, which show that
notes and tables are honest.  `FA_TUNE_ALL_KERNELS=1 pytest -m all_kernels` compiles all, and
`python -m tests.tools.record_resources` does so after it has written the tables, and writes the
notes; `python -m tests.tools.record_emulated` writes that of emulated kernels.  A change of the
kernels makes a note worthless by itself; a comment does not.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from fa_tune import families
from fa_tune.build import nvrtc
from fa_tune.build.compile import OPTIONS, BuildRequest
from fa_tune.families.sources import code_sha256
from tests.project_files import ROOT, project_files

ALL = "FA_TUNE_ALL_KERNELS"  # set: everything is due
RECORD = "FA_TUNE_RECORD_PROVEN"  # set: notes are written
NOTES = Path(__file__).resolve().parent.parent / "data" / "proven.json"
EMULATED_KEY = "emulated"
# What tests of emulated kernels import beside kernels.
EMULATED = (
    *("fa_tune/families/", "fa_tune/operations/", "fa_tune/build/native/", "fa_tune/core/hooks.py"),
    *("fa_tune/core/workload.py", "tests/kernels/emulated/", "tests/gpu/cases.py"),
    "tests/gpu/score_hooks.py",
)


def due(
    name: str, requests: Sequence[BuildRequest], few: Sequence[BuildRequest]
) -> Sequence[BuildRequest]:
    """Which of the builds to compile: `few` where all of them have passed, else all, and a warning
    that they take their time until somebody notes it."""
    if is_noted(_key(name), identity(requests)):
        return few
    if not os.environ.get(ALL):
        warnings.warn(f"no note of {_key(name)}: all of it is compiled", stacklevel=2)
    return requests


def passed(name: str, requests: Sequence[BuildRequest]) -> None:
    """Called when what was due has passed; while recording, all of it was."""
    if os.environ.get(ALL) and os.environ.get(RECORD):
        note(_key(name), identity(requests))


def is_noted(key: str, identity: str) -> bool:
    """Whether a note says that all passed with these inputs, and nobody wants all the same."""
    return not os.environ.get(ALL) and _notes().get(key) == identity


def note(key: str, identity: str) -> None:
    """Write that all passed with these inputs."""
    notes = {**_notes(), key: identity}
    NOTES.write_text(json.dumps(notes, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def identity(requests: Sequence[BuildRequest]) -> str:
    """A hash of all that the compiler sees of these builds, comments left out."""
    digest = hashlib.sha256()
    sources = {r.variant.family: "" for r in requests}
    for name in sources:
        sources[name] = code_sha256(families.get(name).source_files())
    for request in requests:
        family = families.get(request.variant.family)
        config = family.parse(request.variant.config)
        inputs = [
            sources[family.name],
            code_sha256({"entry": family.entry_source(config, request.traits)}),
            request.arch,
            *OPTIONS,
            family.name_expression(config, request.traits),
        ]
        digest.update(json.dumps(inputs).encode())
    return digest.hexdigest()


def emulated_identity() -> str:
    """A hash of what the tests of emulated kernels see: the kernels without their comments, the
    code that plans and packs launches, and the tests themselves."""
    digest = hashlib.sha256()
    for family in families.all_families():
        digest.update(code_sha256(family.source_files()).encode())
    for path in project_files():
        if path.startswith(EMULATED):
            digest.update(path.encode() + (ROOT / path).read_bytes())
    return digest.hexdigest()


def _key(name: str) -> str:
    return f"{name}, NVRTC {nvrtc.version()}"


def _notes() -> dict[str, str]:
    found: dict[str, str] = json.loads(NOTES.read_text(encoding="utf-8")) if NOTES.exists() else {}
    return found
