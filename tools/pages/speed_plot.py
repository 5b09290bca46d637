"""The README's picture: the page's figure of rates, of the chosen sm90 configs and the libraries
that were recorded beside them.

A library's bar is our rate over the ratio paired within rounds, so that the heights compare as
the recordings do.
"""

from __future__ import annotations

from fa_tune.core.workload import Workload
from fa_tune.report.page import charts, picture
from fa_tune.report.page.figures import Records, length_of
from recorded import Recorded
from recorded_grid import LABELS, cells, lines, rate, ratio, shown

D_HEAD = 128
LIBRARIES = ("cudnn", "fa4")
TITLE = f"Forward attention, d_head {D_HEAD}: TFLOP/s by sequence length"


def records(data: Recorded) -> Records:
    """What the figure draws: one record for each kernel and workload."""
    return [
        record
        for (d_head, causal, dtype), workloads in lines(data).items()
        if d_head == D_HEAD
        for workload in workloads
        for record in _of(data, workload, f"{dtype}, {'causal' if causal else 'full'}")
    ]


def _of(data: Recorded, workload: Workload, kind: str) -> Records:
    measured, subject = cells(data)[workload], shown(data, workload, "sm90")
    libraries = [name for name in LIBRARIES if f"ref:{name}" in measured]
    if subject is None or not libraries:
        return []
    ours = rate(workload, measured[subject])
    times = {name: ratio(measured, f"ref:{name}", subject) for name in libraries}
    rates = {"fa-tune": ours} | {LABELS[name]: ours / times[name] for name in libraries}
    return [
        {
            "kind": kind,
            "workload": str(workload),
            "length": length_of(workload),
            "kernel": kernel,
            "config": "",
            "tflops": tflops,
            "times": min(times.values()) if kernel == "fa-tune" else None,
            "highest": max(rates.values()),
        }
        for kernel, tflops in rates.items()
    ]


def svg(data: Recorded) -> str:
    """The picture; deterministic, so that it can be compared with the one that is kept."""
    return picture.svg(charts.rate_panels(records(data), TITLE))
