"""An exported library on a GPU: its examples are right, and give Python's bits."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fa_tune import families
from fa_tune.core import devices
from fa_tune.core.arch import limits
from fa_tune.core.options import MachineOptions, Silent
from fa_tune.core.workload import BACKWARD, DType, Workload
from fa_tune.export.project import Export, export
from fa_tune.export.selection import ExportOptions
from fa_tune.store.registry import file as registry_file
from fa_tune.store.registry.schema import Entry, Gpu, Registry
from tests.export.conftest import configure_and_build, run, tool
from tests.export.small_registry import entry
from tests.gpu.conftest import run_python

pytestmark = pytest.mark.gpu

D_HEADS = (64, 128)


def chosen() -> list[Entry]:
    """For each type and head dimension, short and long sequences by different families, where the
    device runs several; nothing for causal masks, so that the default runs."""
    device = devices.find_device()
    gpu = Gpu(device.name, device.compute_capability)
    found = []
    for dtype in DType:
        for d_head in D_HEADS:
            configs = families.defaults(d_head, dtype, limits(device.compute_capability))
            for config, seq_len in zip(configs, (256, 2048), strict=False):
                workload = Workload(2, 4, 4, seq_len, seq_len, d_head, dtype)
                found.append(entry(gpu, workload, str(config)))
    return found + [entry(gpu, workload, config) for workload, config in backward(gpu)]


def backward(gpu: Gpu) -> Iterator[tuple[Workload, str]]:
    """In two passes, whose bits are always the same; of so many heads that Python takes them."""
    for dtype, d_head in itertools.product(DType, D_HEADS):
        (default, *_) = families.defaults(d_head, dtype, limits(gpu.compute_capability), BACKWARD)
        workload = Workload(4, 8, 8, 256, 256, d_head, dtype, op=BACKWARD)
        yield workload, str(replace(default, two_pass=True))


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("registry") / "registry.json"
    registry_file.save(path, Registry.of(chosen()))
    return path


@pytest.fixture(scope="module")
def exported(
    registry: Path, machine: MachineOptions, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Export, Path]:
    """The export, and where it is built."""
    root = tmp_path_factory.mktemp("export")
    options = ExportOptions(registry, few_queries=True)
    made = export(root / "attention", options, machine, Silent())
    assert not made.left_out
    configure_and_build(made.folder, root / "build")
    return made, root / "build"


def problems() -> list[str]:
    """Whole blocks and others, of each entry and of the defaults."""
    shapes = ((2, 4, 4, 256, 256), (1, 2, 2, 1024, 1024), (1, 6, 2, 413, 1031), (3, 4, 1, 1031, 77))
    return [
        Workload(*shape, d_head, dtype, causal=causal, bottom_right=bottom_right).key
        for dtype in DType
        for d_head in D_HEADS
        for shape in shapes
        for causal, bottom_right in ((False, False), (True, False), (True, True))
    ]


def test_the_exports_own_tests_pass(exported: tuple[Export, Path]) -> None:
    """None is skipped: the examples compute, and compare with the host."""
    _, build = exported
    shown = run(tool("ctest"), "--test-dir", str(build), "--output-on-failure", "--no-tests=error")
    assert "Skipped" not in shown


def test_few_queries_run_by_their_own_defaults(exported: tuple[Export, Path]) -> None:
    """With the workspace that the example gives them; it compares with the host."""
    _, build = exported
    device = devices.find_device()
    assert device is not None
    for n_queries, dtype, d_head in itertools.product((1, 3, 9), DType, D_HEADS):
        few = Workload(2, 8, 2, n_queries, 4097, d_head, dtype, causal=True, bottom_right=True)
        (default, *_) = families.defaults_for(few, limits(device.compute_capability))
        said = run(str(build / "attend"), few.key)
        assert said.startswith(f"{families.of(default).name}:")


def test_gradients_of_any_lengths_and_masks_are_right(exported: tuple[Export, Path]) -> None:
    """The example compares with the host."""
    _, build = exported
    shapes = ((1, 6, 2, 413, 331), (3, 4, 1, 331, 77), (1, 2, 2, 256, 512))
    for place, shape in enumerate(shapes):
        for dtype, d_head in itertools.product(DType, D_HEADS):
            masks = {"causal": place > 0, "bottom_right": place == 1}
            asked = Workload(*shape, d_head, dtype, op=BACKWARD, **masks)
            run(str(build / "gradients"), asked.key)


def _scores(workload: Workload) -> int:
    return workload.heads * workload.seq_len_q * sum(keys for _, keys in workload.members)


def test_defaults_by_size_are_pythons_default_at_their_sizes(
    machine: MachineOptions, tmp_path: Path
) -> None:
    """Small ones, one of each config; the example compares with the host."""
    device = devices.find_device()
    assert device is not None
    registry_file.save(tmp_path / "registry.json", Registry.of())
    able = limits(device.compute_capability)
    options = ExportOptions(
        *(tmp_path / "registry.json", (able.arch,)),
        d_heads=(128,),
        dtypes=(DType.BF16,),
        by_size=True,
    )
    made = export(tmp_path / "attention", options, machine, Silent())
    configure_and_build(made.folder, tmp_path / "build")
    sizes = sorted(made.sized, key=lambda d: _scores(d.workload), reverse=True)
    least = {d.key: replace(d.workload, cache_lengths="") for d in sizes}
    few = {name: w for name, w in least.items() if _scores(w) <= 1 << 20}
    assert len(few) > 9
    for name, asked in few.items():
        said = run(str(tmp_path / "build" / "attend"), asked.key)
        (default, *_) = families.defaults_for(asked, able)
        assert said.startswith(f"{families.variant(default).key}: the default of "), name


def test_the_example_gives_pythons_bits(
    exported: tuple[Export, Path], registry: Path, machine: MachineOptions, tmp_path: Path
) -> None:
    _, build = exported
    arguments, used = [], set()
    for place, key in enumerate(dict.fromkeys(problems())):
        path = str(tmp_path / f"{place}.bin")
        used.add(run(str(build / "attend"), key, path).partition(":")[0])
        arguments += [key, path]
    for e in chosen():
        if e.workload.op == BACKWARD:
            path = str(tmp_path / f"{e.workload.key}.bin")
            used.add(run(str(build / "gradients"), e.workload.key, path).partition(":")[0])
            arguments += [e.workload.key, path]
    assert used == {e.chosen.family for e in chosen()}
    child = ("-m", "tests.gpu.export_child", *arguments)
    assert run_python(*child, FA_TUNE_REGISTRY=str(registry)).strip() == "right"
