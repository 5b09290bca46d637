"""What `same_machine_code.py` starts in a tree, whose `fa_tune` it imports: lists the tree's
kernels and hashes what they compile to.

    hash_kernels.py list SET,…       the kernels, a JSON line each
    hash_kernels.py serve [--ptx]    answers each kernel on stdin with its hashes, a JSON line each
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import itertools
import json
import re
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cuda.bindings import nvrtc

from fa_tune import families
from fa_tune.build.compile import kernel_source_sha256
from fa_tune.core.arch import limits
from fa_tune.core.errors import InvalidConfig

HEAD_DIMS = (64, 128, 192, 256)
RECORDED = "recorded"
HOPPER = limits((9, 0))
OPTIONS = ("-std=c++20", "--use_fast_math")
GONE = "gone"  # the tree cannot write this config


def listed_kernels(sets: list[str]) -> Iterator[dict[str, str]]:
    """The kernels of the sets and of the recordings: family, config, traits."""
    for name in sets:
        if name == RECORDED:
            yield from _recorded()
            continue
        for family, d_head in itertools.product(families.all_families(), HEAD_DIMS):
            for config, traits in itertools.product(
                _configs(family, name, d_head), ("plain", "causal")
            ):
                yield _kernel(family.name, str(config), traits)
    if "fast" in sets:  # what sequences of any length and training ask for
        for family, d_head in itertools.product(families.all_families(), HEAD_DIMS):
            for config in family.configs("fast", d_head=d_head)[:4]:
                for traits in ("ragged", "causal+ragged+lse"):
                    yield _kernel(family.name, str(config), traits)


def _configs(family: Any, name: str, d_head: int) -> list[Any]:
    """A set's configs; none where the family has no such set."""
    try:
        return list(family.configs(name, d_head=d_head))
    except InvalidConfig:
        return []


def _kernel(family: str, config: str, traits: str) -> dict[str, str]:
    return {"family": family, "config": config, "traits": traits}


def _recorded() -> Iterator[dict[str, str]]:
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
                    name = str(config)
                    yield _kernel(family.name, name, "+".join(words) or "plain")


def compiled(kernel: Mapping[str, str], ptx_only: bool) -> dict[str, str]:
    """Hashes of a kernel's sources, PTX and machine code, and NVRTC's version; GONE with the
    reason."""
    family: Any = families.get(kernel["family"])
    try:
        config = family.parse(kernel["config"])
    except Exception as error:
        return {GONE: str(error)}
    arch = family.compile_arch(HOPPER)
    target = arch.replace("sm", "compute") if ptx_only else arch
    options = [f"--gpu-architecture={target}", *OPTIONS]
    expressions = family.name_expressions(config, kernel["traits"])
    source = family.entry_source(config, kernel["traits"])
    try:
        ptx, cubin = _nvrtc(source, family.source_files(), options, expressions, ptx_only)
    except ValueError as error:
        return {GONE: f"does not compile: {error}"}
    version = re.search(r"Cuda compilation tools.*, V([\d.]+)", ptx)
    result = {
        "config": str(config),
        "sources": kernel_source_sha256(family.name),
        "nvrtc": version[1] if version else "",
        "ptx": _sha256(normalised(ptx).encode()),
    }
    if cubin:
        result["code"] = machine_code_sha256(cubin)
    return result


def _nvrtc(
    source: str,
    headers: Mapping[str, str],
    options: list[str],
    expressions: Sequence[str],
    ptx_only: bool,
) -> tuple[str, bytes]:
    def checked(result: Any) -> Any:
        if result[0].value != 0:
            raise ValueError(result[0].name)
        return result[1] if len(result) > 1 else None

    program = checked(
        nvrtc.nvrtcCreateProgram(
            source.encode(),
            b"kernel.cu",
            len(headers),
            [text.encode() for text in headers.values()],
            [name.encode() for name in headers],
        )
    )
    try:
        for expression in dict.fromkeys(expressions):
            checked(nvrtc.nvrtcAddNameExpression(program, expression.encode()))
        status = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])[0]
        if status.value != 0:
            log = bytearray(checked(nvrtc.nvrtcGetProgramLogSize(program)))
            checked(nvrtc.nvrtcGetProgramLog(program, log))
            raise ValueError(bytes(log).decode(errors="replace")[:1500])
        ptx = bytearray(checked(nvrtc.nvrtcGetPTXSize(program)))
        checked(nvrtc.nvrtcGetPTX(program, ptx))
        cubin = bytearray(0 if ptx_only else checked(nvrtc.nvrtcGetCUBINSize(program)))
        if cubin:
            checked(nvrtc.nvrtcGetCUBIN(program, cubin))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
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


def main() -> int:
    """The exit status."""
    match sys.argv[1:]:
        case ["list", sets]:
            for kernel in listed_kernels(sets.split(",")):
                print(json.dumps(kernel))
        case ["serve", *options]:
            serve(ptx_only="--ptx" in options)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
