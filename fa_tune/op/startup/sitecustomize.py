"""What a Python process does first if this folder is on its path, where `fa-tune capture` and
`fa-tune prove` put it for all processes of a program that knows nothing of it.

FA_TUNE_CAPTURE is a folder with settings: from the import of torch on, attention is captured as
they say.  FA_TUNE_PROVE is one in which each process that uses CUDA says what came of calling
FA_TUNE_PROVE_CALLS, a module:function, empty for nothing: torch's attention becomes ours.
"""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType

_CAPTURE = os.environ.get("FA_TUNE_CAPTURE")
_PROVE = os.environ.get("FA_TUNE_PROVE")


def _after_torch(torch: ModuleType) -> None:
    if _CAPTURE:
        _capture(_CAPTURE)
    if _PROVE:  # when CUDA is used: a program may choose its GPU after it has imported torch
        torch.cuda._lazy_call(_begin)


def _capture(folder: str) -> None:
    from pathlib import Path

    try:
        from fa_tune.op.capturing.session import Child
        from fa_tune.store.capture.parts import Settings

        Child(Settings.of(Path(folder)))
    except Exception as error:  # the program goes on without
        print(f"fa-tune capture: this process is not captured: {error}", file=sys.stderr)


def _begin() -> None:
    module, _, function = os.environ["FA_TUNE_PROVE_CALLS"].partition(":")
    said = ""
    try:
        if module:
            getattr(importlib.import_module(module), function)()
    except Exception as error:  # the program goes on without
        said = f"{type(error).__name__}: {error}"
    try:
        with open(os.path.join(str(_PROVE), str(os.getpid())), "w", encoding="utf-8") as file:
            file.write(said)
    except OSError:
        pass


def _run_others() -> None:
    """The module of this name that stands behind on the path."""
    own = sys.modules.pop(__name__)
    sys.path[:] = [entry for entry in sys.path if entry != os.path.dirname(__file__)]
    try:
        importlib.import_module(__name__)
    except ImportError as error:
        if error.name != __name__:
            raise
        sys.modules[__name__] = own


if _CAPTURE or _PROVE:
    try:
        from fa_tune.core.after_import import AfterImport
    except ImportError:  # of another Python, without fa-tune
        pass
    else:
        AfterImport({"torch": _after_torch}).install()
_run_others()
