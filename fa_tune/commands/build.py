"""`fa-tune build`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import click

from fa_tune.commands.shared.documents import (
    Count,
    Rejected,
    Seconds,
    filled,
    rejected,
    write_document,
)
from fa_tune.commands.shared.fitted_table import fitted_table
from fa_tune.commands.shared.grouped_help import GroupedCommand
from fa_tune.commands.shared.option_groups import Output, shared_options
from fa_tune.commands.shared.output import say, write_table_csv
from fa_tune.commands.shared.progress import watching
from fa_tune.core.errors import NoUsableVariant, one_line
from fa_tune.core.model import Outcome
from fa_tune.core.options import SearchOptions
from fa_tune.tune import single
from fa_tune.tune.results import BuildReport

_HEADINGS = (
    *("Kernel Name", "Regs", "Spill st (B)", "Spill ld (B)", "Stack (B)", "Smem (KiB)"),
    *("CTAs/SM", "Compile (s)"),
)


@dataclass(frozen=True, kw_only=True)
class Built:
    """One kernel: what it uses, or why it did not compile."""

    variant: str
    arch: str
    outcome: Outcome
    reason: str | None
    registers: Count | None = None
    spill_store_bytes: Count | None = None
    spill_load_bytes: Count | None = None
    stack_bytes: Count | None = None
    static_smem_bytes: Count | None = None
    dynamic_smem_bytes: Count | None = None
    threads: Count | None = None
    ctas_per_sm: Count | None = None
    compile_s: Seconds | None = None
    cached: bool
    diagnostics: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Build:
    """`fa-tune build --json`"""

    schema: Literal["fa-tune-build-1"]
    arch: str
    nvrtc: str
    builds: tuple[Built, ...]
    rejected: tuple[Rejected, ...]


@click.command("build", cls=GroupedCommand)
@shared_options(
    *("kernels", "families", "d_heads", "d_head_v", "csv", "as_json"),
    *("arch", "jobs", "compile_timeout_s", "cache_dir", "quiet"),
)
def command(options: SearchOptions, output: Output, quiet: bool) -> None:
    """Compile a set of configs and show registers, spills, shared memory and occupancy.

    Compiles with NVRTC on all cores, for any architecture; no GPU is needed. Earlier builds come
    from the cache. Failed builds are listed with their reason; exit status 4 if nothing could be
    built.

    \b
    Examples:
      fa-tune build --arch sm_90
      fa-tune build --kernels prog-all --arch sm_80 --csv resources.csv
    """
    grid = options.workloads
    with watching(quiet) as progress:
        report = single.build(
            *(options.kernels, grid.d_heads, options.machine, progress),
            names=options.families,
            d_head_v=grid.d_head_v,
        )
    builds = [
        filled(
            *(Built, result, result.artifact and result.artifact.resources, result.artifact),
            variant=result.request.variant.key,
            arch=result.request.arch,
            reason=result.reason or None,
        )
        for result in report.results
    ]
    if output.csv is not None:
        names = [field.name for field in fields(Built)]
        rows = [vars(built) | {"cached": str(built.cached).lower()} for built in builds]
        for row in rows:
            row["diagnostics"] = " | ".join(row["diagnostics"])
        write_table_csv(names, [[*row.values()] for row in rows], output.csv)
    if output.as_json:
        write_document(Build, report, builds=builds, rejected=rejected(report.rejected))
    elif output.is_table:
        _show(report)
    if not any(result.artifact for result in report.results):
        reasons = [r.reason for r in report.results] + [why.reason for _, why in report.rejected]
        raise NoUsableVariant(f"nothing was built: {reasons[0] if reasons else 'the set is empty'}")


def _show(report: BuildReport) -> None:
    built = [r.artifact for r in report.results if r.artifact is not None]
    rows = []
    for artifact in built:
        used = artifact.resources
        smem_kib = (used.static_smem_bytes + used.dynamic_smem_bytes) / 1024
        in_memory = (used.spill_store_bytes, used.spill_load_bytes, used.stack_bytes)
        figures = (used.registers, *in_memory, f"{smem_kib:g}", used.ctas_per_sm)
        rows.append([artifact.variant.config, *map(str, figures), f"{artifact.compile_s:.2f}"])
    if rows:
        say(fitted_table(_HEADINGS, rows, {"Kernel Name"}, configs="Kernel Name"))
    cached = sum(r.cached for r in report.results if r.artifact is not None)
    failed = [r for r in report.results if r.artifact is None]
    say(
        f"{len(built)} of {len(report.results)} built for {report.arch} with NVRTC {report.nvrtc}"
        + (f", {cached} of them from the cache." if cached else ".")
    )
    for artifact in built:
        for line in artifact.diagnostics:
            say(f"diagnostic: {artifact.variant.config}: {one_line(line)}")
    for result in failed:
        how = f"{result.outcome.replace('_', ' ')}: {one_line(result.reason)}"
        say(f"failed: {result.request.variant.config}: {how}")
    for variant, why in report.rejected:
        say(f"rejected: {variant.config}: {why.constraint}: {why.reason}")
