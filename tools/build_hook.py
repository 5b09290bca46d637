"""Compiles the C++ core and the torch operator into the wheel, which then is for this platform.

Without a compiler, or a torch of 2.10 or later for the operator, the wheel lacks them; they are
compiled at first use, as from a checkout.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LEAST_TORCH = (2, 10)  # of the stable ABI


def installed_torch() -> Path | None:
    """The folder of a torch that is new enough, also where the build is isolated from it."""
    for folder in [*sys.path, sysconfig.get_path("platlib")]:
        version = Path(folder, "torch", "version.py")
        if version.is_file():
            found = re.search(r"__version__ = '(\d+)\.(\d+)", version.read_text(encoding="utf-8"))
            if found and (int(found[1]), int(found[2])) >= LEAST_TORCH:
                return version.parent
    return None


class NativeHook(BuildHookInterface):  # type: ignore[type-arg,misc,unused-ignore]
    """hatchling's hook for the target `wheel`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the libraries that can be compiled here; an editable installation has none."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        from fa_tune.build.native import library
        from fa_tune.core.errors import FaTuneError

        try:
            made, torch = [library.core_library()], installed_torch()
            if torch is None:
                self.app.display_warning("no torch >= 2.10 here: the wheel has no torch operator")
            else:
                made.append(library.torch_library(torch))
        except FaTuneError as error:
            self.app.display_warning(f"a wheel without ready-made C++ libraries: {error}")
            return
        build_data["force_include"] |= {str(path): f"fa_tune/_native/{path.name}" for path in made}
        build_data["pure_python"] = False
        platform = re.sub(r"\W", "_", sysconfig.get_platform())
        build_data["tag"] = f"py3-none-{platform}"  # called by ctypes: any Python
