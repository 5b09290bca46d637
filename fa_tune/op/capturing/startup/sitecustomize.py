"""What Python runs first in a program that `fa-tune capture` starts: a folder on its path has this
alone.  The program's own module of this name follows."""

import importlib
import os
import sys

_folder = os.environ.get("FA_TUNE_CAPTURE")
sys.path[:] = [p for p in sys.path if p != os.path.dirname(__file__)]


def _begin(_torch: object) -> None:
    from pathlib import Path

    try:
        from fa_tune.op.capturing.session import Child
        from fa_tune.store.capture.parts import Settings

        Child(Settings.of(Path(str(_folder))))
    except Exception as error:  # the program goes on without
        print(f"fa-tune capture: this process is not captured: {error}", file=sys.stderr)


if _folder:
    try:
        from fa_tune.core.after_import import AfterImport
    except ImportError:  # of another Python, without fa-tune
        pass
    else:
        AfterImport({"torch": _begin}).install()

_own = sys.modules.pop("sitecustomize")
try:
    importlib.import_module("sitecustomize")  # the next one on the path
except ImportError as _error:
    if _error.name != "sitecustomize":
        raise
    sys.modules["sitecustomize"] = _own
