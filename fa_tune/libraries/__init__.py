"""What fa-tune is measured against: each library is a file here with a `Library`, found by itself.

Importing this imports no torch; their calls do.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Mapping, Sequence

from fa_tune.core.errors import InvalidConfig, ToolMissing
from fa_tune.core.model import is_users, reference_name, user_place
from fa_tune.core.workload import FORWARD
from fa_tune.libraries import user
from fa_tune.libraries.base import Library


def _found() -> list[Library]:
    modules = (
        importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)
    )
    libraries = [m.LIBRARY for m in modules if hasattr(m, "LIBRARY")]
    return sorted(libraries, key=lambda library: (library.place, library.name))


ALL: dict[str, Library] = {library.name: library for library in _found()}
LABELS: Mapping[str, str] = {library.name: library.label for library in ALL.values()}
COMPILING_S = 900.0
_BACKWARD = re.compile(r"bwd|bprop|backward", re.IGNORECASE)


def get(name: str) -> Library:
    """The library of that name; raises InvalidConfig listing the known ones."""
    try:
        return ALL[name]
    except KeyError:
        known = ", ".join(ALL)
        raise InvalidConfig(f"unknown reference {name!r}; known: {known}") from None


def label_of(reference: str) -> str:
    """What tables call a library or a user's kernel, by its subject or name; any other text as it
    is."""
    name = user_place(reference_name(reference))
    return LABELS.get(name, name)


def installed(name: str) -> str:
    """What a library's kernels come from here: `torch 2.11.0, cudnn 9.13.0.50`; what is not known
    is left out.  A user's own (`user:…`): its files' hash or its package's version."""
    if is_users(name):
        return user.locate(user_place(name)).identity
    versions = {one.name: one.installed for one in (ALL[name].packages if name in ALL else ())}
    return ", ".join(f"{package} {version}" for package, version in versions.items() if version)


def is_installed(name: str) -> bool:
    """Whether the packages of a library are there."""
    try:
        get(name).require()
    except ToolMissing:
        return False
    return True


def first_call_s(subject: str) -> float | None:
    """The longest that the first call of a subject may take; None: as long as any other."""
    library = ALL.get(reference_name(subject))
    return COMPILING_S if library is not None and library.compiles else None


def is_nameless(name: str) -> bool:
    """Whether a runner's kernels may have any name: a user's, or those of another library."""
    return is_users(name) or (name in ALL and ALL[name].kernel_names is None)


def serving() -> tuple[str, ...]:
    """The libraries that programs may be led to here: installed, with a function for their
    calls."""
    return tuple(n for n, one in ALL.items() if one.attends is not None and is_installed(n))


def require(names: Sequence[str]) -> None:
    """Raise ToolMissing, naming the first library of which a package is not installed, and
    InvalidConfig for a user's kernel that is not there."""
    for name in names:
        if is_users(name):
            user.locate(user_place(name))
        else:
            get(name).require()


def label_of_kernel(kernel_name: str, operation: str = FORWARD) -> str | None:
    """The name of the library whose kernel of an operation has that demangled, mangled or plain
    name; None for any other kernel: ours, and everything else that a program launches."""
    is_forward = operation == FORWARD
    if is_forward and _BACKWARD.search(kernel_name):
        return None
    for one in reversed(ALL.values()):  # FlashAttention 2's names are the least special
        names = one.kernel_names if is_forward else one.backward_names
        if names is not None and names.search(kernel_name):
            return one.name
    return None


def blocks_of_kernel(kernel_name: str) -> tuple[int, int] | None:
    """(B_r, B_c) where the name shows them: in full names of FlashAttention 2 and 3, and in
    cuDNN's generated ones.  None otherwise, and for the step that combines split results, which
    works on no tile."""
    name = label_of_kernel(kernel_name)
    if name is None or "combine" in kernel_name.lower():
        return None
    for pattern in ALL[name].tiles:
        if tile := pattern.search(kernel_name):
            return int(tile["rows"]), int(tile["keys"] or tile["rows"])
    return None
