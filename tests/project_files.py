"""The project's own files, as git sees them: tracked, and new ones that are not ignored."""

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@cache
def project_files() -> tuple[str, ...]:
    """Paths relative to ROOT, sorted; files deleted in the work tree are left out."""
    done = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return tuple(sorted(p for p in done.stdout.split("\0") if p and (ROOT / p).is_file()))
