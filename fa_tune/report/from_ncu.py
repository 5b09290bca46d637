"""Rows from launches that ncu profiled.

A profile does not say what problem was solved, so the workload is inferred: head dimension,
dtype and mask from the kernel's name, length, heads and batch from the grid, where grid and
name together determine them.  What remains open is taken from the one workload of the
file's other kernels that fits, else left unknown.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from fa_tune.core.errors import InvalidConfig, ProfileFormatError
from fa_tune.core.model import REFERENCE_FAMILY
from fa_tune.core.workload import DType
from fa_tune.core.workload_parts import PARTS
from fa_tune.profile.ncu.launches import Launch, Missing
from fa_tune.store.table.columns import counters_of
from fa_tune.store.table.from_attempts import CYCLES, DURATION, cycle_metric, with_samples
from fa_tune.store.table.kernel_names import KernelIdentity, identify
from fa_tune.store.table.partial_workload import PartialWorkload, adopted
from fa_tune.store.table.rows import Row, completed, tiled_tflops

Note = Callable[[str], None]
Grid = tuple[int, int, int] | None
Kind = tuple[str, Grid]  # kernel name and grid: all that a workload is told by
ANY_HEAD_DIM = 64  # no grid depends on it
# Ours, and FlashAttention 2's, by the name of the template alone.
BASE_NAME = re.compile(
    r"(flash_|sm90_)forward_(\w+_)?kernel|sm[89]0_backward_\w+|decode_(\w+_)?kernel|flash_fwd_kernel"
)
UNKNOWN_KERNEL = "not a known attention kernel"


def rows_from_launches(
    launches: Sequence[Launch],
    *,
    given: PartialWorkload | None = None,
    on_note: Note | None = None,
) -> list[Row]:
    """Rows in table order; every launch is counted in one.

    Launches of one kernel with one grid on one GPU are one row: `duration_s` and the counters are
    means over them, `median_s` their median, `n` their number.  `Row.source` names the GPU if
    there are several.  `given` is what the user says of parts that names and grids leave open.
    `on_note` gets a line for each thing that a reader should know.  Raises InvalidConfig where a
    name, grid or block says otherwise than `given` or the name, and ProfileFormatError for names
    that do not tell one config from another.
    """
    by_gpu: dict[tuple[str, ...], list[Launch]] = {}
    for launch in launches:
        by_gpu.setdefault(launch.gpu, []).append(launch)
    notes = [f"{len(by_gpu)} GPUs, whose launches are not put together"] if len(by_gpu) > 1 else []
    differing = [i for i, parts in enumerate(zip(*by_gpu, strict=True)) if len(set(parts)) > 1]
    rows = [
        replace(row, source=", ".join(gpu[i] for i in differing if gpu[i]))
        for gpu, own in by_gpu.items()
        for row in _rows_of_one_gpu(own, given or PartialWorkload(), notes.append)
    ]
    if on_note:
        for note in dict.fromkeys(notes):
            on_note(note)
    return rows


def _rows_of_one_gpu(
    launches: Sequence[Launch], given: PartialWorkload, on_note: Note
) -> list[Row]:
    named = {name: identify(name) for name in dict.fromkeys(m.kernel_name for m in launches)}
    _refuse_base_names(named)
    for launch in {(launch.kernel_name, launch.block): launch for launch in launches}.values():
        _refuse_other_block(named[launch.kernel_name], launch.block)
    kinds = dict.fromkeys((launch.kernel_name, launch.grid) for launch in launches)
    told = {kind: _told(named[kind[0]], kind[1], given) for kind in kinds}
    shapes = _adopted(named, told)
    groups: dict[tuple[object, ...], list[Launch]] = {}
    for launch in launches:
        kind = launch.kernel_name, launch.grid
        # The same grid may have served different problems, whose mean means nothing.
        alone = bool(named[launch.kernel_name].family and shapes[kind].missing)
        single = (launch.process_id, launch.launch_id) if alone else None
        groups.setdefault((kind, launch.block, single), []).append(launch)
    cycles = cycle_metric([n for n in CYCLES if m.quantity(n) is not None] for m in launches)
    rows = [
        _row(named[m.kernel_name], shapes[m.kernel_name, m.grid], members, cycles)
        for members in groups.values()
        for m in members[:1]
    ]
    _remark(rows, on_note)
    taken = {named[k[0]].label for k in kinds if told[k].missing and not shapes[k].missing}
    _remark_assumptions(taken, shapes.values(), given, on_note)
    zeros = sum(1 for m in launches if (q := m.quantity(DURATION)) is not None and q.value <= 0)
    if zeros:
        on_note(f"{zeros} of {len(launches)} launches have a duration of 0 and were left out")
    return completed(rows)


def _refuse_base_names(names: Iterable[str]) -> None:
    """Kernels of a template without its arguments would all be one."""
    if base := next((name for name in names if BASE_NAME.fullmatch(name)), None):
        raise ProfileFormatError(
            f"the kernel names are base names ({base}), which tell no config: rerun ncu with "
            "--print-kernel-base demangled"
        )


def _refuse_other_block(identity: KernelIdentity, block: Grid) -> None:
    if block is not None and identity.threads not in (None, math.prod(block)):
        raise ProfileFormatError(
            f"{identity.label} was launched with {math.prod(block)} threads a block, where its "
            f"name says {identity.threads}: name and block are of different kernels"
        )


def _told(identity: KernelIdentity, grid: Grid, given: PartialWorkload) -> PartialWorkload:
    """What name, grid and user say together, nothing of an unknown kernel; raises InvalidConfig
    where they contradict."""
    if not identity.family:
        return PartialWorkload()
    known = _inferred(identity, grid, one_query=given.seq_len == 1)
    for part in PARTS:
        said, asked = getattr(known, part), getattr(given, part)
        if None not in (said, asked) and said != asked:
            raise InvalidConfig(
                f"{identity.label} has {_in_words(part, said)} by its name and grid, not "
                f"{_in_words(part, asked)}: leave that option out"
            )
    told = given.merge(known).fill_defaults().settled()
    if not _could_be(identity, told, grid):
        raise InvalidConfig(
            f"{identity.label} has another grid than seq_len {told.seq_len}, heads {told.heads}, "
            f"batch {told.batch} need: correct these options, or leave them out"
        )
    return told


def _in_words(part: str, value: object) -> str:
    if part == "causal":
        return "a causal mask" if value else "a full mask"
    return f"{part} {value.name if isinstance(value, DType) else value}"


def _inferred(identity: KernelIdentity, grid: Grid, *, one_query: bool) -> PartialWorkload:
    """What name and grid say; the length is a whole number of query blocks.  With `one_query` the
    blocks of a reference are of heads that share keys, not of queries."""
    known = PartialWorkload(
        d_head=identity.d_head, dtype=identity.dtype, causal=identity.causal, op=identity.op
    )
    if identity.blocks is None or identity.ragged or (one_query and not identity.is_ours):
        return known
    implied = identity.implied_shape(grid)
    if implied is None:
        return known
    length = implied.query_blocks * identity.blocks[0]
    sizes = PartialWorkload(seq_len=length, heads=implied.heads, batch=implied.batch)
    guess = known.merge(sizes)
    checked = guess.fill_defaults().merge(PartialWorkload(d_head=ANY_HEAD_DIM))
    return guess if identity.required_shape(checked.workload) == implied else known


def _could_be(identity: KernelIdentity, shape: PartialWorkload, grid: Grid) -> bool:
    """Whether nothing speaks against a launch having solved a workload."""
    required = identity.required_shape(shape.workload)
    return required is None or identity.implied_shape(grid) in (None, required)


def _adopted(
    named: Mapping[str, KernelIdentity], told: Mapping[Kind, PartialWorkload]
) -> dict[Kind, PartialWorkload]:
    """What is told, completed from the file's other kernels."""
    complete = [shape for shape in dict.fromkeys(told.values()) if not shape.missing]
    shapes = dict(told)
    for (name, grid), shape in told.items():
        identity = named[name]
        if identity.family and identity.plain:
            fitting = (c for c in complete if _could_be(identity, c, grid))
            shapes[name, grid] = adopted(shape, fitting)
    return shapes


