"""`fa-tune build`."""

from __future__ import annotations

from typing import Any

import click

from fa_tune.commands.shared.fitted_table import fitted_table
from fa_tune.commands.shared.grouped_help import GroupedCommand
from fa_tune.commands.shared.option_groups import Output, machine_options, output_options
from fa_tune.commands.shared.options import (
    d_head_option,
    family_option,
    field_option,
    kernels_option,
    quiet_option,
)
from fa_tune.commands.shared.output import (
    one_line,
    rejected_objects,
    say,
    write_json,
    write_table_csv,
)
from fa_tune.commands.shared.progress import watching
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.model import Resources
from fa_tune.core.options import MachineOptions
from fa_tune.tune import single
from fa_tune.tune.results import BuildReport

SCHEMA = "fa-tune-build-1"
_HEADINGS = (
    *("Kernel Name", "Regs", "Spill st (B)", "Spill ld (B)", "Stack (B)", "Smem (KiB)"),
    *("CTAs/SM", "Compile (s)"),
)
_USED = (
    *("registers", "spill_store_bytes", "spill_load_bytes", "stack_bytes"),
    *("static_smem_bytes", "dynamic_smem_bytes", "threads", "ctas_per_sm"),
)
_CSV_HEADINGS = (
    *("variant", "arch", "outcome", "reason", *_USED),
    *("compile_s", "cached", "diagnostics"),
)


@click.command("build", cls=GroupedCommand)
@kernels_option
@family_option
@d_head_option
@field_option("d_head_v")
@output_options("csv")
@machine_options("arch", "jobs", "compile_timeout_s", "cache_dir")
@quiet_option
def command(
    kernels: str,
    families: tuple[str, ...],
    d_heads: tuple[int, ...],
    d_head_v: int,
    machine: MachineOptions,
    output: Output,
    quiet: bool,
) -> None:
    """Compile a set of configs and show registers, spills, shared memory and occupancy.

    Compiles with NVRTC on all cores, for any architecture; no GPU is needed. Earlier builds come
    from the cache. Failed builds are listed with their reason; exit status 4 if nothing could be
    built.

    \b
    Examples:
      fa-tune build --arch sm_90
      fa-tune build --kernels prog-all --arch sm_80 --csv resources.csv
    """
    with watching(quiet) as progress:
        report = single.build(
            kernels, d_heads, machine, progress, names=families, d_head_v=d_head_v
        )
    objects = _objects(report)
    if output.csv is not None:
        rows = [[_csv_cell(o[name]) for name in _CSV_HEADINGS] for o in objects]
        write_table_csv(_CSV_HEADINGS, rows, output.csv)
    if output.as_json:
        write_json(
            {
                "schema": SCHEMA,
                "arch": report.arch,
                "nvrtc": report.nvrtc,
                "builds": objects,
                "rejected": rejected_objects(report.rejected),
            }
        )
    elif output.is_table:
        _show(report)
    if not any(result.artifact for result in report.results):
        reasons = [r.reason for r in report.results] + [why.reason for _, why in report.rejected]
        raise NoUsableVariant(f"nothing was built: {reasons[0] if reasons else 'the set is empty'}")


def _show(report: BuildReport) -> None:
    built = [r.artifact for r in report.results if r.artifact is not None]
    rows = [
        [artifact.variant.config, *_cells(artifact.resources), f"{artifact.compile_s:.2f}"]
        for artifact in built
    ]
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
        why = f"{result.outcome.replace('_', ' ')}: {one_line(result.reason)}"
        say(f"failed: {result.request.variant.config}: {why}")
    for variant, rejected in report.rejected:
        say(f"rejected: {variant.config}: {rejected.constraint}: {rejected.reason}")


def _cells(used: Resources) -> list[str]:
    smem_kib = (used.static_smem_bytes + used.dynamic_smem_bytes) / 1024
    return [
        *(str(getattr(used, name)) for name in _USED[:4]),
        *(f"{smem_kib:g}", str(used.ctas_per_sm)),
    ]


def _objects(report: BuildReport) -> list[dict[str, Any]]:
    """The builds; what a failed one lacks is None."""
    found = []
    for result in report.results:
        artifact = result.artifact
        used = artifact.resources if artifact else None
        one = {
            "variant": result.request.variant.key,
            "arch": result.request.arch,
            "outcome": str(result.outcome),
            "reason": result.reason or None,
            **{name: getattr(used, name, None) for name in _USED},
            "compile_s": artifact.compile_s if artifact else None,
            "cached": result.cached,
            "diagnostics": list(artifact.diagnostics) if artifact else [],
        }
        found.append(one)
    return found


def _csv_cell(value: Any) -> Any:
    if isinstance(value, list):
        return " | ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else value
