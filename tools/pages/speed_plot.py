"""The README's picture: the page's figure of rates, of the chosen sm90 configs and the libraries
that were recorded beside them.

A library's bar is our rate over the ratio paired within rounds, so that the heights compare as
the recordings do.
"""

from __future__ import annotations

from pathlib import Path

from fa_tune.report.page import charts, picture
from fa_tune.report.page.figures import Records, length_of
from recorded_files import LABELS
from recorded_grid import AGAINST, lines, rate

D_HEAD = 128
TITLE = f"Forward attention, d_head {D_HEAD}: TFLOP/s by sequence length"


def records(folder: Path) -> Records:
    """What the figure draws: one record for each kernel and workload."""
    out: Records = []
    for (d_head, causal, dtype), group in lines(folder).items():
        for one in group if d_head == D_HEAD else ():
            ours = rate(one.workload, one.measured[one.chosen])
            times = {name: one.times(name) for name in AGAINST["sm90"]}
            rates = {"fa-tune": ours} | {LABELS[name]: ours / times[name] for name in times}
            out += [
                {
                    "kind": f"{dtype}, {'causal' if causal else 'full'}",
                    "workload": str(one.workload),
                    "length": length_of(one.workload),
                    "kernel": kernel,
                    "tflops": tflops,
                    "times": min(times.values()) if kernel == "fa-tune" else None,
                }
                for kernel, tflops in rates.items()
            ]
    return out


def svg(folder: Path) -> str:
    """The picture; deterministic, so that it can be compared with the one that is kept."""
    return picture.svg(charts.rate_panels(records(folder), TITLE))
