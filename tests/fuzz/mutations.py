"""Damaged texts: what a slip, a bad copy or a killed program leaves, from a fixed seed."""

import random
import re
from collections.abc import Iterator, Sequence

CHARACTERS = " \t\n\r,;:|+-_/.(){}[]<>\"'`=%#\\0123456789abexABENX\u00a0\u0664\u2502\u00e9\0"
_VALUE = re.compile(r'"[^"\n]*"|[^\s,:{}\[\]"]+')


def mutants(
    text: str, count: int, rng: random.Random, *, pieces: Sequence[str] = ()
) -> Iterator[str]:
    """`count` texts, each `text` with one to three changes; `pieces` are inserted or appended
    among others."""
    for _ in range(count):
        changed = text
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            changed = _changed(changed, rng, pieces)
        yield changed


def _changed(text: str, rng: random.Random, pieces: Sequence[str]) -> str:
    place = rng.randrange(len(text) + 1)
    end = min(len(text), place + rng.choice((1, 1, 1, 2, 4, 12, 40)))
    character = rng.choice(CHARACTERS)
    match rng.randrange(11 if pieces else 8):
        case 0:
            return text[:place] + text[end:]
        case 1:
            return text[:place] + character + text[place:]
        case 2:
            return text[:place] + character + text[place + 1 :]
        case 3:
            return (
                text[:place]
                + text[place + 1 : place + 2]
                + text[place : place + 1]
                + text[place + 2 :]
            )
        case 4:
            return text[:end] + text[place:]  # a part twice
        case 5:
            return text[:place]  # cut short
        case 6:
            return text[:place] + text[place:end].swapcase() + text[end:]
        case 7:
            other = rng.randrange(len(text) + 1)
            return text[:other] + text[place:end] + text[other:]
        case 8:
            return text[:place] + rng.choice(pieces) + text[place:]
        case 9 if value := _VALUE.search(text, place):
            return text[: value.start()] + rng.choice(pieces) + text[value.end() :]
        case _:
            return text + rng.choice("+ ,;|/-\t") + rng.choice(pieces)
