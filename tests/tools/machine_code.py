"""What a cubin's instructions are, as far as tests ask: which lie in the loops over key blocks."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from fa_tune.core.model import Artifact

MOST_KEPT_BYTES = 4  # in local memory, and not in the loops over key blocks
_LABEL = re.compile(r"^(\.L_x_\d+):")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?(\S.*?)\s*;")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")


def disassembled(cubin: Path) -> str:
    """The machine code; raises RuntimeError where nvdisasm is not installed."""
    from cuda.pathfinder import find_nvidia_binary_utility

    if (nvdisasm := find_nvidia_binary_utility("nvdisasm")) is None:
        raise RuntimeError("nvdisasm is missing; it comes with fa-tune[test]")
    return subprocess.run(
        [nvdisasm, "-c", cubin], capture_output=True, text=True, check=True
    ).stdout


def innermost_loops_with(operation: str, text: str) -> list[list[str]]:
    """The instructions of every loop that has `operation` and holds no smaller loop that has it.

    A loop is what can be between a branch back and its target, which every way to the branch
    passes: a wait that goes on elsewhere and comes back is none."""
    blocks, following = _blocks(text)
    dominators = _dominators(following)
    loops: dict[int, set[int]] = {}
    for source, targets in enumerate(following):
        for head in targets & dominators[source]:
            loops.setdefault(head, {head}).update(_between(head, source, following))
    having = [
        body
        for body in loops.values()
        if any(i.startswith(operation) for block in body for i in blocks[block])
    ]
    return [
        [i for block in sorted(body) for i in blocks[block]]
        for body in having
        if not any(other < body for other in having)
    ]


def of_local_memory(code: list[str]) -> list[str]:
    """Those that reach registers' places in local memory."""
    return [i for i in code if re.match(r"(STL|LDL)\b", i)]


def assert_no_key_block_spills(artifact: Artifact, name: object) -> None:
    """One word of a thread of an sm90 kernel may be kept in local memory from tile to tile;
    nothing of the loops over key blocks, where a tile's time goes."""
    resources = artifact.resources
    assert resources.spill_load_bytes <= MOST_KEPT_BYTES, name
    assert resources.spill_store_bytes <= 2 * MOST_KEPT_BYTES, name
    if resources.spill_load_bytes or resources.spill_store_bytes:
        loops = innermost_loops_with("HGMMA", disassembled(Path(artifact.cubin)))
        assert loops, name
        assert [of_local_memory(code) for code in loops] == [[]] * len(loops), name


def _blocks(text: str) -> tuple[list[list[str]], list[set[int]]]:
    """Runs of instructions without a way in or out between, and which may follow each."""
    blocks: list[list[str]] = [[]]
    ways: list[tuple[set[str], bool]] = []  # where to, and whether also on to the next
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if m := _LABEL.match(line):
            if blocks[-1]:
                blocks.append([])
                ways.append((set(), True))
            labels[m[1]] = len(blocks) - 1
        elif m := _INSTRUCTION.search(line):
            blocks[-1].append(m[2])
            if m[2].startswith(("BRA", "EXIT")):
                ways.append((set(_TARGET.findall(m[2])), m[1] is not None))
                blocks.append([])
    ways.append((set(), False))
    return blocks, [
        {labels[label] for label in to} | ({i + 1} if on and i + 1 < len(blocks) else set())
        for i, (to, on) in enumerate(ways)
    ]


def _dominators(following: list[set[int]]) -> list[set[int]]:
    """For every block those that every way there from the first one passes, itself included."""
    before: list[set[int]] = [set() for _ in following]
    for source, targets in enumerate(following):
        for target in targets:
            before[target].add(source)
    dominators = [set(range(len(following))) for _ in following]
    dominators[0] = {0}
    changed = True
    while changed:
        changed = False
        for block in range(1, len(following)):
            ways_in = [dominators[source] for source in before[block]]
            found = {block} | (set.intersection(*ways_in) if ways_in else set())
            changed |= found != dominators[block]
            dominators[block] = found
    return dominators


def _between(head: int, source: int, following: list[set[int]]) -> set[int]:
    """Blocks from which `source` can be reached without passing `head`."""
    found, new = {source}, {source}
    while new := {b for b, to in enumerate(following) if b != head and to & new} - found:
        found |= new
    return found
