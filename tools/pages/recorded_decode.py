"""Decoding by CUDA events, as Markdown: the choices beside a bare read and the libraries, what a
fixed number of splits loses, lengths on the device, and what the registry's rule loses between
tuned lengths."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from fa_tune import families
from fa_tune.core.model import Measurement, Variant, is_reference
from fa_tune.core.reference_kernels import BARE_READ
from fa_tune.core.workload import Workload
from fa_tune.evaluate.between import Losses as Loss
from fa_tune.evaluate.between import losses_among
from fa_tune.families.decode.config import DecodeConfig
from fa_tune.operations import flops
from fa_tune.store.recordings import load
from recorded import Recorded
from recorded_files import Held, conditions, newest, notes
from recorded_grid import LABELS, ratio
from recorded_tables import table

READ = f"ref:{BARE_READ}"
TILE = families.parse("decode(BF16, 128, 16, 128, 8): stages_2+aligned")  # record_decode.sh's
KEYS = (1024, 8192, 32768, 131072)
BATCHES = (1, 4, 16, 64, 128)
Losses = Mapping[str, Sequence[float]]  # fractions, by what runs


def section(data: Recorded) -> str:
    """All of it; a sentence where nothing was recorded."""
    held = [held for of in (recorded, recorded_splits) for held in of(data).values()]
    parts = [
        _conditions(held),
        notes(held, "decode"),
        *_grids(data),
        _fixed(data),
        _on_device(data),
        _rule(data),
    ]
    return "\n\n".join(filter(None, parts)) or "Not recorded yet."


def summary(data: Recorded) -> str:
    """The README's lines; empty where nothing was recorded."""
    lines = []
    for queries in sorted({w.seq_len_q for w in held_grid(data)}):
        grid = {w: held for w, held in held_grid(data).items() if w.seq_len_q == queries}
        large = [s for w, h in grid.items() if _is_large(w) and (s := _share(h)) is not None]
        times = [t for h in grid.values() if (t := _times(h)) is not None]
        if not large or not times:
            continue
        beside = Counter(name for held in grid.values() for name in _libraries(held))
        *others, last = (
            LABELS[name.partition(":")[2]] + (f" at {n} of them" if n < len(times) else "")
            for name, n in sorted(beside.items())
        )
        told = " and ".join(filter(None, (", ".join(others), last)))
        noun = "query" if queries == 1 else "queries"
        lines.append(
            f"- {queries} {noun}: {min(times):.2f} to {max(times):.2f} times as fast as the "
            f"fastest library beside it ({told}), {statistics.median(times):.2f} in the median of "
            f"{len(times)} problems; slower in {sum(t < 1 for t in times)} of them. Where K and V "
            "are 260 MB or more, it has "
            f"{100 * min(large):.0f} to {100 * max(large):.0f} % of the speed at which a kernel "
            "can read them at all."
        )
    return "\n".join(lines)


def _is_large(w: Workload) -> bool:
    """Whether it is the memory's speed that counts: K and V of 260 MB and more."""
    return w.batch * w.seq_len_kv * w.kv_heads * (w.d_head + w.d_v) * 2 >= 260e6


def _files(folder: Path, *, fixed: bool = False) -> list[Path]:
    found = folder.glob("decode_*_events.csv")
    return sorted(path for path in found if ("_splits_" in path.name) == fixed)


@cache
def recorded(data: Recorded) -> Mapping[Workload, Held]:
    """What was searched for, by workload."""
    return newest(_files(data.folder))


@cache
def recorded_splits(data: Recorded) -> Mapping[Workload, Held]:
    """The recordings of fixed splits."""
    return newest(_files(data.folder, fixed=True))


def held_grid(data: Recorded) -> dict[Workload, Held]:
    """The workloads of the grid."""
    return {
        w: held
        for w, held in sorted(recorded(data).items())
        if not w.cached and w.seq_len_kv in KEYS and w.batch in BATCHES and held.chosen
    }


def _conditions(held: Sequence[Held]) -> str:
    told = conditions(one.meta for one in held) if held else ""
    return f"By CUDA events, cold L2, d_head 128, BF16; {told}." if told else ""


def _grids(data: Recorded) -> Iterable[str]:
    groups: dict[tuple[int, int, int], dict[tuple[int, int], str]] = {}
    for w, held in held_grid(data).items():
        cells = groups.setdefault((w.heads, w.kv_heads, w.seq_len_q), {})
        cells[w.batch, w.seq_len_kv] = _cell(w, held)
    if groups:
        yield (
            "GB/s of what has to be read and written, the share of a bare read's speed, and how "
            "many times as fast as the fastest library:"
        )
    for (heads, kv_heads, queries), cells in groups.items():
        noun = "query" if queries == 1 else "queries"
        yield f"{heads} heads over {kv_heads}, {queries} {noun}, by batch and keys:"
        batches = dict.fromkeys(batch for batch, _ in cells)
        rows = [[str(b), *(cells.get((b, keys), "") for keys in KEYS)] for b in batches]
        yield table(["batch", *map(str, KEYS)], rows)


def _cell(w: Workload, held: Held) -> str:
    share, times = _share(held), _times(held)
    return ", ".join(
        [
            f"{_rate(w, held):.0f}",
            "–" if share is None else f"{100 * share:.0f} %",
            "–" if times is None else f"{times:.2f}",
        ]
    )


def _share(held: Held) -> float | None:
    """Of a bare read's speed."""
    return ratio(held.measured, READ, held.chosen) if READ in held.measured else None


