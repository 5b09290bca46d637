"""A reader of short forms that shares nothing with the program: by hand, character by character,
with words of its own.  What it refuses or reads otherwise, the program must not read."""

QUOTES = "\"'`“”‘’"
SM80_FLAGS = ("async", "eager", "swizzled", "buffer", "opt_softmax", "interleave", "pingpong")
SM80_ORDERS = ("few_ahead", "far_ahead", "short_runs", "shared_maxima")  # from 1
SM90_FLAGS = (
    *("pingpong", "overlap", "cross_tile_overlap", "early_test_wait", "single_loop"),
    *("rows_in_turn", "adaptive_max"),
)
# Word: field, value.
SM90_CHOICES = {
    "thresholded_rescale": ("rescale", 1),
    "stale_max": ("rescale", 2),
    "exact_max": ("rescale", 3),
    "watched_max": ("rescale", 4),
    "static": ("scheduler", 1),
    "dynamic": ("scheduler", 2),
    "longest_first": ("order", 1),
}
SM90_OLD = {
    "carry": "cross_tile_overlap",
    "trusting_rescale": "stale_max",
    "lazy_rescale": "thresholded_rescale",
    "early_look": "early_test_wait",
}

Read = dict[str, int] | None


def read(text: str, d_head: int) -> Read:
    """What a short form says, by the words of the form itself; None if it is none."""
    bare = text.strip()
    while len(bare) > 1 and bare[0] in QUOTES and bare[-1] in QUOTES:
        bare = bare[1:-1].strip()
    inside, colon, after = bare.partition(")")
    rest = after.lstrip()
    if not colon or not rest.startswith(":"):
        return None
    before, parenthesis, numbers = inside.partition("(")
    if not parenthesis or "(" in numbers:
        return None
    words = [w.strip() for w in rest[1:].split("+")]
    parts = [p.strip() for p in numbers.split(",")]
    name = before.strip()
    if name in ("", "sm80:"):
        return _sm80(parts, words, d_head)
    if name == "sm90" or name == "sm90:sm90":
        return _sm90(parts, words, d_head)
    return None


def _number(text: str) -> int | None:
    if not 0 < len(text) < 10 or any(c not in "0123456789" for c in text):
        return None
    return int(text)


def _dtype(text: str) -> int | None:
    return {"fp16": 5, "5": 5, "bf16": 15, "15": 15}.get(text.lower())


def _sm80(parts: list[str], words: list[str], d_head: int) -> Read:
    if len(parts) == 4:
        parts = [parts[0], str(d_head), *parts[1:]]
    if len(parts) != 5:
        return None
    read: dict[str, int] = {}
    numbers = [_dtype(parts[0]), *(_number(p) for p in parts[1:])]
    for name, number in zip(("dtype", "d_head", "B_r", "B_c", "n_warps"), numbers, strict=True):
        if number is None:
            return None
        read[name] = number
    for word in words:
        found: list[tuple[str, int]] = []
        pieces = word.split("_")
        if word in SM80_FLAGS:
            found = [(word, 1)]
        elif word in SM80_ORDERS:
            found = [("product_order", 1 + SM80_ORDERS.index(word))]
        elif len(pieces) == 5 and pieces[0] == "load" and pieces[4] == "tiles":
            for name, piece in zip("QKV", pieces[1:4], strict=True):
                number = _number(piece)
                if number is None:
                    return None
                found.append((name, number))
        elif len(pieces) == 2 and pieces[0] in ("stages", "rescale"):
            number = _number(pieces[1])
            if number is None:
                return None
            found = [(pieces[0], number)]
        elif word.startswith("d_head_v_"):
            number = _number(word[len("d_head_v_") :])
            if number is None:
                return None
            found = [("d_head_v", number)]
        if not found or any(name in read for name, _ in found):
            return None
        read |= dict(found)
    if "Q" not in read:
        return None
    if read.get("d_head_v") == read["d_head"]:
        read["d_head_v"] = 0
    usual = {**dict.fromkeys(SM80_FLAGS, 0), "stages": 1, "rescale": 0, "product_order": 0}
    return {**usual, "d_head_v": 0, **read}


def _sm90(parts: list[str], words: list[str], d_head: int) -> Read:
    if len(parts) > 1 and "x" in parts[1]:
        parts = [parts[0], str(d_head), *parts[1:]]
    if len(parts) not in (3, 4) or parts[2].count("x") != 1:
        return None
    rows, keys = (_number(p.strip()) for p in parts[2].split("x"))
    dtype, head = _dtype(parts[0]), _number(parts[1])
    if rows is None or keys is None or dtype is None or head is None or rows % 64:
        return None
    if len(parts) == 4 and _number(parts[3]) != rows // 64:
        return None
    read = {"dtype": dtype, "d_head": head, "warpgroups": rows // 64, "B_c": keys}
    said: dict[str, int] = {}
    for word in words:
        found = SM90_OLD.get(word, word)
        name, _, digits = found.rpartition("_")
        number = _number(digits)
        name = "min_ctas_per_sm" if name == "ctas" else name
        if found in SM90_FLAGS:
            meant = [(found, 1)]
        elif found in SM90_CHOICES:
            meant = [SM90_CHOICES[found]]
        elif number is not None and name in (
            *("stages", "q_stages", "min_ctas_per_sm", "d_head_v", "splits"),
        ):
            meant = [(name, number)]
        else:
            return None
        if word == "trusting_rescale" and head in (64, 256):
            meant.append(("single_loop", 1))
        if any(name in said for name, _ in meant):
            return None
        said |= dict(meant)
    if "stages" not in said:
        return None
    if said.get("d_head_v") == head:
        said["d_head_v"] = 0
    usual = dict.fromkeys((*SM90_FLAGS, "rescale", "scheduler", "order", "d_head_v"), 0)
    return {**usual, "q_stages": 1, "min_ctas_per_sm": 1, "splits": 1, **read, **said}
