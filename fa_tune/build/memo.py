"""Facts that take tens of milliseconds to find, kept on disk between processes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fa_tune.core.files import replace_file
from fa_tune.core.paths import default_cache_dir

_FOLDER = "facts-v1"


def remembered(subject: str, find: Callable[[], str], cache_dir: Path | None = None) -> str:
    """What `find` gives for a subject, which names all that it depends on.  A file that cannot be
    read or written only costs time."""
    digest = hashlib.sha256(subject.encode()).hexdigest()
    path = (cache_dir or default_cache_dir()) / _FOLDER / f"{digest}.json"
    with suppress(OSError, ValueError):
        kept = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(kept, dict) and kept.get("subject") == subject and "fact" in kept:
            return str(kept["fact"])
    fact = find()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"subject": subject, "fact": fact})
        replace_file(path, text.encode(), synced=False)
    return fact
