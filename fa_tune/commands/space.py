"""`fa-tune space`."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import click

from fa_tune.commands.shared.axes import configs_of, device_limits
from fa_tune.commands.shared.documents import Count, write_document
from fa_tune.commands.shared.grouped_help import GroupedCommand
from fa_tune.commands.shared.option_groups import Output, shared_options
from fa_tune.commands.shared.options import flag
from fa_tune.commands.shared.output import say
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.model import Rejected, Variant
from fa_tune.core.options import SearchOptions
from fa_tune.families import all_families, of, variant
from fa_tune.families.axes import expand
from fa_tune.families.base import Config
from fa_tune.families.template import TemplateFamily
from fa_tune.report.wrap import folded, terminal_width
from fa_tune.tune.candidates import prune_configs

NOT_BY_RULES = ("fast", "wide", "prog", "all")  # sets that the tune rules have no part in
NO_RULES = TemplateFamily.tune_rejection  # of a family that excludes nothing
Explained = Sequence[tuple[Variant, Rejected]]


@dataclass(frozen=True)
class Named:
    """A config that is left out, and the name of the rule."""

    config: str
    name: str
    reason: str


@dataclass(frozen=True)
class Counts:
    """How many configs there are of each kind."""

    kept: Count
    rejected: Mapping[str, Count]
    not_in_tune: Mapping[str, Count]


@dataclass(frozen=True, kw_only=True)
class Space:
    """`fa-tune space --json`"""

    schema: Literal["fa-tune-space-1"]
    arch: str
    kept: tuple[str, ...]
    rejected: tuple[Named, ...]
    not_in_tune: tuple[Named, ...]
    counts: Counts


@click.command("space", cls=GroupedCommand)
@flag(
    "--explain",
    help="Name the constraint and the reason for every config that cannot run, and the rules "
    "that keep configs out of the tune set.",
)
@shared_options(
    *("kernels", "families", "d_heads", "d_head_v", "dtypes", "axes", "arch", "device", "as_json")
)
def command(options: SearchOptions, explain: bool, output: Output) -> None:
    """List the configs of a set, or of axes of your own, that can run on an architecture.

    Constraints exclude configs that cannot run. Rules exclude configs that are not worth trying
    from the tune set; these still run when given by their short form.

    \b
    Examples:
      fa-tune space --kernels tune --arch sm_86 --explain
      fa-tune space --axis B_r=64,128 --axis n_warps=4,8 --explain
    """
    limits, kernels = device_limits(options.machine), options.kernels
    configs = configs_of(options)
    kept, rejected = prune_configs(configs, limits)
    of_tune = [(variant(c), why) for c in kept if (why := of(c).tune_rejection(c))]
    if explain and not options.axes and "(" not in kernels and not kernels.startswith(NOT_BY_RULES):
        of_tune = _left_out_of(configs)
    if output.as_json:
        write_document(
            Space,
            arch=limits.arch,
            kept=[variant(config).config for config in kept],
            rejected=_named(rejected),
            not_in_tune=_named(of_tune),
            counts=Counts(len(kept), _counts(rejected), _counts(of_tune)),
        )
    else:
        _show(limits.arch, kept, rejected, of_tune, explain)
    if not kept:
        why = rejected[0][1]
        raise NoUsableVariant(
            f"none of {len(configs)} configs can run on {limits.arch}: "
            f"{why.constraint}: {why.reason}"
        )


def _left_out_of(chosen: Sequence[Config]) -> list[tuple[Variant, Rejected]]:
    """What the tune rules leave out of the combinations of the values in each tune set."""
    left_out = []
    for family in all_families():
        members = [config for config in chosen if type(config) is family.config_class]
        without_rules = getattr(type(family), "tune_rejection", None) is NO_RULES
        if not members or without_rules:  # millions of combinations, for nothing
            continue
        axes = {
            field.name: sorted({getattr(config, field.name) for config in members})
            for field in dataclasses.fields(family.config_class)
        }
        for config in expand(family.config_class, axes):
            if (why := family.tune_rejection(config)) is not None:
                left_out.append((variant(config), why))
    return left_out


def _say(text: str, indent: str = "") -> None:
    say(folded(text, terminal_width(), indent=indent))


def _show(
    arch: str, kept: Sequence[Config], rejected: Explained, of_tune: Explained, explain: bool
) -> None:
    for config in kept:  # a program gets them whole
        (_say if explain or sys.stdout.isatty() else say)(variant(config).config)
    total = len(kept) + len(rejected)
    say(f"\n{len(kept)} of {total} {'config' if total == 1 else 'configs'} can run on {arch}.")
    if rejected:
        _show_reasons("Cannot run:", rejected, explain)
    if of_tune:
        _show_reasons("Not in the tune set, by its rules:", of_tune, explain)


def _show_reasons(title: str, explained: Explained, each: bool) -> None:
    say(f"\n{title}")
    for name, n in _counts(explained).items():
        members = [(one.config, why.reason) for one, why in explained if why.constraint == name]
        same = len({reason for _, reason in members}) == 1  # no figures that differ
        _say(f"{n:6}  {name}: {members[0][1]}" + ("" if same else ", …"))
        for config, reason in members if each else ():
            _say(config + ("" if same else f": {reason}"), indent=" " * 8)


def _counts(explained: Explained) -> dict[str, int]:
    """How many by rule, the most first."""
    return dict(Counter(why.constraint for _, why in explained).most_common())


def _named(explained: Explained) -> tuple[Named, ...]:
    return tuple(Named(one.config, why.constraint, why.reason) for one, why in explained)
