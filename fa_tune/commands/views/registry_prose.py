"""A registry entry in plain words: what was chosen, by which rule, and why to believe it."""

from __future__ import annotations

from collections.abc import Sequence

from fa_tune.core import units
from fa_tune.core.comparison import OnInputs
from fa_tune.core.model import BARE_READ, Variant, reference_name
from fa_tune.core.stats import Ratio
from fa_tune.families import family_names
from fa_tune.libraries import label_of
from fa_tune.search.data_dependence import slowdown, worst
from fa_tune.store.registry.schema import Entry

MAX_NAMED = 3  # tied configs that are named


def against(ratio: Ratio) -> str:
    """`4.10 % less time than the default (95 %: 3.90 to 4.31)`."""
    gain = 1.0 - ratio.value
    less = gain >= 0.0
    text = f"{100 * abs(gain):.2f} % {'less' if less else 'more'} time than the default"
    if ratio.interval is None:
        return text
    low, high = ratio.interval
    ends = (1.0 - high, 1.0 - low) if less else (low - 1.0, high - 1.0)
    return f"{text} (95 %: {100 * ends[0]:.2f} to {100 * ends[1]:.2f})"


def without_family(sentence: str) -> str:
    """A decision's sentence with configs as people write them: a short form tells its family
    by itself, so nobody has to read `sm80:` before it."""
    for name in family_names():
        sentence = sentence.replace(f"{name}:", "")
    return sentence


def entry_prose(entry: Entry, name: str) -> str:
    """The whole entry as a paragraph that begins with `name`."""
    text = without_family(entry.reason)
    return f"{name}: " + " ".join(
        [
            text if text.endswith(".") else f"{text}.",
            *_times(entry),
            *_on_inputs(entry),
            *_confirmed(entry),
            *_tied(entry),
            *_origin(entry),
        ]
    )


def data_dependence(figures: Sequence[OnInputs], chosen_on: str) -> list[str]:
    """How much a choice depends on its data: where it does worst against the default, where it
    takes most time, if that is known of paired samples, and its errors."""
    text = []
    if (found := worst(figures)) is not None and found.to_default is not None:
        others = sum(f.to_default is not None for f in figures)
        text.append(
            f"Of {others} kinds of inputs it does worst on {found.inputs}: "
            f"{against(found.to_default)}."
        )
    if (slow := slowdown(figures)) is not None:
        name, times = slow
        text.append(
            f"It takes most time on {name} inputs, {times:.2f} times that on {chosen_on} ones."
            if name != chosen_on
            else f"No other inputs take it more time than {chosen_on} ones."
        )
    if errors := [f"{f.error:.2f} on {f.inputs}" for f in figures if f.error is not None]:
        text.append(f"Its errors over FlashAttention 2's are {', '.join(errors)} inputs.")
    return text


def _on_inputs(entry: Entry) -> list[str]:
    if texts := data_dependence(entry.on_inputs, entry.inputs):
        return texts
    if others := len(entry.per_inputs.keys() - {entry.inputs}):
        kinds = "another kind of inputs" if others == 1 else f"{others} other kinds of inputs"
        return [f"It was measured on {kinds} at other moments, so what they cost is not known."]
    return [f"It was measured on {entry.inputs} inputs alone."]


def _times(entry: Entry) -> list[str]:
    text = f"Its median is {units.format_seconds(entry.median_s)}"
    if entry.interval_s is not None:
        low, high = (units.format_seconds(s) for s in entry.interval_s)
        text += f" (95 %: {low} to {high})"
    samples = "1 sample" if entry.n == 1 else f"{entry.n} samples"
    text += f" of {samples} by {entry.method}, {entry.tflops:.0f} TFLOP/s"
    rate = entry.memory_rate
    parts = []
    if entry.default is None:
        parts.append("no default was measured beside it")
    elif entry.default != entry.chosen and entry.ratio_to_default is not None:
        parts.append(f"in the same rounds it took {against(entry.ratio_to_default)}")
    for key, ratio in entry.ratio_to_references.items():
        if reference_name(key) == BARE_READ:
            continue
        label = label_of(key)
        parts.append(f"it runs at {1.0 / ratio.value:.2f} times the speed of {label}")
    texts = [f"{text}; {'; '.join(parts)}." if parts else f"{text}."]
    return texts if rate is None else [*texts, rate.sentence]


def _confirmed(entry: Entry) -> list[str]:
    found = entry.confirmation
    if found is None:
        if entry.default is None or entry.default == entry.chosen:
            return []
        return ["It was not compared with the default again after the search."]
    which = "it" if found.upheld else found.variant.config
    text = f"Run once more as a program runs it, in a fresh process and {found.n} pairs, "
    text += f"{which} took {against(found.ratio)}: "
    if not found.upheld:
        return [text + "not confirmed, so the default was kept."]
    if found.ratio.value < 1.0:
        return [text + "confirmed."]
    return [text + "no gain there, but no certain loss, so the choice stands."]


def _tied(entry: Entry) -> list[str]:
    leader = _leader(entry)
    others = [v for v in entry.tie_set if v not in (entry.chosen, leader)]
    if leader == entry.chosen:
        if not others:
            return ["No other config measured as fast."]
        return [f"The measurements cannot tell it from {_named(others)}."]
    names = " or ".join(
        [*(["it"] if entry.chosen in entry.tie_set else []), *([_named(others)] if others else [])]
    )
    if not names:
        return [f"{leader.config} measured fastest, and no other config as fast."]
    return [f"The measurements cannot tell the fastest, {leader.config}, from {names}."]


def _leader(entry: Entry) -> Variant:
    """The fastest, whether it was chosen or not."""
    ratios = {runner.variant: runner.ratio.value for runner in entry.runners_up}
    known = [v for v in entry.tie_set if v == entry.chosen or v in ratios]
    return min(known, key=lambda v: ratios.get(v, 1.0), default=entry.chosen)


def _named(variants: Sequence[Variant]) -> str:
    names = [v.config for v in variants[:MAX_NAMED]]
    more = len(variants) - len(names)
    return " or ".join(names) + (f" or {more} more" if more else "")


def _origin(entry: Entry) -> list[str]:
    where = f"on an {entry.gpu.name}, driver {entry.provenance.driver or 'unknown'}"
    verb = "Recorded" if entry.source == "replay" else "Measured"
    text = f"{verb} {entry.provenance.recorded_at[:10]} {where}"
    if entry.verdict is None:
        return [f"{text}; its result was not checked in that run."]
    worst = f"the largest error {entry.verdict.max_abs_error:.2g} of {entry.verdict.limit:.2g}"
    return [f"{text}; its result was right in {entry.verdict.cases} cases, {worst} allowed."]
