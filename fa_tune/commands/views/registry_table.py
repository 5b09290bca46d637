"""Registry entries as people and scripts see them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from fa_tune.commands.shared.documents import Memory, memory, write_document
from fa_tune.commands.shared.output import say, tell
from fa_tune.commands.views.registry_prose import entry_prose
from fa_tune.core import devices, units
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import BARE_READ, reference_name, reference_subject
from fa_tune.core.stats import Ratio
from fa_tune.core.workload import Workload, labels
from fa_tune.libraries import LABELS
from fa_tune.report.fitted import Legend, fitted
from fa_tune.report.formats import text_table
from fa_tune.report.wrap import terminal_width
from fa_tune.search.data_dependence import worst
from fa_tune.store.registry.lookup import EntryMatch, Target, find_match
from fa_tune.store.registry.schema import Entry, Registry, entry_text

_REFERENCES = tuple(name for name in LABELS if name != BARE_READ)
# The heading of a column in full, and fitted to a terminal.
_FITTED = {
    "workload": "workload",
    "median": "time",
    "TFLOP/s": "TFLOP/s",
    "GB/s": "GB/s",
    "% of peak": "% peak",
    "x default": "default",
    **{f"x {LABELS[name]}": LABELS[name] for name in _REFERENCES},
    "tied": "tied",
    "n": "n",
}
_SPARE = ("n", "tied", "TFLOP/s", "% peak", *(LABELS[name] for name in reversed(_REFERENCES)))
_KEY = (
    "default and libraries: its speed over theirs; tied: how many configs cannot be told from the "
    "fastest"
)
_ONLY_IF_KNOWN = {
    *("GB/s", "% of peak", "x default at worst"),
    *(f"x {LABELS[name]}" for name in _REFERENCES[2:]),
}
_LEFT = {"x default at worst", "GPU", "workload", "method", "family", "config", "from"}


@dataclass(frozen=True, kw_only=True)
class Best:
    """`fa-tune registry best --json`"""

    schema: Literal["fa-tune-best-1"]
    family: str
    config: str
    workload: Workload
    exact: bool
    distance: float
    explanation: str
    warnings: tuple[str, ...]
    memory: Annotated[Memory | None, "Of the entry's workload and time."]
    entry: Entry


def show_entries(entries: Sequence[Entry], *, wide: bool) -> None:
    """Each entry on standard output, in a table and in words; `wide`: every column, with configs
    in full."""
    if wide:
        rows_in_full = [_cells(entry) for entry in entries]
        known = {name for row in rows_in_full for name in row if row[name]}
        shown = [n for n in rows_in_full[0] if n in known or n not in _ONLY_IF_KNOWN]
        say(text_table(shown, [[row[n] for n in shown] for row in rows_in_full], _LEFT))
        for entry in entries:
            say(entry_prose(entry, workload_text(entry.workload)))
            say()
        return
    width, legend = terminal_width(), Legend()
    of_method: dict[str, list[Entry]] = {}
    for entry in entries:
        of_method.setdefault(f"{entry.gpu.name}; {entry.method}", []).append(entry)
    for title, members in of_method.items():
        rows = []
        for entry in members:
            cells = _cells(entry) | {"x default": _speed(entry.ratio_to_default)}
            rows.append([legend.number(entry.chosen.key), *(cells[name] for name in _FITTED)])
        headings = ["", *_FITTED.values()]
        tell(title)
        say("\n".join(fitted(headings, rows, width, left=headings[:2], spare=_SPARE)))
        say()
    texts = []
    for entry in entries:
        named = [v.key for v in (entry.chosen, *entry.tie_set, entry.default) if v is not None]
        text = entry_prose(entry, workload_text(entry.workload))
        texts.append(legend.numbered(text, list(dict.fromkeys(named))))
    tell(_KEY)
    say("\n".join(legend.lines(width)))
    for text in texts:
        say()
        tell(text)
    say()


def _cells(entry: Entry) -> dict[str, str]:
    """The cell of every column, by its heading in full; what is not known is empty."""
    half = ""
    if entry.interval_s is not None:
        low, high = entry.interval_s
        half = f"±{50 * (high - low) / entry.median_s:.2f} %"
    default, whose = entry.default, ""
    if default is not None and default.family != entry.chosen.family:
        whose = f" ({default.family})"
    recorded = entry.provenance.recorded_at[:10]
    ratios = entry.ratio_to_references.items()
    attention = [ratio for key, ratio in ratios if reference_name(key) != BARE_READ]
    hardest = worst(entry.on_inputs)
    at_worst = f"{_speed(hardest.to_default)} ({hardest.inputs})" if hardest is not None else ""
    rate = entry.memory_rate
    share = rate.of_peak if rate is not None else None
    return {
        "GPU": entry.gpu.name,
        "workload": workload_text(entry.workload),
        "method": entry.method,
        "family": entry.chosen.family,
        "config": entry.chosen.config,
        "median": units.aligned_seconds(entry.median_s),
        "95 %": half,
        "n": str(entry.n),
        "TFLOP/s": f"{entry.tflops:.0f}",
        "GB/s": "" if rate is None else f"{rate.bytes_per_s / 1e9:.0f}",
        "% of peak": "" if share is None else f"{100 * share:.0f}",
        "x default": _speed(entry.ratio_to_default) + whose,
        **{f"x {LABELS[name]}": _speed(_reference(entry, name)) for name in _REFERENCES},
        "x best": _speed(max(attention, key=lambda ratio: ratio.value, default=None)),
        "tied": str(max(len(entry.tie_set) - 1, 0)),
        "x default at worst": at_worst,
        "from": f"{recorded} {'replay' if entry.source == 'replay' else 'measured'}",
    }


def _reference(entry: Entry, name: str) -> Ratio | None:
    """The ratio to a reference, whether it is kept by subject, key or label."""
    for key in (reference_subject(name), name, LABELS[name]):
        if key in entry.ratio_to_references:
            return entry.ratio_to_references[key]
    return None


def _speed(ratio: Ratio | None) -> str:
    """Time over time as a speed: above 1 the chosen one is faster."""
    return "" if ratio is None else f"{1.0 / ratio.value:.2f}"


def workload_text(w: Workload) -> str:
    """`FP16 s4096 d128 b16 h16 causal`."""
    seq_len = str(w.seq_len_q) + ("" if w.seq_len_kv == w.seq_len_q else f"x{w.seq_len_kv}")
    heads = str(w.heads) + ("" if w.kv_heads == w.heads else f"/{w.kv_heads}")
    mask = f" {w.mask}" if w.causal else ""
    sizes = f"{w.dtype.name} s{seq_len} d{w.d_head} b{w.batch} h{heads}{mask}"
    return " ".join((sizes, *labels(w, short=True)))


def target_of(
    registry: Registry, requested: str | None, workload: Workload, method: str | None
) -> Target:
    """The GPU to look up for: the one requested, this machine's, the only one in the registry, or
    the only one with an entry of the workload.  The driver is None where the model is not this
    machine's.  Raises InvalidConfig where several have one, or none of several."""
    device = devices.find_device()
    if device is not None and requested in (None, device.name):
        return Target(
            device.name, method=method, driver=device.driver, multiprocessors=device.multiprocessors
        )
    if requested is not None:
        return Target(requested, method=method)
    held = sorted({entry.gpu.name for entry in registry.entries})
    if len(held) == 1:
        return Target(held[0], method=method)
    found = {name: find_match(registry, Target(name, method=method), workload) for name in held}
    exact = [name for name, match in found.items() if isinstance(match, EntryMatch) and match.exact]
    if len(exact) == 1:
        return Target(exact[0], method=method)
    raise InvalidConfig(
        "this machine has no GPU and the registry knows several; name one with --gpu: "
        + ", ".join(exact or held)
    )


def write_best(match: EntryMatch, requested: Workload) -> None:
    """What a script needs to run the config, and the whole entry it comes from."""
    write_document(
        *(Best, match, match.chosen),
        workload=requested,
        memory=memory(match.entry.memory_rate),
        entry=json.loads(entry_text(match.entry)),
    )
