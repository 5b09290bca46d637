"""What a Python process does first if this folder is on its path: as soon as it uses CUDA,
torch's attention becomes ours.

`fa-tune prove` puts the folder there, for all processes of a program that knows nothing of it.
FA_TUNE_PROVE is a folder, in which each process says what came of it; FA_TUNE_PROVE_CALLS, as
module:function, what is called, empty for nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

_HERE = Path(__file__).parent


def _after_torch(torch: ModuleType) -> None:
    """Not before CUDA is used: a program may choose its GPU after it has imported torch."""
    torch.cuda._lazy_call(_begin)


def _begin() -> None:
    module, _, function = os.environ["FA_TUNE_PROVE_CALLS"].partition(":")
    said = ""
    try:
        if module:
            getattr(importlib.import_module(module), function)()
    except Exception as error:  # the program goes on without
        said = f"{type(error).__name__}: {error}"
    with contextlib.suppress(OSError):
        Path(os.environ["FA_TUNE_PROVE"], str(os.getpid())).write_text(said, encoding="utf-8")


def _run_others() -> None:
    """The module of this name that stands behind on the path."""
    own = sys.modules.pop(__name__)
    sys.path[:] = [entry for entry in sys.path if Path(entry) != _HERE]
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module(__name__)
    sys.modules.setdefault(__name__, own)


if "FA_TUNE_PROVE" in os.environ:
    with contextlib.suppress(ImportError):  # this Python may have no fa-tune
        from fa_tune.core.after_import import AfterImport

        AfterImport({"torch": _after_torch}).install()
_run_others()
