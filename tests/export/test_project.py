"""An exported library: built, tested and used as its users do, without a GPU."""

import ctypes
import dataclasses
import hashlib
import itertools
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import fa_tune
from fa_tune import families
from fa_tune.build import nvrtc
from fa_tune.build.compile import kernel_source_sha256
from fa_tune.build.native.core import KernelImage
from fa_tune.core.arch import limits
from fa_tune.core.errors import StorageError
from fa_tune.core.options import MachineOptions, Silent
from fa_tune.core.workload import BACKWARD, DType, Workload
from fa_tune.export import project
from fa_tune.export.project import Export, export
from fa_tune.export.selection import ExportOptions
from fa_tune.export.sizes import ROWS
from fa_tune.export.table_source import quoted
from fa_tune.store.registry.between import by_room, filled
from fa_tune.store.registry.lookup import Target, matches, near_enough
from fa_tune.store.registry.schema import Registry, to_json
from tests.csrc.host_cost import host_cost
from tests.csrc.stub import image
from tests.export.conftest import Built, configure_and_build, quickly_exported, run, tool
from tests.export.small_registry import A100, D_HEAD, H200, small_registry, some_workload
from tests.project_files import ROOT

pytestmark = pytest.mark.xdist_group("export")  # one build serves all

UNTUNED = ("NVIDIA B200", (10, 0))  # nothing but PTX runs there
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    page = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    return [text for found, text in FENCE.findall(page) if found == language]


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def core_objects(built: Built) -> list[Path]:
    """What the core was compiled to."""
    found = built.build.glob("CMakeFiles/fa_tune.dir/src/**/*.o")
    return [path for path in found if path.name not in ("exported.cpp.o", "images.S.o")]


def test_its_own_tests_pass(built: Built) -> None:
    shown = run(tool("ctest"), "--test-dir", str(built.build), "-R", "choices", "--no-tests=error")
    for place in (1, 2, 3):  # an H200, an A100, and at least one that nobody tuned
        assert re.search(rf"choices_{place} \.* *Passed", shown), shown


