"""A cache folder for a search that must begin from nothing but shares what no choice depends on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fa_tune.build.cache import ArtifactStore, default_cache_dir
from fa_tune.store.journal import Journal, VerdictRecord
from fa_tune.tune.session import JOURNAL


def make_private_cache(
    folder: Path, cache_dir: Path | None, verdicts: Sequence[VerdictRecord]
) -> None:
    """Make `folder` a cache with the compiled kernels of `cache_dir` (None: the user's) and a
    journal of its own that knows these verdicts alone."""
    shared = ArtifactStore(cache_dir or default_cache_dir()).path
    shared.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True)
    (folder / shared.name).symlink_to(shared, target_is_directory=True)
    journal = Journal(folder / JOURNAL)
    for verdict in verdicts:
        journal.append(verdict)
