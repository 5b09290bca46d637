"""Run all tests of emulated kernels, which takes some ten minutes, and note that they passed:
`python -m tests.tools.record_emulated`."""

from __future__ import annotations

import subprocess
import sys

from tests.project_files import ROOT
from tests.tools import proven


def main() -> int:
    """pytest's status."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "tests/kernels/emulated"]
    identity = proven.emulated_identity()
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    if status == 0:
        proven.note(proven.EMULATED_KEY, identity)
    return status


if __name__ == "__main__":
    sys.exit(main())
