"""`fa-tune build`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fa_tune.commands.shared.fitted_table import fitted_table
from fa_tune.commands.shared.grouped_help import GroupedCommand
from fa_tune.commands.shared.option_groups import machine_options
from fa_tune.commands.shared.options import (
    csv_option,
    d_head_option,
    family_option,
    field_option,
    json_option,
    kernels_option,
    quiet_option,
    refuse_both,
)
from fa_tune.commands.shared.output import one_line, say, write_json, write_table_csv
from fa_tune.commands.shared.parameters import STDOUT
from fa_tune.commands.shared.progress import watching
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.options import MachineOptions
from fa_tune.tune import single
from fa_tune.tune.results import BuildReport

SCHEMA = "fa-tune-build-1"
_HEADINGS = (
    "Kernel Name",
    "Regs",
    "Spill st (B)",
    "Spill ld (B)",
    "Stack (B)",
    "Smem (KiB)",
    "CTAs/SM",
    "Compile (s)",
)
_CSV_HEADINGS = (
    "variant",
    "arch",
    "outcome",
    "reason",
    "registers",
    "spill_store_bytes",
    "spill_load_bytes",
    "stack_bytes",
    "static_smem_bytes",
    "dynamic_smem_bytes",
    "threads",
    "ctas_per_sm",
    "compile_s",
    "cached",
    "diagnostics",
)


@click.command("build", cls=GroupedCommand)
@kernels_option()
@family_option()
@d_head_option()
@field_option("d_head_v")
@csv_option()
@json_option()
@machine_options("arch", "jobs", "compile_timeout_s", "cache_dir")
@quiet_option()
def command(
    kernels: str,
    names: tuple[str, ...],
    d_heads: tuple[int, ...],
    d_head_v: int,
    machine: MachineOptions,
    csv: Path | None,
    as_json: bool,
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
    refuse_both(csv, as_json)

    with watching(quiet) as progress:
        report = single.build(kernels, d_heads, machine, progress, names=names, d_head_v=d_head_v)
    if csv is not None:
        objects = [_object(report, i) for i in range(len(report.results))]
        rows = [[_csv_cell(o[name]) for name in _CSV_HEADINGS] for o in objects]
        write_table_csv(_CSV_HEADINGS, rows, csv)
    if as_json:
        write_json(_document(report))
    elif csv != STDOUT:
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
        rows.append(
            [
                artifact.variant.config,
                str(used.registers),
                str(used.spill_store_bytes),
                str(used.spill_load_bytes),
                str(used.stack_bytes),
                f"{smem_kib:g}",
                str(used.ctas_per_sm),
                f"{artifact.compile_s:.2f}",
            ]
        )
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


def _document(report: BuildReport) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "arch": report.arch,
        "nvrtc": report.nvrtc,
        "builds": [_object(report, i) for i in range(len(report.results))],
        "rejected": [
            {"variant": variant.key, "constraint": why.constraint, "reason": why.reason}
            for variant, why in report.rejected
        ],
    }


def _object(report: BuildReport, index: int) -> dict[str, Any]:
    """One build; what a failed one lacks is None."""
    result = report.results[index]
    artifact = result.artifact
    used = artifact.resources if artifact else None
    return {
        "variant": result.request.variant.key,
        "arch": result.request.arch,
        "outcome": str(result.outcome),
        "reason": result.reason or None,
        "registers": used.registers if used else None,
        "spill_store_bytes": used.spill_store_bytes if used else None,
        "spill_load_bytes": used.spill_load_bytes if used else None,
        "stack_bytes": used.stack_bytes if used else None,
        "static_smem_bytes": used.static_smem_bytes if used else None,
        "dynamic_smem_bytes": used.dynamic_smem_bytes if used else None,
        "threads": used.threads if used else None,
        "ctas_per_sm": used.ctas_per_sm if used else None,
        "compile_s": artifact.compile_s if artifact else None,
        "cached": result.cached,
        "diagnostics": list(artifact.diagnostics) if artifact else [],
    }


def _csv_cell(value: Any) -> Any:
    if isinstance(value, list):
        return " | ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else value
