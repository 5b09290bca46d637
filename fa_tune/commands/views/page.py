"""A search as what a page is made from."""

from __future__ import annotations

from fa_tune.commands.views.search import all_rows
from fa_tune.core.model import Outcome
from fa_tune.report.page.source import Source
from fa_tune.tune.results import SearchResult


def page_source(result: SearchResult) -> Source:
    """The rows of all workloads, the choices and what was measured beside them."""
    device = result.device
    facts = {
        "recorded_at": result.source,  # which says when
        "inputs": ", ".join(dict.fromkeys(found.inputs for found in result.results)),
        "gpu": device.name if device else "",
        "driver": device.driver if device else "",
        "method": result.method,
        "registry": str(result.registry) if result.registry else "",
    }
    measured = [a.measurement for a in result.attempts if a.outcome is Outcome.OK]
    return Source(
        name="fa-tune search",
        rows=all_rows(result),
        chosen={
            found.workload.key: found.decision.chosen.subject
            for found in result.results
            if found.decision is not None
        },
        on_inputs={found.workload.key: found.on_inputs for found in result.results},
        profiled=[m for m in measured if m is not None],
        facts={name: value for name, value in facts.items() if value},
    )
