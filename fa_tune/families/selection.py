"""The configs that a user names: a set, or one by its short form."""

from __future__ import annotations

from collections.abc import Sequence

from fa_tune import families
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import EXACT, FAST, DType
from fa_tune.families.base import Config, KernelFamily


def choose_configs(
    kernels: str,
    dtypes: Sequence[DType],
    heads: Sequence[tuple[int, int]],
    chosen: Sequence[KernelFamily],
    *,
    named: bool = False,
    accuracy: str = FAST,
) -> list[Config]:
    """The configs of a set of these families for every dtype and every d_head with its d_head_v
    (no dtypes: the set's own; d_head_v 0: as d_head), or the one config of a short form, which
    tells its family by itself.

    `named`: the families were asked for by name, so a config of another one is refused.
    `accuracy` EXACT: of a set the nearest exact configs.  Raises InvalidConfig.
    """
    if families.is_config(kernels):
        config = stated_config(kernels, [d_head for d_head, _ in heads])
        if named and families.of(config) not in chosen:
            asked = ", ".join(f.name for f in chosen)
            raise InvalidConfig(
                f"the config is of family {families.of(config).name}, but {asked} is asked for"
            )
        check_accuracy(config, accuracy)
        return [config]
    only = tuple(dtypes) or None
    configs = [
        config
        for d_head, d_head_v in heads
        for config in families.named_configs(
            kernels, chosen, dtypes=only, d_head=d_head, d_head_v=d_head_v
        )
    ]
    if not configs:
        raise InvalidConfig(f"the set {kernels!r} has no config for this dtype and d_head")
    return list(dict.fromkeys(c.as_exact() if accuracy == EXACT else c for c in configs))


def check_accuracy(config: Config, accuracy: str) -> None:
    """Raise InvalidConfig for a config that is named and less accurate than is asked for."""
    if accuracy == EXACT and not config.exact:
        raise InvalidConfig(
            f"{config} is not exact: leave --accuracy out, or take {config.as_exact()}"
        )


def stated_config(text: str, d_heads: Sequence[int]) -> Config:
    """The config of a short form; one without a head dimension is for the one that is asked for.

    Raises InvalidConfig for a text that is no config, or leaves open which of several is meant.
    """
    if families.states_d_head(text):
        return families.parse(text)
    if len(d_heads) != 1:
        raise InvalidConfig(f"{text.strip()!r} states no head dimension; write it second")
    return families.parse(text, d_head=d_heads[0])


def note_of_d_head(text: str, config: Config) -> str | None:
    """What is to be said of a short form that leaves the head dimension out: how it was read."""
    if families.states_d_head(text):
        return None
    return f"{text.strip()!r} states no head dimension: read as {families.variant(config).config}"