def test_its_own_tests_can_fail(built: Built, tmp_path: Path) -> None:
    """Of a library whose table has its entries the other way round."""
    text = (built.folder / "src" / "exported_table.h").read_text(encoding="utf-8")
    names = re.findall(r'^    \{"NVIDIA H200".*"(sm90:[^"]+)"\},$', text, re.MULTILINE)
    assert len(set(names)) == 2
    a, b = sorted(set(names))
    head, _, rows = text.partition("const fa_tune_entry")
    swapped = rows.replace(a, "?").replace(b, a).replace("?", b)
    (tmp_path / "exported_table.h").write_text(f"{head}const fa_tune_entry{swapped}")
    include = built.folder / "include" / "fa_tune"
    # The file's own folder comes first where a quoted include is searched.
    unit = tmp_path / "exported.cpp"
    unit.write_text((built.folder / "src" / "exported.cpp").read_text(encoding="utf-8"))
    images = built.build / "CMakeFiles" / "fa_tune.dir" / "src" / "images.S.o"
    others = [str(path) for path in (*core_objects(built), images)]
    command = ["c++", "-std=c++17", "-shared", "-fPIC", f"-I{include}", str(unit), *others]
    library = tmp_path / built.library.resolve().name
    run(*command, "-ldl", "-o", str(library))
    test = [str(built.build / "test_exported"), "2"]  # the H200, after the A100
    env = {**built.with_stub, "LD_PRELOAD": str(library)}
    done = subprocess.run(test, env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert "instead of" in done.stderr


def test_examples_say_that_there_is_no_driver(built: Built) -> None:
    if has_driver():
        pytest.skip("this machine has a driver")
    key = f"b1_h1_kv1_q64_k64_d{D_HEAD}_fp16_full"
    for program, prefix in (("attend", ""), ("attend_c", ""), ("gradients", "backward_")):
        command = [str(built.build / program), prefix + key]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 77  # which ctest counts as skipped
        assert done.stderr.startswith(f"{program}: no CUDA driver found")
        assert len(done.stderr.splitlines()) == 1


@pytest.fixture(scope="module")
def consumer(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project that docs/export.md shows, built with the installed package."""
    source = tmp_path_factory.mktemp("consumer")
    (cmake,), (program_c,) = blocks("cmake"), blocks("c")
    more = "add_library(by_config STATIC by_config.cpp decoding.cpp gradients.cpp)\n"
    more += "target_link_libraries(by_config PRIVATE fa_tune::fa_tune)\n"
    more += "target_compile_features(by_config PRIVATE cxx_std_20)\n"
    names = ("program.cpp", "by_config.cpp", "decoding.cpp", "gradients.cpp")
    files = dict(zip(names, blocks("cpp"), strict=True))
    for name, text in (files | {"CMakeLists.txt": cmake + more, "program.c": program_c}).items():
        (source / name).write_text(text)
    configure_and_build(source, source / "build", f"-DCMAKE_PREFIX_PATH={built.prefix}")
    return source / "build"


@pytest.mark.parametrize("program", ["program", "program_c"])
def test_another_project_finds_the_package(consumer: Path, built: Built, program: str) -> None:
    """Its problem has a head dimension that is not there, which the library says."""
    command = [str(consumer / program)]
    done = subprocess.run(command, capture_output=True, text=True, env=built.with_stub)
    assert done.returncode == 1
    assert "no kernel computes b2_h16_kv16_q4096_k4096_d128_fp16_full" in done.stderr
    assert f"fp16, d_head {D_HEAD}, full" in done.stderr
    if not has_driver():
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr.startswith("no CUDA driver found")
        assert len(done.stderr.splitlines()) == 1


@cache
def known() -> Registry:
    """What the export was made of, read as a program reads it."""
    return Registry.of(filled(small_registry().entries))


def by_python(gpu: str, capability: tuple[int, int], workload: Workload) -> str:
    """What `fa_tune.op` takes, whose default of few queries knows the lengths, too."""
    found = matches(known(), Target(gpu), by_room(workload))
    for match in near_enough(found, workload):
        config = families.config_of(match.entry.chosen)
        if families.constraints(config, limits(capability)) is None:
            return match.entry.chosen.key
    # Code for 8.0 runs on later minor versions, too.
    able = limits((9, 0) if capability == (9, 0) else (8, 6))
    if workload.decode_shape and (gpu, capability) != UNTUNED:
        # An export has one for each tile.
        rows = min(n for n in ROWS if n >= workload.row_tiles[1])
        sizes = {"batch": 2, "heads": 1, "kv_heads": 1, "seq_len_q": rows, "seq_len_kv": 100_000}
        one = dataclasses.replace(workload, **sizes, cache_lengths="equal")
        return families.variant(families.defaults_for(one, able)[0]).key
    (default, *_) = families.defaults(workload.d_head, workload.dtype, able, workload.op)
    return families.variant(default).key


def choices(
    built: Built, folder: Path, gpu: str, capability: tuple[int, int], asked: Iterable[Workload]
) -> list[str]:
    """What the library takes for workloads, in a process with the stub."""
    keys = folder / "keys"
    keys.write_text("".join(f"{w.key}\n" for w in asked))
    of = (str(built.library), gpu, "{}{}".format(*capability), str(keys))
    child = (sys.executable, "-m", "tests.export.choices_child", *of)
    done = subprocess.run(child, cwd=ROOT, env=built.with_stub, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("gpu", "capability"),
    [
        (H200.name, H200.compute_capability),
        (A100.name, A100.compute_capability),
        ("NVIDIA H100 80GB HBM3", (9, 0)),
        ("NVIDIA A10", (8, 6)),
        UNTUNED,
    ],
)
def test_random_workloads_run_as_in_python(
    built: Built, tmp_path: Path, gpu: str, capability: tuple[int, int]
) -> None:
    dice = random.Random(f"14 {gpu}")
    # Kernels of other masks and scores are exported for the devices alone that they are for.
    workloads = [
        e.workload
        for e in small_registry().entries
        if e.gpu.name == gpu or (e.workload.is_plain and not e.workload.packed)
    ]
    workloads += [some_workload(dice) for _ in range(400)]
    expected = [by_python(gpu, capability, w) for w in workloads]
    assert choices(built, tmp_path, gpu, capability, workloads) == expected
    if gpu in (H200.name, A100.name):
        assert set(expected) > {e.chosen.key for e in small_registry().entries if e.gpu.name == gpu}


def test_what_was_not_exported_is_not_found(built: Built, tmp_path: Path) -> None:
    lacking = (
        Workload(1, 1, 1, 64, 64, D_HEAD, DType.BF16),
        Workload(1, 1, 1, 64, 64, D_HEAD, DType.FP16, softcap=9.0),
        Workload(1, 1, 1, 64, 64, D_HEAD, DType.FP16, lse=True, op=BACKWARD),
    )
    assert choices(built, tmp_path, H200.name, (9, 0), lacking) == ["NOT_FOUND"] * 3


def test_short_forms_are_those_of_python(built: Built, tmp_path: Path) -> None:
    dice = random.Random(14)
    configs = []
    for key in ("all", "wide"):  # of both families; all knobs of one
        configs += dice.sample(families.named_configs(key, families.all_families()), 80)
    assert {type(c) for c in configs} == {f.config_class for f in families.all_families()}
    lines = [f"    std::puts(name_of({c.to_cpp_struct()}).c_str());\n" for c in configs]
    text = "#include <cstdio>\n#include <fa_tune/flash_kernels.cuh>\n"
    text += f"int main() {{\n    using namespace fa_tune;\n{''.join(lines)}}}\n"
    (tmp_path / "names.cpp").write_text(text)
    include, program = f"-I{built.prefix / 'include'}", str(tmp_path / "names")
    run("c++", "-std=c++20", include, str(tmp_path / "names.cpp"), "-o", program)
    assert run(program).splitlines() == [families.variant(c).key for c in configs]


def test_a_config_that_is_not_there_is_named(built: Built, tmp_path: Path) -> None:
    """Without a driver, too: what the map lacks, no device can have."""
    unknown = families.parse("sm90(FP16, 64, 128x96): stages_2")
    text = f"""
#include <cstdio>
#include <fa_tune/flash_kernels.cuh>
int main() {{
    using namespace fa_tune;
    try {{
        find({unknown.to_cpp_struct()}, fa_tune_problem{{}});
    }} catch (const Error& error) {{
        std::puts(error.what());
        return error.status() == FA_TUNE_NOT_FOUND ? 0 : 2;
    }}
    return 1;
}}
"""
    (tmp_path / "unknown.cpp").write_text(text)
    options = ("-std=c++20", f"-I{built.prefix / 'include'}", f"-L{built.build}", "-lfa_tune")
    program = str(tmp_path / "unknown")
    rpath = f"-Wl,-rpath,{built.build}"
    run("c++", str(tmp_path / "unknown.cpp"), *options, rpath, "-o", program)
    said = run(program)
    there = {kernel.variant.key for kernel in built.made.kernels}
    assert said.startswith(f"there is no {families.variant(unknown).key}; there is: ")
    assert set(said.strip().partition("there is: ")[2].split("; ")) == there


def test_the_manifest_says_what_is_there(exported: Export) -> None:
    manifest = json.loads((exported.folder / "MANIFEST.json").read_text(encoding="utf-8"))
    assert manifest["fa_tune"] == fa_tune.__version__
    assert manifest["nvrtc"] == nvrtc.version()
    known = Registry.of(filled(small_registry().entries))
    assert manifest["entries"] == json.loads(to_json(known))["entries"]
    hashes = manifest["sources_sha256"]
    assert all(hashes[name] == kernel_source_sha256(name) for name in ("sm80", "sm90", "decode"))
    for kernel in manifest["kernels"]:
        image = (exported.folder / kernel["file"]).read_bytes()
        assert hashlib.sha256(image).hexdigest() == kernel["sha256"]
        assert all(symbol.encode() in image for symbol in kernel["symbols"])
    files = {p.name for p in (exported.folder / "images").iterdir()}
    assert files == {Path(kernel["file"]).name for kernel in manifest["kernels"]}


def test_an_export_is_replaced_and_nothing_else(
    options: ExportOptions, compiled_cache: Path, tmp_path: Path
) -> None:
    machine = MachineOptions(cache_dir=compiled_cache)
    few = dataclasses.replace(options, archs=("sm_80",), ptx=False, few_queries=False)
    folder = tmp_path / "attention"
    folder.mkdir()
    quickly_exported(folder, few, machine)
    expected = contents(folder)
    (folder / "build").mkdir()
    (folder / "build" / "mine").write_text("keep")
    quickly_exported(folder, few, machine)
    assert [p.name for p in tmp_path.iterdir()] == ["attention"]
    assert (folder / "build" / "mine").read_text() == "keep"
    found = contents(folder)
    assert found.keys() == expected.keys() | {"build/mine"}
    # Another process may have compiled into the cache meanwhile, and the compiler gives what is
    # internal another name each time.
    changing = {p for p in expected if p.startswith("images/")} | {"MANIFEST.json"}
    assert {p for p in expected if found[p] != expected[p]} <= changing
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("keep")
    with pytest.raises(StorageError, match="is there and no earlier export"):
        export(tmp_path / "mine", few, machine, Silent())
    assert (tmp_path / "mine" / "notes").read_text() == "keep"
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot write"):
        export(tmp_path / "file" / "below", few, machine, Silent())


def contents(root: Path) -> dict[str, bytes]:
    files = (p for p in root.rglob("*") if p.is_file())
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in files}


def write(folder: Path, *names: str, **files: str) -> None:
    """An export of small files, images among them."""
    images = {f"images/{name}": name.encode() for name in names}
    manifest = {
        "schema": project.SCHEMA,
        "kernels": [{"file": n, "sha256": project._sha256(d)} for n, d in images.items()],
        "files": {name: project._sha256(text.encode()) for name, text in files.items()},
    }
    project._write(folder, {**files, "MANIFEST.json": json.dumps(manifest)}, images)


@pytest.mark.parametrize("exchanges", [True, False])
def test_what_an_export_did_not_write_outlives_the_next(
    exchanges: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchanges:
        monkeypatch.setattr(project, "_exchanged", lambda *_: False)
    folder = tmp_path / "attention"
    write(folder, "0.cubin", "1.cubin", src="1", gone="1")
    (folder / "notes").mkdir()
    (folder / "notes" / "mine").write_text("keep")
    (folder / "images" / "2.cubin").write_text("my own")
    (folder / "link").symlink_to("nowhere")
    write(folder, "0.cubin", src="2", new="2")
    found = {name: data for name, data in contents(folder).items() if name != "MANIFEST.json"}
    assert found == {
        "images/0.cubin": b"0.cubin",
        "images/2.cubin": b"my own",
        "notes/mine": b"keep",
        "src": b"2",
        "new": b"2",
    }
    assert (folder / "link").is_symlink()
    assert [p.name for p in tmp_path.iterdir()] == ["attention"]
    before = contents(folder)
    for name in ("src", "third"):  # changed since, and in a new one's place
        (folder / name).write_text("my own")
        with pytest.raises(StorageError, match=name):
            write(folder, "0.cubin", src="3", third="3")
        assert contents(folder) == before | {name: b"my own"}
        (folder / "src").write_text("2")


@pytest.mark.parametrize("exchanges", [True, False])
def test_an_export_that_is_killed_at_any_instant_loses_nothing(
    exchanges: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step is the last one in a process of its own."""
    if not exchanges:
        monkeypatch.setattr(project, "_exchanged", lambda *_: False)
    steps = {"place": project._place, "exchange": project._exchanged, "rename": Path.rename}

    def killed_at(last: int, *, after: bool) -> bool:
        """Whether the process was killed before its end."""
        if (child := os.fork()) == 0:
            left = last

            def counted(step: Any) -> Any:
                def run(*given: Any) -> Any:
                    nonlocal left
                    left -= 1
                    if left < 0 and not after:
                        os._exit(9)
                    done = step(*given)
                    if left < 0:
                        os._exit(9)
                    return done

                return run

            monkeypatch.setattr(project, "_place", counted(steps["place"]))
            monkeypatch.setattr(project, "_exchanged", counted(steps["exchange"]))
            monkeypatch.setattr(Path, "rename", counted(steps["rename"]))
            write(folder, "0.cubin", src="2")
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9

    last = 0
    for last, after in itertools.product(range(99), (False, True)):
        folder = tmp_path / f"{last} {after}" / "attention"
        write(folder, "0.cubin", "1.cubin", src="1")
        (folder / "mine").write_text("keep")
        whole = contents(folder)
        if not killed_at(last, after=after):
            break
        if folder.exists():
            found = contents(folder)
            assert found == whole or found["src"] == b"2"
            assert found["mine"] == b"keep"
        write(folder, "0.cubin", src="3")
        found = contents(folder)
        assert (found["src"], found["mine"]) == (b"3", b"keep")
    assert last > 4


def test_two_exports_in_one_process_are_two(built: Built, exported: Export, tmp_path: Path) -> None:
    """Each plug-in gets the table and the maps of the library that it was linked with, also where
    all have the same names in their headers; programs that link both, too."""
    few = dataclasses.replace(
        exported, kernels=exported.kernels[:3], entries=(), sized=(), defaults=()
    )
    folder = tmp_path / "few"
    project._write(folder, project._texts(few), {k.file: k.image.image for k in few.kernels})
    plugin = tmp_path / "plugin.cpp"
    plugin.write_text(
        """
#include <fa_tune/flash_kernels.cuh>
extern "C" long NAME() {
    long kernels = 0;
    fa_tune::for_each_name([&](const char*) { ++kernels; });
    return kernels * 1000 + (reinterpret_cast<long>(fa_tune::exported()) != 0);
}
extern "C" const void* NAME2() { return fa_tune::exported(); }
""".replace("for_each_name", "detail::for_each_name")
    )
    others = [str(path) for path in core_objects(built)]
    soname = re.search(r"libfa_tune\.so\.([0-9a-f]+)", run("readelf", "-d", str(built.library)))
    assert soname is not None
    header = (built.folder / "include" / "fa_tune" / "export.h").read_text(encoding="utf-8")
    assert f"export_{soname[1]}\n" in header
    name = re.search(r"export_([0-9a-f]+)\n", project._texts(few)["include/fa_tune/export.h"])
    library = tmp_path / f"libfa_tune.so.{name[1]}"
    source = [str(folder / "src" / file) for file in ("exported.cpp", "images.S")]
    where = [f"-I{folder / at}" for at in ("include/fa_tune", "include", "images", "src")]
    shared = ("c++", "-std=c++20", "-shared", "-fPIC")
    options = (f"-Wa,-I{folder / 'images'}", f"-Wl,-soname,{library.name}", "-ldl")
    run(*shared, *where, *source, *others, *options, "-o", str(library))
    for letter, include, linked in (("a", built.folder, built.library), ("b", folder, library)):
        names = (f"-DNAME=kernels_{letter}", f"-DNAME2=table_{letter}")
        run(
            *(*shared, *names, f"-I{include / 'include'}", str(plugin), str(linked)),
            *(f"-Wl,-rpath,{linked.parent}", "-o", str(tmp_path / f"lib{letter}.so")),
        )
    child = f"""
import ctypes
for mode in (ctypes.RTLD_LOCAL, ctypes.RTLD_GLOBAL):
    a, b = (ctypes.CDLL({str(tmp_path)!r} + f"/lib{{x}}.so", mode) for x in "ab")
    a.table_a.restype = b.table_b.restype = ctypes.c_void_p
    assert a.table_a() != b.table_b()
    print(a.kernels_a(), b.kernels_b())
"""
    count = len({k.variant.key for k in exported.kernels})
    few_count = len({k.variant.key for k in few.kernels})
    told = run(sys.executable, "-c", child, env=built.with_stub).splitlines()
    assert told == [f"{count * 1000 + 1} {few_count * 1000 + 1}"] * 2


def test_any_name_of_a_gpu_is_a_c_literal(tmp_path: Path) -> None:
    names = ["", 'NVIDIA "H200"', "\\n??/", "a\x01b\x7f\n1", "é € 😀 \u202e", "%s"]
    lines = "".join(f"    std::puts({quoted(name + '|')});\n" for name in names)
    (tmp_path / "names.cpp").write_text(f"#include <cstdio>\nint main() {{\n{lines}}}\n")
    program = str(tmp_path / "names")
    run("c++", "-std=c++17", "-Wall", "-Werror", f"{program}.cpp", "-o", program)
    done = subprocess.run([program], capture_output=True, check=True)
    assert done.stdout.decode().split("|\n")[:-1] == names


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    machine = MachineOptions(cache_dir=tmp_path / "file" / "cache")
    options = ExportOptions(tmp_path / "none.json", ("sm_80",), d_heads=(64,), dtypes=(DType.FP16,))
    progress = Silent()
    assert export(tmp_path / "attention", options, machine, progress).kernels
    (warning,) = progress.warnings
    assert str(machine.cache_dir) in warning


def test_the_program_that_measures_a_launch_runs(built: Built) -> None:
    family = families.get("sm90")
    call = family.plan(family.default_config(128, DType.FP16), "plain", "sm_90a")
    made = KernelImage("x", call, ("kernel",), image([("kernel", [128] * 4 + [56])]))
    environment = {**built.with_stub, "STUB_SILENT": "1"}
    found = host_cost(made, *core_objects(built), rounds=5, environment=environment)
    assert (found["rounds"], found["device"]) == (5, "NVIDIA H200")
    assert all(found[f"{name}_ns"] > 0 for name in ("core", "bare", "table", "first_launch"))
