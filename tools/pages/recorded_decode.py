"""Decoding by CUDA events, as Markdown: the choices beside a bare read and the libraries, lengths
on the device, and what the registry's rule loses between tuned lengths."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from fa_tune.core.model import Measurement
from fa_tune.core.reference_kernels import BARE_READ
from fa_tune.core.workload import Workload
from fa_tune.evaluate.between import losses_of
from fa_tune.evaluate.default_check import decided_again
from fa_tune.ops import flops
from fa_tune.store.recordings import load
from recorded import Recorded
from recorded_grid import LABELS, ratio
from recorded_tables import table

READ = f"ref:{BARE_READ}"
LIBRARIES = ("ref:fa2", "ref:cudnn")
KEYS = (1024, 8192, 32768, 131072)
BATCHES = (1, 4, 16, 64, 128)
Measured = Mapping[Workload, Mapping[str, Measurement]]


def section(data: Recorded) -> str:
    """All of it; a sentence where nothing was recorded."""
    if not _files(data.folder):
        return "Not recorded yet."
    return "\n\n".join(part for part in _parts(data) if part)


def _parts(data: Recorded) -> Iterable[str]:
    yield _conditions(data)
    groups: dict[tuple[int, int, int], list[Workload]] = {}
    for w in sorted(measured(data)):
        if not w.cached and w.seq_len_kv in KEYS and w.batch in BATCHES:
            groups.setdefault((w.heads, w.kv_heads, w.seq_len_q), []).append(w)
    yield (
        "TB/s of what has to be read and written, the share of a bare read's speed in percent, and "
        "how many times as fast as the faster library:"
    )
    for (heads, kv_heads, queries), workloads in groups.items():
        noun = "query" if queries == 1 else "queries"
        yield f"{heads} heads over {kv_heads}, {queries} {noun}, by batch and keys:"
        yield _grid(data, workloads)
    yield _on_device(data)
    yield _rule(data)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("decode_*_events.csv"))


def _conditions(data: Recorded) -> str:
    metas = [load(path).meta for path in _files(data.folder)]
    one = metas[0]
    assert len({(m.provenance.gpu, m.provenance.driver, m.inputs) for m in metas}) == 1
    dates = sorted({m.provenance.recorded_at[:10] for m in metas})
    libraries = dict.fromkeys(m.measured_by.libraries for m in metas if m.measured_by.libraries)
    return (
        f"By CUDA events, cold L2, d_head 128, BF16 ({one.inputs} inputs, {one.provenance.gpu}, "
        f"driver {one.provenance.driver}, CUDA {one.provenance.cuda}"
        f"{''.join(f', {told}' for told in libraries)}; recorded {' to '.join(dates)})."
    )


@cache
def measured(data: Recorded) -> Measured:
    """Measurements by workload and subject."""
    found: dict[Workload, dict[str, Measurement]] = {}
    for path in _files(data.folder):
        for attempt in load(path).attempts:
            if attempt.measurement is not None:
                workload = Workload.from_key(attempt.workload)
                found.setdefault(workload, {})[attempt.subject] = attempt.measurement
    return found


@cache
def choices(data: Recorded) -> Mapping[Workload, str]:
    """The subject that was chosen, by workload."""
    return {
        one.workload: one.decision.chosen.subject
        for path in _files(data.folder)
        for one in decided_again(load(path))
    }


def _grid(data: Recorded, workloads: Sequence[Workload]) -> str:
    rows = []
    by_size = {(w.batch, w.seq_len_kv): w for w in workloads}
    for batch in dict.fromkeys(w.batch for w in workloads):
        cells = [
            _cell(data, by_size[batch, keys]) if (batch, keys) in by_size else "" for keys in KEYS
        ]
        rows.append([str(batch), *cells])
    return table(["batch", *map(str, KEYS)], rows)


def _cell(data: Recorded, w: Workload) -> str:
    found, chosen = measured(data)[w], choices(data)[w]
    parts = [f"{_rate(w, found[chosen]):.2f}"]
    parts.append(f"{100 * ratio(found, READ, chosen):.0f} %" if READ in found else "–")
    rivals = [ratio(found, name, chosen) for name in LIBRARIES if name in found]
    parts.append(f"{min(rivals):.2f}" if rivals else "–")
    return ", ".join(parts)


def _rate(w: Workload, found: Measurement) -> float:
    return flops.moved_bytes(w) / _seconds(found) / 1e12


def _seconds(found: Measurement) -> float:
    return statistics.median(found.held_out_s or found.samples_s)


def _on_device(data: Recorded) -> str:
    """Lengths that the device knows: the log-normal batch beside the equal one."""
    cached = {w: found for w, found in measured(data).items() if w.cached}
    if not cached:
        return ""
    rows = []
    for w in sorted(cached):
        chosen = cached[w][choices(data)[w]]
        read = f"{100 * ratio(cached[w], READ, choices(data)[w]):.0f}" if READ in cached[w] else ""
        pages = f"pages of {w.page_size}" if w.page_size else "in one piece"
        sizes = [f"{w.heads}/{w.kv_heads}", str(w.batch), w.cache_lengths, pages]
        rows.append(
            [
                *sizes,
                f"{w.keys_in_all:,}",
                f"{1e6 * _seconds(chosen):.1f}",
                f"{_rate(w, chosen):.2f}",
                read,
            ]
        )
    heads = ["heads", "batch", "lengths", "cache", "keys", "µs", "TB/s", "% of a bare read"]
    return "Lengths that the device alone knows:\n\n" + table(heads, rows, words=4)


def _rule(data: Recorded) -> str:
    """What the registry's rule, the nearest workload, the default and one config for all lose."""
    found, singles = losses_of(data.folder)
    rows = []
    for label, name in (
        ("the registry's rule", "rule"),
        ("the nearest tuned workload's config", "nearest"),
        ("the default", "default"),
        ("one config for all", "single"),
    ):
        lost = [f for loss in found if (f := getattr(loss, name)) is not None]
        if lost:
            over = sum(f > 0.03 for f in lost)
            mean, worst = 100 * statistics.fmean(lost), 100 * max(lost)
            rows.append([label, f"{mean:.1f}", f"{worst:.1f}", f"{over} of {len(lost)}"])
    if not rows:
        return ""
    told = ", ".join(f"`{single.config}`" for single in singles)
    heads = ["what runs", "mean loss (%)", "worst (%)", "over 3 %"]
    return (
        "Each workload was taken out, and the others asked what to run there "
        "(`fa-tune bench-between`). What that loses against the config that tuning chose; the one "
        f"config is {told}:\n\n" + table(heads, rows)
    )


assert all(name.removeprefix("ref:") in LABELS for name in LIBRARIES)
