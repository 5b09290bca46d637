"""Proves that two source trees compile to the same machine code, kernel by kernel.

    same_machine_code.py hash BEFORE --out before.json     compile the kernels of one tree
    same_machine_code.py hash AFTER --like before.json --out after.json
    same_machine_code.py compare before.json after.json    exit status 1 if any differs
    same_machine_code.py compare before.json after.json --prove "what has changed"

A tree is a folder of this repository or a git revision of it.  The first `hash` lists the
kernels of the named sets and of the recordings; `--like` takes the list of another one, whose
configs the tree parses: old short forms are read, and what no longer can be written is listed
as gone.  Compared are the instructions, constants and register count in the cubin, not names
of symbols, and not parameters that no instruction reads.  With `--ptx` only PTX is compared, in
half the time: what ptxas is given decides what comes out of it.

`--prove` adds to profiles/equal_sources.json what was found equal: of each family whose sources
changed, the head dimensions of which no kernel differs or is missing.

An interrupted `hash` goes on where it was when it is started again.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import hashlib
import io
import json
import os
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

SETS = ("fast", "prog", "tune")
HEAD_DIMS = (64, 128, 192, 256)
RECORDED = "recorded"
GONE = "gone"  # the tree cannot write this config
EQUAL, DIFFERENT, UNKNOWN = "equal", "DIFFERENT", "not compared"
ROOT = Path(__file__).resolve().parents[1]

# In the tree's own interpreter ----------------------------------------------------------------


def listed_kernels(sets: list[str]) -> Iterator[dict[str, str]]:
    """The kernels of the sets and of the recordings: family, config, traits."""
    from fa_tune import families

    for name in sets:
        if name == RECORDED:
            yield from _recorded(families)
            continue
        for family in families.all_families():
            for d_head in HEAD_DIMS:
                for config in _configs(family, name, d_head):
                    for traits in ("plain", "causal"):
                        yield _kernel(family.name, family.short_form(config), traits)
    if "fast" in sets:  # what sequences of any length and training ask for
        for family in families.all_families():
            for d_head in HEAD_DIMS:
                for config in family.configs("fast", d_head=d_head)[:4]:
                    for traits in ("ragged", "causal+ragged+lse"):
                        yield _kernel(family.name, family.short_form(config), traits)


def _configs(family: Any, name: str, d_head: int) -> list[Any]:
    """A set's configs; none where the family has no such set."""
    from fa_tune.core.errors import InvalidConfig

    try:
        return list(family.configs(name, d_head=d_head))
    except InvalidConfig:
        return []


def _kernel(family: str, config: str, traits: str) -> dict[str, str]:
    return {"family": family, "config": config, "traits": traits}


def _recorded(families: Any) -> Iterator[dict[str, str]]:
    for path in sorted((Path.cwd() / "profiles").glob("**/*.csv")):
        with path.open(encoding="utf-8", newline="") as stream:
            for row in csv.DictReader(stream):
                if row["family"] == "ref":
                    continue
                family = families.get(row["family"])
                with contextlib.suppress(Exception):  # rows of configs that are no longer written
                    config = family.parse(row["Kernel Name"], d_head=int(row["d_head"]))
                    rows, keys = int(row["seq_len"]), int(row["seq_len_kv"] or row["seq_len"])
                    words = [
                        *(["causal"] if row["causal"] == "true" else []),
                        *(["ragged"] if rows % config.B_r or keys % config.B_c else []),
                        *(["lse"] if row.get("lse") == "true" else []),
                    ]
                    name = family.short_form(config)
                    yield _kernel(family.name, name, "+".join(words) or "plain")


