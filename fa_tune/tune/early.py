"""What takes seconds to load is begun before the command itself is loaded: workers import torch,
and the first one below ncu, while this process reads its own modules and the command line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from fa_tune.core.errors import ToolMissing
from fa_tune.core.jobs import WARM_UP_MODULES
from fa_tune.profile.ncu.profiler import EARLY, NcuProfiler
from fa_tune.workers.prefork import preforked_workers, warm_up

# Other GPUs than one of this machine's have workers of their own.
ELSEWHERE = ("--devices", "--ray")
# With any of these it is not ncu that measures, or not as it does by default.
NOT_AS_USUAL = ("--profiler", "--metrics", "--export", "--clock-control", "--ncu")


@contextlib.contextmanager
def begun_early(words: Sequence[str]) -> Iterator[None]:
    """Within it, workers for the command line are loading.  What it turns out not to need is ended
    with it."""
    options = {word.partition("=")[0] for word in words}
    if options.intersection(ELSEWHERE):
        yield
        return
    # One worker verifies the kernels of a profile, or measures those of doctor by events, and
    # another is below ncu.
    by_ncu = words[0] in ("profile", "doctor") and not options.intersection(NOT_AS_USUAL)
    with preforked_workers(WARM_UP_MODULES, only_one=by_ncu):
        warm_up()
        if by_ncu:
            with contextlib.suppress(ToolMissing):  # the command will say what is missing
                profiler = NcuProfiler()
                profiler.warm_up()
                EARLY.set(profiler)
        try:
            yield
        finally:
            EARLY.set(None)
