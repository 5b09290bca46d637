"""Help whose options stand under headings, those that are needed most first."""

from __future__ import annotations

import click

from fa_tune.core.options import COMMON_FIELDS

OWN = "Options"  # what only this command has

# Heading -> the names of the parameters under it.
HEADINGS: dict[str, tuple[str, ...]] = {
    "Workloads": (
        *(
            "captured",
            "models",
            "seq_lens",
            "seq_len",
            "d_heads",
            "d_head",
            "d_head_v",
            "dtypes",
            "dtype",
        ),
        *("masks", "mask", "causal"),
        *("bottom_right", "batch", "batches", "heads", "kv_heads", "seq_lens_kv", "seq_len_kv"),
        *(name for name in COMMON_FIELDS if name != "d_head_v"),
        *("workload", "workloads"),
    ),
    "Kernels": ("kernels", "compared", "few_queries", "by_size", "families", "axes"),
    OWN: (),
    "Result": (
        *("limit", "wide", "as_json", "csv", "form", "sort", "record", "export"),
        *("html", "against", "to", "plot"),
    ),
    "Measuring": (
        *("profiler", "runs", "references", "users", "metrics", "inputs", "regime", "seed"),
        "clock_control",
    ),
    "Machine and files": (
        *("device", "devices", "ray", "arch", "archs", "jobs", "compile_timeout_s", "ncu"),
        *("recordings", "registry", "cache_dir", "quiet", "help"),
    ),
}
_HEADING = {name: heading for heading, names in HEADINGS.items() for name in names}


class GroupedCommand(click.Command):
    """A command whose help has its options by heading, in the order of `HEADINGS`."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options, one section per heading that has any."""
        for heading, records in self.sections(ctx).items():
            with formatter.section(heading):
                formatter.write_dl(records)

    def sections(self, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
        """The options under each heading that has any, each as its names and its help."""
        found: dict[str, list[tuple[int, tuple[str, str]]]] = {heading: [] for heading in HEADINGS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            heading = _HEADING.get(parameter.name or "", OWN)
            names = HEADINGS[heading]
            place = names.index(parameter.name) if parameter.name in names else 0
            found[heading].append((place, record))
        return {
            heading: [record for _, record in sorted(records, key=lambda one: one[0])]
            for heading, records in found.items()
            if records
        }
