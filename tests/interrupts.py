"""Children that can be interrupted, whoever started the tests.

A shell starts `./check &` with SIGINT ignored, and what is ignored stays so in every child.
"""

import signal
import subprocess
from collections.abc import Sequence
from typing import Any


def interruptible(command: Sequence[str], **settings: Any) -> subprocess.Popen[str]:
    """`Popen` with text pipes, of a child that SIGINT reaches."""

    def heed() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    return subprocess.Popen(command, text=True, preexec_fn=heed, **settings)
