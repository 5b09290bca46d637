"""What older releases called the knobs of the `sm90` family, and the knobs that are gone.

Recordings, registries and users' notes have these words.  A word that only changed is read as
the present one.  A removed knob is refused: no kernel of today does what it did.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from fa_tune.core.errors import InvalidConfig

_RENAMED = {
    "carry": "cross_tile_overlap",
    "trusting_rescale": "stale_max",
    "lazy_rescale": "thresholded_rescale",
    "early_look": "early_test_wait",
}
_RENAMED_NUMBERS = {"ctas": "min_ctas_per_sm"}
# Word: knob, where they differ.
_REMOVED = {
    "pin": "pin",
    "q_registers": "q_registers",
    "early_rescale": "early_rescale (Rescale.BEFORE_PRODUCT)",
    "paired": "paired (Order.PAIRED)",
    "split_diagonal": "split_diagonal",
    "stagger": "stagger",
}
_REMOVED_NUMBERS = ("v_stages", "m_tiles", "cluster")
# With trusting_rescale these had what single_loop says now.
_SINGLE_LOOP_HEADS = (64, 256)

# The fields of the older struct.
FIELDS = (
    *("dtype", "d_head", "B_r", "B_c", "consumers", "stages", "q_stages", "pingpong", "overlap"),
    *("pin", "q_registers", "carry", "rescale", "scheduler", "order", "v_stages", "m_tiles"),
    *("cluster", "ctas", "split_diagonal", "early_look", "stagger"),
)
_CHOICES = {
    "rescale": ("", "early_rescale", "lazy_rescale", "trusting_rescale"),
    "scheduler": ("", "static", "dynamic"),
    "order": ("", "longest_first", "paired"),
}
_MEMBERS = {
    "rescale": ("EACH_BLOCK", "BEFORE_PRODUCT", "LAZY", "TRUST"),
    "scheduler": ("SINGLE", "STATIC", "DYNAMIC"),
    "order": ("LINEAR", "LONGEST_FIRST", "PAIRED"),
}
_USUAL = {"q_stages": "1", "v_stages": "0", "m_tiles": "1", "cluster": "1", "ctas": "1"}


def translated(words: Sequence[str], d_head: int, shown: str) -> Iterator[str]:
    """The present words for these; raises InvalidConfig, naming it, for a removed knob."""
    for word in words:
        number = re.fullmatch(r"(\w+?)_([0-9]{1,9})", word)
        if word in _REMOVED or (number and number[1] in _REMOVED_NUMBERS):
            knob = _REMOVED.get(word) or word
            raise InvalidConfig(f"the knob {knob} in {shown} was removed: it was never fastest")
        if number and number[1] in _RENAMED_NUMBERS:
            yield f"{_RENAMED_NUMBERS[number[1]]}_{number[2]}"
        else:
            yield _RENAMED.get(word, word)
        if word == "trusting_rescale" and d_head in _SINGLE_LOOP_HEADS:
            yield "single_loop"


def short_form(values: Sequence[str], shown: str) -> str:
    """The older short form of an older struct's values, which are without their types."""
    named = dict(zip(FIELDS, (v.rpartition("::")[2] for v in values), strict=True))
    dtype = {"5": "FP16", "15": "BF16"}.get(named["dtype"], named["dtype"])
    words = [f"stages_{named['stages']}"]
    for name in FIELDS[FIELDS.index("q_stages") :]:
        value = named[name]
        if name in _CHOICES:
            words.append(_choice(name, value, shown))
        elif name in _USUAL:
            words.append("" if value == _USUAL[name] else f"{name}_{value}")
        elif value in ("1", "true"):
            words.append(name)
        elif value not in ("0", "false"):
            raise InvalidConfig(f"{name} cannot be {value[:40]} in {shown}")
    tile = f"{named['B_r']}x{named['B_c']}, {named['consumers']}"
    return f"sm90({dtype}, {named['d_head']}, {tile}): {'+'.join(filter(None, words))}"


def _choice(name: str, value: str, shown: str) -> str:
    members = _MEMBERS[name]
    if value in members:
        return _CHOICES[name][members.index(value)]
    if value.isdigit() and int(value) < len(members):
        return _CHOICES[name][int(value)]
    raise InvalidConfig(f"{name} cannot be {value[:40]} in {shown}")