def _row(
    identity: KernelIdentity, shape: PartialWorkload, members: Sequence[Launch], cycles: str
) -> Row:
    durations = [q.value for m in members if (q := m.quantity(DURATION)) and q.value > 0]
    row = shape.apply_to(Row(identity.label, family=identity.family, method="ncu"))
    row = with_samples(
        row, tuple(durations), counters_of(lambda metric: _mean(members, metric), cycles)
    )
    workload = row.workload
    if identity.family == REFERENCE_FAMILY and workload and row.duration_s:
        row = replace(row, tflops=tiled_tflops(workload, identity.blocks, row.duration_s))
    return replace(row, reason=_lacks(identity, shape, members, row))


def _lacks(
    identity: KernelIdentity, shape: PartialWorkload, members: Sequence[Launch], row: Row
) -> str:
    if not row.n:
        value = members[0].value(DURATION)
        if isinstance(value, Missing):
            return f"no duration: {value.reason}"
        return f"no duration: the file has {getattr(value, 'value', value):g}"
    if not identity.family:
        return UNKNOWN_KERNEL
    return f"unknown {', '.join(shape.missing)}: no rates" if shape.missing else ""


def _mean(members: Sequence[Launch], metric: str) -> float | None:
    values = [q.value for m in members if (q := m.quantity(metric)) is not None]
    return sum(values) / len(values) if values else None


def _remark(rows: Sequence[Row], on_note: Note) -> None:
    incomplete = [row for row in rows if row.family and row.workload is None]
    if incomplete:
        names = ", ".join(sorted({row.kernel for row in incomplete})[:3])
        parts = sorted({n for row in incomplete for n in PartialWorkload.of(row).missing})
        options = ", ".join(f"--{part.replace('_', '-')}" for part in parts)
        on_note(
            f"{len(incomplete)} rows have no TFLOP/s, as the file does not tell their workload "
            f"({names}); give it with {options}"
        )
    if strangers := sorted({row.kernel for row in rows if not row.family}):
        which = "1 kernel is" if len(strangers) == 1 else f"{len(strangers)} kernels are"
        first = textwrap.shorten(strangers[0], 80, placeholder=" …")
        more = f", and {len(strangers) - 1} more" if strangers[1:] else ""
        on_note(f"{which} no known attention kernel{'s' if strangers[1:] else ''}: {first}{more}")


def _remark_assumptions(
    taken: Collection[str],
    shapes: Iterable[PartialWorkload],
    given: PartialWorkload,
    on_note: Note,
) -> None:
    """What rates rest on that neither a name nor a grid nor an option says; `taken` have the
    workload of others."""
    if taken:
        on_note(
            f"{', '.join(sorted(taken))}: the workload is taken from the other kernels of the "
            "file; give it with --seq-len, --d-head, --causal, … if it differs"
        )
    if given.seq_len_kv is None and any(not shape.missing for shape in shapes):
        on_note(
            "as many keys as queries, and heads of keys as of queries, are assumed; else give "
            "--seq-len-kv and --kv-heads"
        )