def compiled(kernel: Mapping[str, str], ptx_only: bool) -> dict[str, str]:
    """Hashes of a kernel's sources, PTX and machine code, and NVRTC's version; GONE with the
    reason."""
    from fa_tune import families
    from fa_tune.build.compile import kernel_source_sha256

    family = families.get(kernel["family"])
    try:
        config = family.parse(kernel["config"])
    except Exception as error:
        return {GONE: str(error)}
    arch = "sm_90a" if family.name == "sm90" else "sm_90"
    options = [
        f"--gpu-architecture={arch.replace('sm', 'compute') if ptx_only else arch}",
        *family.compile_options(arch),
    ]
    expression = family.kernels(config, kernel["traits"])[0].name_expression
    source = family.entry_source(config, kernel["traits"])
    try:
        ptx, cubin = _nvrtc(source, family.source_files(), options, expression, ptx_only)
    except ValueError as error:
        return {GONE: f"does not compile: {error}"}
    version = re.search(r"Cuda compilation tools.*, V([\d.]+)", ptx)
    result = {
        "config": family.short_form(config),
        "sources": kernel_source_sha256(family.name),
        "nvrtc": version[1] if version else "",
        "ptx": _sha256(normalised(ptx).encode()),
    }
    if cubin:
        result["code"] = machine_code_sha256(cubin)
    return result


def _nvrtc(
    source: str, headers: Mapping[str, str], options: list[str], expression: str, ptx_only: bool
) -> tuple[str, bytes]:
    from cuda.bindings import nvrtc as lib

    def checked(result: Any) -> Any:
        if result[0].value != 0:
            raise ValueError(result[0].name)
        return result[1] if len(result) > 1 else None

    program = checked(
        lib.nvrtcCreateProgram(
            source.encode(),
            b"kernel.cu",
            len(headers),
            [text.encode() for text in headers.values()],
            [name.encode() for name in headers],
        )
    )
    try:
        checked(lib.nvrtcAddNameExpression(program, expression.encode()))
        status = lib.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])[0]
        if status.value != 0:
            log = bytearray(checked(lib.nvrtcGetProgramLogSize(program)))
            checked(lib.nvrtcGetProgramLog(program, log))
            raise ValueError(bytes(log).decode(errors="replace")[:1500])
        ptx = bytearray(checked(lib.nvrtcGetPTXSize(program)))
        checked(lib.nvrtcGetPTX(program, ptx))
        cubin = bytearray(0 if ptx_only else checked(lib.nvrtcGetCUBINSize(program)))
        if cubin:
            checked(lib.nvrtcGetCUBIN(program, cubin))
    finally:
        lib.nvrtcDestroyProgram(program)
    return bytes(ptx).rstrip(b"\0").decode(), bytes(cubin)


def normalised(ptx: str) -> str:
    """PTX without comments and unused variables, its names and registers numbered in order of
    appearance."""
    names: dict[str, str] = {}
    registers: dict[str, str] = {}
    lines = (line.partition("//")[0].rstrip() for line in ptx.splitlines())
    # Static members of templates are variables there, which no instruction names.
    text = "\n".join(line for line in lines if line and not re.match(r"\.global|\t\.reg \.", line))
    text = re.sub(
        r"%(?:r|rd|p|f|rs|h|fd|b)\d+\b",
        lambda found: registers.setdefault(found[0], f"%{len(registers)}"),
        text,
    )
    text = re.sub(
        r"\b(?:_Z\w+?(?=_param_|\b)|shared_memory\b)",
        lambda found: names.setdefault(found[0], f"N{len(names)}"),
        text,
    )
    return re.sub(r"(\.param .*_param_\d+\[)\d+\]", r"\1]", text)  # however long structs are


