"""Proves that two source trees compile to the same machine code, kernel by kernel.

    same_machine_code.py hash BEFORE --out before.json     compile the kernels of one tree
    same_machine_code.py hash AFTER --like before.json --out after.json
    same_machine_code.py compare before.json after.json    exit status 1 if any differs
    same_machine_code.py compare before.json after.json --prove "what has changed"

A tree is a folder of this repository or a git revision of it.  The first `hash` lists the
kernels of the named sets and of the recordings; `--like` takes the list of another one, whose
configs the tree parses: old short forms are read, and what no longer can be written is listed
as gone.  `--family` takes those of one family, which is all that a change in its own folder needs;
what is not hashed is not proven.  Compared are the instructions, constants and register count in
the cubin, not names of symbols, and not parameters that no instruction reads.  With `--ptx` only
PTX is compared, in half the time: what ptxas is given decides what comes out of it.

`--prove` adds to profiles/equal_sources.json what was found equal: of each family whose sources
changed, the head dimensions of which no kernel differs or is missing; with `--dtype` of kernels of
that type alone, with `--known-lengths` of those alone that run where the host knows lengths.

An interrupted `hash` goes on where it was when it is started again.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fa_tune.core import codec
from fa_tune.families.equal_sources import Proof, load, save
from hash_kernels import GONE, HEAD_DIMS, RECORDED

SETS = ("fast", "prog", "tune")
EQUAL, DIFFERENT, UNKNOWN = "equal", "DIFFERENT", "not compared"
ROOT = Path(__file__).resolve().parents[1]
CHILD = Path(__file__).resolve().with_name("hash_kernels.py")


@contextlib.contextmanager
def tree_of(name: str) -> Iterator[Path]:
    """The folder of a tree; a git revision is unpacked for the time."""
    if Path(name).is_dir():
        yield Path(name).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="tree-") as folder:
        packed = subprocess.run(
            ["git", "archive", name], cwd=ROOT, check=True, capture_output=True
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        yield Path(folder)


def _child(tree: Path, *arguments: str) -> subprocess.Popen[str]:
    before = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(tree), before)))}
    return subprocess.Popen(
        [sys.executable, str(CHILD), *arguments],
        cwd=tree,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def hash_tree(arguments: argparse.Namespace) -> int:
    """The `hash` command."""
    out: Path = arguments.out
    done: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    with tree_of(arguments.tree) as tree:
        if arguments.like:
            kernels = [json.loads(key) for key in json.loads(arguments.like.read_text())]
        else:
            child = _child(tree, "list", ",".join(arguments.sets))
            kernels = [json.loads(line) for line in child.communicate()[0].splitlines()]
        kernels = _wanted(kernels, arguments.family, arguments.d_head)
        todo = _todo(kernels, done, "ptx" if arguments.ptx else "code")
        print(f"{len(todo)} of {len(kernels)} kernels to compile", file=sys.stderr)
        own = threading.local()

        def answered(key: str) -> tuple[str, Any]:
            if not hasattr(own, "child"):  # which ends with this program
                own.child = _child(tree, "serve", *(["--ptx"] if arguments.ptx else []))
            return key, _answer(own.child, key)

        with ThreadPoolExecutor(arguments.jobs) as workers:
            for number, (key, found) in enumerate(workers.map(answered, todo), start=1):
                done[key] = found
                if number % 20 == 0:
                    _save(out, done)
                    print(f"{number} of {len(todo)}", file=sys.stderr)
        _save(out, done)
    return 0


def _wanted(
    kernels: Iterable[Mapping[str, str]], families: Sequence[str], d_heads: Sequence[int]
) -> list[str]:
    """Each of the kernels once, as JSON; of these families and head dimensions alone, where any
    are named."""
    return list(
        dict.fromkeys(
            json.dumps(kernel, sort_keys=True)
            for kernel in kernels
            if (not families or kernel["family"] in families)
            and (not d_heads or d_head_of(kernel) in d_heads)
        )
    )


def _todo(keys: Iterable[str], done: Mapping[str, Any], wanted: str) -> list[str]:
    """The kernels of which `wanted` is not known.  In an order that has nothing to do with the
    sets': what is done early is a sample."""
    unknown = (k for k in keys if not {wanted, GONE} & done.get(k, {}).keys())
    return sorted(unknown, key=lambda key: hashlib.sha256(key.encode()).digest())


def _answer(child: subprocess.Popen[str], key: str) -> Any:
    """The hashes of a kernel, by a child that serves."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(key + "\n")
    child.stdin.flush()
    answer = child.stdout.readline()
    if not answer:
        raise RuntimeError(f"the compiler died on {key}")
    return json.loads(answer)


def d_head_of(kernel: Mapping[str, str]) -> int:
    """The second number of a short form."""
    return int(kernel["config"].split(",")[1])


def dtype_of(kernel: Mapping[str, str]) -> str:
    """The first word of a short form's parentheses."""
    return kernel["config"].partition("(")[2].partition(",")[0]


def counts_tiles(kernel: Mapping[str, str]) -> bool:
    """Whether it is for lengths that the device alone knows."""
    return "tile_keys" in kernel["config"]


def _save(path: Path, value: Any) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(value, indent=0))
    new.replace(path)


