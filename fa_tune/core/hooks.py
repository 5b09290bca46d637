"""Score hooks: functions of one's own that kernels put every score through.

A hook is CUDA text with a function

    __device__ float score_hook(float score, int batch, int head, int query, int key)

whose result takes the score's place, before any mask, or with a struct that gets four scores at
once: docs/use-in-torch.md has both forms, and what is there to call.  Beside the function may stand
its derivative by the score, `score_hook_derivative` of the same arguments, which backward passes
need.  Where the text is also given
as a function of torch tensors, a kernel can be judged by that; it has the arguments and result of
the function above.

A workload names a hook by its digest.  Texts are known to the process that registered them, and
those of files that the variable FA_TUNE_SCORE_HOOKS lists to every process that has it.
"""

from __future__ import annotations

import hashlib
import os
import re
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fa_tune.core.errors import InvalidConfig, StorageError
from fa_tune.core.files import read_bytes

DIGITS = 16
FILES = "FA_TUNE_SCORE_HOOKS"  # as PATH lists folders
_FUNCTION = re.compile(r"\bscore_hook\s*\(")
_DERIVATIVE = re.compile(r"\bscore_hook_derivative\s*\(")
_BY_FOUR = re.compile(r"\bstruct\s+score_hook\b")

# (score, batch, head, query, key), tensors that go together by broadcasting, to the new score.
Twin = Callable[..., Any]


@dataclass(frozen=True)
class ScoreHook:
    """A text, and the same function in torch, if there is one."""

    source: str
    twin: Twin | None = None

    @property
    def by_four(self) -> bool:
        """Whether it has the struct that takes four scores at once."""
        return _BY_FOUR.search(self.source) is not None

    @property
    def has_derivative(self) -> bool:
        """Whether it has the function's derivative."""
        return not self.by_four and _DERIVATIVE.search(self.source) is not None

    @property
    def digest(self) -> str:
        """What workloads call it by."""
        return hashlib.sha256(self.source.encode()).hexdigest()[:DIGITS]


_known: dict[str, ScoreHook] = {}


def is_digest(text: str) -> bool:
    """Whether a text looks like a hook's digest."""
    return re.fullmatch(rf"[0-9a-f]{{{DIGITS}}}", text) is not None


def register(source: str | Path, twin: Twin | None = None) -> str:
    """Make a hook known, by its text or its file, a `Path` or a line that ends in `.cu` or
    `.cuh`; returns its digest.  Raises InvalidConfig for a text without `score_hook` or in no
    UTF-8, StorageError for a file that cannot be read."""
    if isinstance(source, str) and source.endswith((".cu", ".cuh")) and "\n" not in source:
        source = Path(source)
    if isinstance(source, Path):
        try:
            source = read_bytes(source, "score hook").decode()
        except FileNotFoundError as error:
            raise StorageError(f"cannot read score hook {source}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise InvalidConfig(f"{source} is not UTF-8 text, and so no score hook") from error
    hook = ScoreHook(source, twin)
    if _FUNCTION.search(source) is None and not hook.by_four:
        raise InvalidConfig(
            "a score hook must define __device__ float score_hook(float score, int batch, "
            "int head, int query, int key), or a struct score_hook that takes four scores"
        )
    if twin is not None or hook.digest not in _known:
        _known[hook.digest] = hook
    return hook.digest


def register_for_children(file: Path) -> str:
    """The same of a file, for the processes that this one starts as well."""
    digest = register(file)
    listed = [*_listed(), str(file.resolve())]
    os.environ[FILES] = os.pathsep.join(dict.fromkeys(listed))
    return digest


def hook_of(digest: object) -> ScoreHook:
    """The hook of a digest; raises InvalidConfig for one that nobody registered here, and for what
    is none, such as the hook's text."""
    if is_registered(digest):
        return _known[str(digest)]
    if not isinstance(digest, str) or not is_digest(digest):
        raise InvalidConfig(
            "score_hook must be what fa_tune.core.hooks.register() returned for the hook, not "
            f"{reprlib.repr(digest)}"
        )
    for file in map(Path, _listed()):
        register(file)
    if not is_registered(digest):
        raise InvalidConfig(
            f"score hook {digest} is not known to this process: register its text first, or name "
            f"its file in {FILES}"
        )
    return _known[digest]


def is_registered(digest: object) -> bool:
    """Whether this process has registered the hook."""
    return isinstance(digest, str) and digest in _known


def _listed() -> list[str]:
    return [name for name in os.environ.get(FILES, "").split(os.pathsep) if name]


def twin_of(digest: object) -> Twin:
    """The torch function of a hook; raises InvalidConfig where there is none."""
    twin = hook_of(digest).twin
    if twin is None:
        raise InvalidConfig(f"score hook {digest} was registered without its torch function")
    return twin