def machine_code_sha256(cubin: bytes) -> str:
    """The kernels' instructions, constants and register counts in an ELF file."""
    digest = hashlib.sha256()
    (offset,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", cubin, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, offset + size * i) for i in range(count)]
    names_at = sections[names_index][4]
    for name, kind, _, _, at, length, _, info, _, _ in sections:
        end = cubin.index(b"\0", names_at + name)
        label = cubin[names_at + name : end].decode()
        # Constant bank 4 holds addresses of variables that no instruction names.
        # Bank 0 holds what a launch passes: a parameter that no instruction reads is in no code.
        if not re.match(r"\.text\.|\.nv\.constant[1-3]\.", label):
            continue
        digest.update(label.encode()[:14] if label.startswith(".nv") else b".text")
        if label.startswith(".text."):
            digest.update(struct.pack("<I", info >> 24))  # registers
        digest.update(struct.pack("<Q", length))
        if kind != 8:  # no bytes in the file
            digest.update(cubin[at : at + length])
    return digest.hexdigest()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def serve(ptx_only: bool) -> None:
    """Answer each kernel on stdin with its hashes on stdout, a JSON line each."""
    for line in sys.stdin:
        print(json.dumps(compiled(json.loads(line), ptx_only)), flush=True)


# The command ----------------------------------------------------------------------------------


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
        [sys.executable, str(Path(__file__).resolve()), *arguments],
        cwd=tree,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def hash_tree(arguments: argparse.Namespace) -> int:
    """The `hash` command."""
    out: Path = arguments.out
    with tree_of(arguments.tree) as tree:
        if arguments.like:
            kernels = [json.loads(key) for key in json.loads(arguments.like.read_text())]
        else:
            child = _child(tree, "_list", ",".join(arguments.sets))
            kernels = [json.loads(line) for line in child.communicate()[0].splitlines()]
        if arguments.d_head:
            kernels = [kernel for kernel in kernels if d_head_of(kernel) in arguments.d_head]
        done: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
        wanted = "ptx" if arguments.ptx else "code"
        todo = []
        for kernel in {json.dumps(k, sort_keys=True): k for k in kernels}.items():
            found = done.get(kernel[0], {})
            if wanted not in found and GONE not in found:
                todo.append(kernel)
        # In an order that has nothing to do with the sets': what is done early is a sample.
        todo.sort(key=lambda item: _sha256(item[0].encode()))
        lock = threading.Lock()
        waiting = iter(todo)

        def work() -> None:
            child = _child(tree, "_serve", *(["--ptx"] if arguments.ptx else []))
            assert child.stdin is not None
            assert child.stdout is not None
            while True:
                with lock:
                    item = next(waiting, None)
                if item is None:
                    child.stdin.close()
                    child.wait()
                    return
                child.stdin.write(json.dumps(item[1]) + "\n")
                child.stdin.flush()
                answer = child.stdout.readline()
                if not answer:
                    raise RuntimeError(f"the compiler died on {item[0]}")
                with lock:
                    done[item[0]] = json.loads(answer)
                    if len(done) % 20 == 0:
                        _save(out, done)
                        print(f"{len(done)} of {len(kernels)}", file=sys.stderr)

        workers = [threading.Thread(target=work) for _ in range(arguments.jobs)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        _save(out, done)
    return 0


def d_head_of(kernel: Mapping[str, str]) -> int:
    """The second number of a short form."""
    return int(kernel["config"].split(",")[1])


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
        made = proofs(before, after, outcomes, arguments.prove)
        child = _child(ROOT, "_add", str(arguments.proofs.resolve()))
        child.communicate(json.dumps(made))
        if child.returncode:
            return child.returncode
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


def add(path: Path) -> None:
    """Append the proofs on stdin to a file of them."""
    from pydantic import TypeAdapter

    from fa_tune.families.equal_sources import Proof, load, save

    save([*load(path), *TypeAdapter(list[Proof]).validate_json(sys.stdin.read())], path)


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
        "--d-head", type=lambda s: [int(n) for n in s.split(",")], help="only these, 64,128 say"
    )
    hashing.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    hashing.add_argument("--ptx", action="store_true")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--prove", metavar="WHAT", help="add a proof; say what has changed")
    comparing.add_argument(
        "--proofs", type=Path, default=ROOT / "profiles/equal_sources.json", help="the file of them"
    )
    listing = commands.add_parser("_list")
    listing.add_argument("sets")
    adding = commands.add_parser("_add")
    adding.add_argument("proofs", type=Path)
    serving = commands.add_parser("_serve")
    serving.add_argument("--ptx", action="store_true")
    arguments = parser.parse_args()
    match arguments.command:
        case "hash":
            return hash_tree(arguments)
        case "compare":
            return compare(arguments)
        case "_list":
            for kernel in listed_kernels(arguments.sets.split(",")):
                print(json.dumps(kernel))
        case "_add":
            add(arguments.proofs)
        case "_serve":
            serve(arguments.ptx)
    return 0


if __name__ == "__main__":
    sys.exit(main())
