"""Compilations that took too long are remembered: waiting for them again would gain nothing.

What the compiler refused is in the artifact store.  A timeout is no property of the kernel, so
it is in the journal, and holds for the same limit only: with another one it is tried again.
"""

from __future__ import annotations

from collections.abc import Sequence

from fa_tune.build import nvrtc
from fa_tune.build.compile import (
    BuildRequest,
    BuildResult,
    kernel_source_identity,
)
from fa_tune.build.pool import ended_under
from fa_tune.core.model import Outcome
from fa_tune.store.journal import BuildFailureRecord, Fingerprint, Journal


def known_timeout(
    request: BuildRequest, journal: Journal, limit_s: float, seen: dict[str, Fingerprint]
) -> BuildResult | None:
    """The result of a request that took too long before, under this limit; None if it did not.
    `seen` holds fingerprints between calls."""
    mark = _mark(request, seen)
    found = journal.find_build_failure(mark.digest, request.variant.key, request.traits)
    if found is None or not ended_under(found.reason, limit_s):
        return None
    return BuildResult(request, found.outcome, None, found.reason, True)


def remember_timeouts(results: Sequence[BuildResult], journal: Journal) -> None:
    """Note those of the results that took too long now."""
    seen: dict[str, Fingerprint] = {}
    for result in results:
        if result.outcome is Outcome.TIMED_OUT and not result.cached:
            request = result.request
            journal.append(
                BuildFailureRecord(
                    _mark(request, seen),
                    request.variant.key,
                    request.traits,
                    result.outcome,
                    result.reason,
                )
            )


def _mark(request: BuildRequest, seen: dict[str, Fingerprint]) -> Fingerprint:
    key = f"{request.variant.family} {request.arch}"
    if key not in seen:
        sources = kernel_source_identity(request.variant.family)
        seen[key] = Fingerprint(sources, nvrtc.version(), request.arch).for_build()
    return seen[key]
