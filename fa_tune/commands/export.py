"""`fa-tune export`."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import click

from fa_tune.commands.shared.grouped_help import GroupedCommand
from fa_tune.commands.shared.option_groups import shared_options
from fa_tune.commands.shared.options import D_HEADS, field_option, flag, gathered, option
from fa_tune.commands.shared.output import say, tell
from fa_tune.commands.shared.parameters import ARCHITECTURES, DTYPES, KERNELS, WORKLOADS, NamedPath
from fa_tune.commands.shared.progress import watching
from fa_tune.core.options import SearchOptions
from fa_tune.export.project import Export, export
from fa_tune.export.selection import ExportOptions
from fa_tune.report.wrap import folded, terminal_width
from fa_tune.tune.outputs import registry_path


@click.command("export", cls=GroupedCommand)
@click.option(
    "--to",
    "folder",
    type=NamedPath(file_okay=False),
    required=True,
    metavar="DIR",
    help="The folder to write: a new or empty one, or an earlier export, which is replaced.",
)
@option(
    "--workloads",
    type=WORKLOADS,
    default=(),
    show_default="all of the registry",
    metavar="KEY,KEY,…",
    help="Export only what serves these workloads, given by keys like "
    "b16_h16_kv16_q4096_k4096_d128_fp16_full.",
)
@option(
    "--arch",
    "archs",
    type=ARCHITECTURES,
    default=(),
    show_default="those of the registry's GPUs",
    metavar="ARCH,ARCH,…",
    help="Architectures to compile for, like sm_90a,sm_80; code for sm_80 also runs on 8.6 and "
    "8.9.",
)
@option(
    "--kernels",
    "-k",
    type=KERNELS,
    show_default="none",
    metavar="KEY|CONFIG",
    help="Configs to export beside the chosen ones: a set like prog, or one config's short form. "
    "Programs select them through flash_kernels.cuh.",
)
@option(
    "--d-head",
    "d_heads",
    type=D_HEADS,
    default=(),
    show_default="those of the registry and --workloads, else 64,128",
    metavar="N,N,…",
    help="Head dimensions to export defaults for, and configs of --kernels.",
)
@field_option("d_head_v")
@option(
    "--dtype",
    "dtypes",
    type=DTYPES,
    default="fp16,bf16",
    metavar="NAME,…",
    help="Element types to export defaults for, and configs of --kernels.",
)
@flag(
    "--lse",
    help="Also export every kernel with the log-sum-exp, as is always done if an entry has it.",
)
@flag(
    "--ptx",
    help="Also export the defaults as PTX, for GPUs of compute capability 8.0 and later that "
    "--arch does not cover; the driver compiles it at the first load.",
)
@flag(
    "--backward",
    help="Also export the defaults of the backward pass, and forward passes with the log-sum-exp "
    "that it needs, as is always done if an entry is of one.",
)
@flag(
    "--few-queries",
    help="Also export the defaults for few queries and many keys; their launches take a workspace.",
)
@flag(
    "--few-queries-by-size",
    "by_size",
    help="The same for any number of sequences, heads and keys: some 40 configs for each --dtype "
    "and --d-head.",
)
@flag("--kv-e4m3", help="The defaults for few queries for K and V in e4m3, too.")
@gathered(
    "exported",
    partial(ExportOptions, Path()),
    [f.name for f in fields(ExportOptions) if f.name != "registry"],
)
@shared_options("registry", "jobs", "compile_timeout_s", "cache_dir", "quiet")
def command(folder: Path, exported: ExportOptions, options: SearchOptions, quiet: bool) -> None:
    """Write the chosen kernels as a C++ library, which needs neither Python nor the CUDA toolkit.

    A CMake project with the kernels compiled, the choice by workload as the registry made it,
    examples and tests. Untuned workloads run with the default. No GPU is needed.

    \b
    Examples:
      fa-tune export --to attention
      fa-tune export --to attention --arch sm_90a,sm_80 --d-head 64,128 --ptx
      cmake -S attention -B build && cmake --build build && ctest --test-dir build
    """
    exported = replace(exported, registry=registry_path(options.registry))
    with watching(quiet) as progress:
        made = export(folder, exported, options.machine, progress)
        for sentence in made.left_out:
            progress.warn(f"left out: {sentence}")
    _show(made)


def _show(made: Export) -> None:
    configs = {kernel.variant.key for kernel in made.kernels}
    archs = ", ".join(sorted({kernel.arch for kernel in made.kernels}))
    mib = sum(len(kernel.image.image) for kernel in made.kernels) / 2**20
    n = len({(entry.gpu, entry.workload) for entry in made.entries})
    workloads = "1 workload" if n == 1 else f"{n} workloads"  # with those between the registry's
    text = (
        f"Written to {made.folder}: {len(made.kernels)} kernels of {len(configs)} configs "
        f"({mib:.1f} MiB, {archs}, NVRTC {made.nvrtc}) for {workloads}."
    )
    tell(text)
    say("Defaults:")
    for default in made.defaults:
        say(folded(default.partition(":")[2], terminal_width(), indent="  "))
    if made.sized:
        n = len({default.key for default in made.sized})
        say(f"  and {n} more for few queries, by size")