def _times(held: Held) -> float | None:
    """How many times as fast as the fastest library."""
    return min((ratio(held.measured, n, held.chosen) for n in _libraries(held)), default=None)


def _libraries(held: Held) -> list[str]:
    return [name for name in held.measured if is_reference(name) and name != READ]


def _rate(w: Workload, held: Held) -> float:
    return flops.moved_bytes(w) / _seconds(held.measured[held.chosen]) / 1e9


def _seconds(found: Measurement) -> float:
    return statistics.median(found.held_out_s or found.samples_s)


def _fixed(data: Recorded) -> str:
    """What a fixed least number of key blocks for a CTA loses, and what the search's choice does,
    against the best of them all in the same run."""
    fixed: dict[int, list[float]] = {}
    chosen: list[float] = []
    for w, held in recorded_splits(data).items():
        own = recorded(data)[w].chosen if w in recorded(data) else ""
        for subject in held.measured:
            if is_reference(subject):
                continue
            lost = max(0.0, ratio(held.measured, subject, held.chosen) - 1)
            if (blocks := _least_blocks(subject)) is not None:
                fixed.setdefault(blocks, []).append(lost)
            if subject == own:
                chosen.append(lost)
    losses = {f"at least {blocks} for each CTA": fixed[blocks] for blocks in sorted(fixed)}
    if chosen:
        losses["the registry's choice for each"] = chosen
    if not losses:
        return ""
    return (
        "The same tile with a fixed least number of key blocks for a CTA, which is what decides "
        "how often K and V are split, and the config that the search had chosen for each problem, "
        "in one run. What each loses against the fastest there:\n\n" + _losses(losses)
    )


def _least_blocks(subject: str) -> int | None:
    """Of the tile that all of these are; None for others that took part."""
    config = families.parse(Variant.from_key(subject).config)
    if not isinstance(config, DecodeConfig) or replace(config, min_blocks=1) != TILE:
        return None
    return config.min_blocks


def _losses(losses: Losses) -> str:
    """Mean and worst, in the order of the loss's names."""
    rows = []
    for name, lost in losses.items():
        over = f"{sum(f > 0.03 for f in lost)} of {len(lost)}"
        rows.append([name, f"{100 * statistics.fmean(lost):.1f}", f"{100 * max(lost):.1f}", over])
    return table(["what runs", "mean loss (%)", "worst (%)", "over 3 %"], rows)


def _on_device(data: Recorded) -> str:
    """Lengths that the device knows: the log-normal batch beside the equal one."""
    cached = {w: held for w, held in sorted(recorded(data).items()) if w.cached and held.chosen}
    if not cached:
        return ""
    of_key = {w: _seconds(held.measured[held.chosen]) / w.keys_in_all for w, held in cached.items()}
    rows = []
    for w, held in cached.items():
        share, equal = _share(held), _equal_beside(w, of_key)
        rows.append(
            [
                f"{w.heads}/{w.kv_heads}",
                str(w.seq_len_q),
                str(w.batch),
                w.cache_lengths or "equal",
                f"pages of {w.page_size}" if w.page_size else "in one piece",
                f"{w.keys_in_all:,}",
                f"{1e6 * _seconds(held.measured[held.chosen]):.1f}",
                f"{_rate(w, held):.0f}",
                "" if share is None else f"{100 * share:.0f}",
                "" if equal is None else f"{of_key[w] / of_key[equal]:.3f}",
            ]
        )
    heads = [
        "heads",
        "queries",
        "batch",
        "lengths",
        "cache",
        "keys",
        "µs",
        "GB/s",
        "% of a bare read",
    ]
    return "Lengths that the device alone knows:\n\n" + table(
        [*heads, "time of a key, over equal lengths"], rows, words=5
    )


def _equal_beside(w: Workload, found: Iterable[Workload]) -> Workload | None:
    """Of equal lengths in one piece those with about as many keys, where there are any."""
    beside = [
        other
        for other in found
        if other.cache_lengths == "equal"
        and not other.page_size
        and (other.heads, other.kv_heads, other.seq_len_q, other.batch)
        == (w.heads, w.kv_heads, w.seq_len_q, w.batch)
    ]
    return min(beside, key=lambda other: abs(other.keys_in_all - w.keys_in_all), default=None)


def _rule(data: Recorded) -> str:
    """What the registry's rule, the nearest workload, the default and one config for all lose."""
    recordings = {path: load(path) for path in _files(data.folder)}
    between = [r for path, r in recordings.items() if "_between_" in path.name]
    tuned = [r for path, r in recordings.items() if "_between_" not in path.name]
    found, singles = losses_among(tuned)
    if not found:
        return ""
    told = ", ".join(f"`{single.config}`" for single in singles)
    text = (
        "Each workload of the grid was taken out, and the others asked what to run there "
        "(`fa-tune bench-between`). What that loses against the config that tuning chose; the one "
        f"config is {told}:\n\n{_losses(_by_answer(found))}"
    )
    if asked := losses_among(tuned, between)[0] if between else []:
        text += (
            "\n\nThe same at lengths and batches between those of the grid, which were tuned for "
            f"comparison alone:\n\n{_losses(_by_answer(asked))}"
        )
    return text


def _by_answer(found: Iterable[Loss]) -> dict[str, list[float]]:
    losses: dict[str, list[float]] = {}
    for loss in found:
        for label, lost in (
            ("the registry's rule", loss.rule),
            ("the nearest tuned workload's config", loss.nearest),
            ("the default", loss.default),
            ("one config for all", loss.single),
        ):
            if lost is not None:
                losses.setdefault(label, []).append(lost)
    return losses
