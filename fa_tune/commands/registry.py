"""`fa-tune registry`: show, check, best, merge."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from fa_tune import families, libraries
from fa_tune.commands.shared.grouped_help import GroupedCommand
from fa_tune.commands.shared.groups import HelpfulGroup
from fa_tune.commands.shared.option_groups import Output, shared_options, typed_options
from fa_tune.commands.shared.options import (
    COUNT,
    D_HEAD,
    LENGTH,
    field_option,
    mask_options,
    option,
    several,
)
from fa_tune.commands.shared.output import say, tell
from fa_tune.commands.shared.parameters import DTYPE, WORKLOAD, NamedPath, output_file
from fa_tune.commands.shared.progress import PlainProgress
from fa_tune.commands.views.default_check import check_sentence, check_table, write_check
from fa_tune.commands.views.registry_table import show_entries, target_of, write_best
from fa_tune.core.errors import InvalidConfig, NoUsableVariant, RegistryError, StorageError
from fa_tune.core.files import is_stream
from fa_tune.core.options import SearchOptions
from fa_tune.core.workload import (
    BENCHMARK_HEADS,
    FIELDS,
    OPTIONAL,
    DType,
    Effect,
    Workload,
    benchmark_batch,
)
from fa_tune.lab.default_check import compare_recordings, compare_registry
from fa_tune.store.registry.file import load, update
from fa_tune.store.registry.lookup import NoEntry, find_match
from fa_tune.store.registry.merge import EntryConflict, conflicts, merge_registries
from fa_tune.store.registry.schema import Registry, to_json
from fa_tune.tune.outputs import registry_path

CHOICE_DEPENDS_ON = tuple(
    name for name in OPTIONAL if FIELDS[name].help and FIELDS[name].effect is not Effect.NONE
)


@click.group("registry", cls=HelpfulGroup)
def command() -> None:
    """Look at the registry, where searches keep the chosen configs.

    \b
    Examples:
      fa-tune registry show
      fa-tune registry check
      fa-tune registry best --seq-len 4096 --d-head 128 --dtype fp16
      fa-tune registry merge mine.json theirs.json -o ours.json
    """


_gpu = option("--gpu", metavar="NAME", help='GPU model, like "NVIDIA H200".')
_method = option("--method", type=click.Choice(("ncu", "events")), help="How it was measured.")


@command.command("show", short_help="List what is kept.")
@shared_options("registry")
@_gpu
@option("--workload", type=WORKLOAD, metavar="KEY", help="Only this workload.")
@option("--seq-len", type=LENGTH, help="Only this sequence length.")
@option("--d-head", type=D_HEAD, help="Only this head dimension.")
@option("--dtype", type=DTYPE, metavar="fp16|bf16", help="Only this type.")
@_method
@shared_options("as_json", "wide")
def show(
    options: SearchOptions,
    gpu: str | None,
    workload: Workload | None,
    seq_len: int | None,
    d_head: int | None,
    dtype: DType | None,
    method: str | None,
    output: Output,
) -> None:
    """List the registry's entries in a table: workload, chosen config, time and ratios. Then
    describe each: the rule that chose it, its gain over the default in the search and in the
    comparison afterwards, its ties, and where it was measured.

    Ratios are speeds: 1.05x FA2 means 5 % faster than FlashAttention 2. `--json` writes the
    entries in the registry's own format.

    \b
    Example:
      fa-tune registry show --d-head 128 --dtype fp16
    """
    kept, path = _kept(options)
    entries = [
        e
        for e in kept.entries
        if gpu in (None, e.gpu.name)
        and workload in (None, e.workload)
        and seq_len in (None, e.workload.seq_len_q)
        and d_head in (None, e.workload.d_head)
        and dtype in (None, e.workload.dtype)
        and method in (None, e.method)
    ]
    if not entries:
        held = sorted({entry.gpu.name for entry in kept.entries})
        others = "" if gpu in (None, *held) else f"; they are of {', '.join(held)}"
        raise NoUsableVariant(
            f"none of the {len(kept.entries)} entries in {path} is like that{others}"
        )
    if output.as_json:
        say(to_json(Registry.of(entries)).rstrip())
    else:
        show_entries(entries, wide=output.wide)
        say(f"{len(entries)} of {len(kept.entries)} entries in {path}.")


@command.command("check", short_help="Say whether any choice is slower than the default.")
@shared_options("registry")
@option(
    "--recordings",
    type=NamedPath(file_okay=False),
    metavar="FOLDER",
    help="Check the choices of the searches recorded there instead of the registry.",
)
@_gpu
@_method
@shared_options("as_json")
def check(
    options: SearchOptions,
    recordings: Path | None,
    gpu: str | None,
    method: str | None,
    output: Output,
) -> None:
    """Compare every choice with the default that would run without it: the ratio of their times
    with its 95 % interval, in the search and in the comparison afterwards.

    A choice is slower if it takes over 1 % longer in either, with an interval above 1, or over 2 %
    longer on any of the inputs that the search compared them on afterwards. Where the default
    itself was chosen, there is nothing to compare.

    \b
    Examples:
      fa-tune registry check
      fa-tune registry check --recordings profiles --method events
    """
    if recordings is not None:
        found, where = compare_recordings(recordings, gpu, method), str(recordings)
    else:
        path = registry_path(options.registry)
        found, where = compare_registry(load(path).entries), str(path)
    found = [c for c in found if gpu in (None, c.gpu) and method in (None, c.method)]
    if not found:
        raise NoUsableVariant(f"no choice to check in {where}")
    if output.as_json:
        write_check(found)
    else:
        say(check_table(found))
        tell(check_sentence(found))


@command.command("best", cls=GroupedCommand, short_help="Print the config to use for a workload.")
@_gpu
@option(
    "--workload",
    type=WORKLOAD,
    metavar="KEY",
    help="The workload's key, like b16_h16_kv16_q4096_k4096_d128_fp16_full, instead of the other "
    "options of the workload.",
)
@option("--seq-len", type=LENGTH, help="Sequence length of the queries.")
@option("--seq-len-kv", type=LENGTH, show_default="as --seq-len", help="Length of K and V.")
@option("--d-head", type=D_HEAD, default=128, help="Head dimension.")
@option("--dtype", type=DTYPE, default="fp16", metavar="fp16|bf16", help="Element type.")
@option(
    "--batch", type=COUNT, show_default="16 up to 4096, then 65536 / seq_len", help="Batch size."
)
@option("--heads", type=COUNT, default=BENCHMARK_HEADS, help="Heads of the queries.")
@option("--kv-heads", type=COUNT, show_default="as --heads", help="Heads of the keys.")
@mask_options("Causal or full mask", default=False)
@several(field_option(name) for name in CHOICE_DEPENDS_ON)
@_method
@shared_options("registry", "as_json")
def best(
    options: SearchOptions,
    gpu: str | None,
    workload: Workload | None,
    method: str | None,
    output: Output,
    **parts: Any,
) -> None:
    """Print the config to use for a workload on a GPU, for scripts.

    Without an entry for this workload, the nearest entry's config is printed, with a note on
    standard error. Without --gpu, this machine's GPU is meant, or else the only one in the
    registry, or with an entry for this workload. Exit status 4 if no entry fits.

    \b
    Examples:
      fa-tune registry best --seq-len 4096 --d-head 128 --dtype fp16
      fa-tune registry best --seq-len 3000 --batch 2 --json
    """
    if workload is not None:
        _refuse_beside_key()
    elif (seq_len := parts.pop("seq_len")) is None:
        raise click.UsageError("name the workload: --seq-len N, or --workload KEY")
    else:
        seq_len_kv = parts.pop("seq_len_kv") or seq_len
        parts["batch"] = parts["batch"] or benchmark_batch(max(seq_len, seq_len_kv))
        parts["kv_heads"] = parts["kv_heads"] or parts["heads"]
        workload = Workload(seq_len_q=seq_len, seq_len_kv=seq_len_kv, **parts)
    kept, path = _kept(options)
    found = find_match(kept, target_of(kept, gpu, workload, method), workload)
    if isinstance(found, NoEntry):
        raise NoUsableVariant(found.reason)
    chosen = found.chosen
    try:
        families.config_of(chosen)
    except InvalidConfig as error:
        raise RegistryError(f"{path}: {error}; search again, or fix the entry") from None
    said = PlainProgress()
    if not found.exact:
        said.note(f"note: {found.explanation}")
    for warning in found.warnings:
        said.warn(warning)
    if found.exact and (served := found.entry.served) is not None:
        said.note(
            f"note: programs call {libraries.label_of(served.library)} in its place, which takes "
            f"{served.ratio.value:.3f} of its time, where {served.packages} is installed"
        )
    if output.as_json:
        write_best(found, workload)
    else:
        say(chosen.config)


@command.command("merge", short_help="Make one registry of several.")
@click.argument(
    "files",
    nargs=-1,
    required=True,
    metavar="FILE…",
    type=NamedPath(dir_okay=False),
)
@option(
    "--output",
    "-o",
    type=output_file(stdout=False),
    required=True,
    metavar="FILE",
    help="Where to write the result; it may be one of the files.",
)
def merge_files(files: tuple[Path, ...], output: Path) -> None:
    """Merge registries: for each GPU, workload and method the better-evidenced entry stays.

    Verified beats not verified; then come more samples, the narrower interval and the newer date.
    The order of the files does not matter. Where files disagree on the config, a note says what
    decided. An output file that exists must be among the files, so that nothing in it is lost.

    \b
    Example:
      fa-tune registry merge mine.json theirs.json -o mine.json
    """
    for path in files:
        if not path.exists():
            raise StorageError(f"cannot read {path}: no such file")
    if is_stream(output):
        raise click.UsageError(f"{output} is no file that a registry can be kept in; name another")
    if output.exists() and not any(os.path.samefile(output, path) for path in files):
        raise click.UsageError(f"{output} exists; name it among the files to merge, or remove it")
    loaded = [load(path) for path in files]
    named: list[EntryConflict] = []

    def combine(current: Registry) -> Registry:
        # The output is read again under its lock: what a search added since is merged as well.
        named[:] = conflicts(current, *loaded)
        return merge_registries(current, *loaded)

    merged = update(output, combine)
    said = PlainProgress()
    for conflict in named:
        said.note(_sentence(conflict))
    count = sum(len(registry.entries) for registry in loaded)
    kept = len(merged.entries)
    say(
        f"{kept} entr{'y' if kept == 1 else 'ies'} in {output}, of {count} in {len(files)} "
        f"file{'s' if files[1:] else ''}."
    )


def _refuse_beside_key() -> None:
    """A key says the whole workload: raise UsageError for options that would say it again."""
    own = ("registry", "gpu", "workload", "method", "as_json")
    if others := [option for name, option in typed_options().items() if name not in own]:
        raise click.UsageError(
            f"--workload says all of the workload; leave out {', '.join(others)}"
        )


def _kept(options: SearchOptions) -> tuple[Registry, Path]:
    """The registry and where it is; raises NoUsableVariant for an empty one."""
    path = registry_path(options.registry)
    kept = load(path)
    if not kept.entries:
        raise NoUsableVariant(
            f"there is nothing in the registry {path} yet; fa-tune search fills it"
        )
    return kept, path


def _sentence(conflict: EntryConflict) -> str:
    """What a conflict between two entries was about, and how it ended."""
    key = conflict.kept.key
    others = ", ".join(conflict.differences)
    also = f"; measured with other {others}" if others else ""
    return (
        f"{key.workload} on {key.gpu} by {key.method}: {conflict.kept.chosen.config} stays, "
        f"{conflict.dropped.chosen.config} goes: {conflict.why}{also}"
    )