def outcome(old: Mapping[str, str], new: Mapping[str, str] | None) -> str:
    """How a kernel of one tree compares with that of the other."""
    if new is None:
        return UNKNOWN
    if GONE in old or GONE in new:
        return GONE
    if "ptx" in old and old["ptx"] == new.get("ptx"):  # the same input to ptxas
        return EQUAL
    compared = "code" if "code" in old and "code" in new else "ptx"
    if compared not in old or compared not in new:
        return UNKNOWN
    return EQUAL if old[compared] == new[compared] else DIFFERENT


def compare(arguments: argparse.Namespace) -> int:
    """The `compare` command."""
    before = json.loads(arguments.before.read_text())
    after = json.loads(arguments.after.read_text())
    outcomes = {key: outcome(old, after.get(key)) for key, old in before.items()}
    for key, found in outcomes.items():
        if found == GONE:
            print(f"gone: {key}: {after[key].get(GONE) or before[key][GONE]}")
        elif found == DIFFERENT:
            print(f"different: {key}")
    print(", ".join(f"{n} {word}" for word, n in sorted(Counter(outcomes.values()).items())))
    if arguments.prove:
        if dtype := arguments.dtype:
            outcomes = {key: o for key, o in outcomes.items() if dtype_of(json.loads(key)) == dtype}
        if arguments.known_lengths:
            outcomes = {key: o for key, o in outcomes.items() if not counts_tiles(json.loads(key))}
        made = proofs(before, after, outcomes, arguments.prove)
        said = {"dtypes": [dtype] if dtype else [], "known_lengths": arguments.known_lengths}
        made = [proof | {name: held for name, held in said.items() if held} for proof in made]
        known = [*load(arguments.proofs), *codec.load(tuple[Proof, ...], made)]
        save(known, arguments.proofs)
        print(f"{len(made)} added to {arguments.proofs}")
    return 1 if DIFFERENT in outcomes.values() else 0


def proofs(
    before: Mapping[str, Any], after: Mapping[str, Any], outcomes: Mapping[str, str], what: str
) -> list[dict[str, Any]]:
    """A proof, as in profiles/equal_sources.json, for each family with other sources."""
    kernels = {key: json.loads(key) for key in outcomes}
    found = []
    for family in sorted({kernel["family"] for kernel in kernels.values()}):
        mine = {key: outcomes[key] for key, kernel in kernels.items() if kernel["family"] == family}
        of = {
            word: [k for k, o in mine.items() if o == word] for word in (EQUAL, DIFFERENT, UNKNOWN)
        }
        open_d_heads = {d_head_of(kernels[key]) for key in (*of[DIFFERENT], *of[UNKNOWN])}
        equal = [key for key in of[EQUAL] if d_head_of(kernels[key]) not in open_d_heads]
        sources = [
            _one(family, {tree[key].get("sources") for key in equal}) for tree in (before, after)
        ]
        if not equal or sources[0] == sources[1]:
            continue
        d_heads = sorted({d_head_of(kernels[key]) for key in equal})
        code = all("code" in before[key] and "code" in after[key] for key in equal)
        compared = "instructions, constants and registers" if code else "what ptxas is given"
        found.append(
            {
                "family": family,
                "sources": sources,
                "how": f"{what}; tools/same_machine_code.py: {compared} equal",
                "date": datetime.now(UTC).date().isoformat(),
                "nvrtc": _one(family, {after[key].get("nvrtc") for key in equal}),
                "kernels": len(equal),
                "d_heads": [] if set(HEAD_DIMS) <= set(d_heads) else d_heads,
            }
        )
    return found


def _one(family: str, values: set[str | None]) -> str:
    """The only one of values that kernels were hashed with, "" where there are none."""
    if None in values or len(values) > 1:
        raise SystemExit(
            f"the kernels of {family} were hashed from several sources, by several compilers or by "
            "an older same_machine_code.py: hash both trees again, each into a new file"
        )
    return next(iter(values), "") or ""


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    hashing = commands.add_parser("hash")
    hashing.add_argument("tree")
    hashing.add_argument("--out", type=Path, required=True)
    hashing.add_argument("--like", type=Path)
    hashing.add_argument("--sets", type=lambda s: s.split(","), default=[RECORDED, *SETS])
    hashing.add_argument(
        "--family", type=lambda s: s.split(","), default=[], help="only these, sm80,sm90 say"
    )
    hashing.add_argument(
        "--d-head",
        type=lambda s: [int(n) for n in s.split(",")],
        default=[],
        help="only these, 64,128 say",
    )
    hashing.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    hashing.add_argument("--ptx", action="store_true")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--prove", metavar="WHAT", help="add a proof; say what has changed")
    comparing.add_argument("--dtype", choices=("FP16", "BF16"), help="prove kernels of it alone")
    comparing.add_argument("--known-lengths", action="store_true", help="prove no others")
    comparing.add_argument(
        "--proofs", type=Path, default=ROOT / "profiles/equal_sources.json", help="the file of them"
    )
    arguments = parser.parse_args()
    command = hash_tree if arguments.command == "hash" else compare
    return command(arguments)


if __name__ == "__main__":
    sys.exit(main())
