"""Score hooks by their text: how they are known, and what a kernel is made of."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from fa_tune import families
from fa_tune.core import hooks
from fa_tune.core.errors import InvalidConfig, StorageError
from fa_tune.core.workload import DType, Workload, benchmark_workload
from fa_tune.operations.traits import Traits

TEXT = """
__device__ float score_hook(float score, int batch, int head, int query, int key) {
    return score + 1.f;
}
"""
PLAIN = benchmark_workload(4096, 128, DType.FP16)


def test_a_hook_is_its_text(tmp_path: Path) -> None:
    file = tmp_path / "hook.cuh"
    file.write_text(TEXT)
    digest = hooks.register(TEXT)
    assert hooks.register(file) == hooks.register(str(file)) == digest
    assert hooks.register(TEXT + "\n") != digest
    assert hooks.hook_of(digest).source == TEXT


def test_a_torch_function_is_kept() -> None:
    digest = hooks.register(TEXT, lambda score, *_: score + 1)
    assert hooks.register(TEXT) == digest
    assert hooks.twin_of(digest)(2, 0, 0, 0, 0) == 3
    alone = hooks.register(TEXT.replace("1.f", "2.f"))
    with pytest.raises(InvalidConfig, match="without its torch function"):
        hooks.twin_of(alone)


def test_what_is_no_hook_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="must define __device__ float score_hook"):
        hooks.register("__device__ float hook(float score) { return score; }")
    with pytest.raises(StorageError, match="cannot read"):
        hooks.register(tmp_path / "absent.cuh")
    with pytest.raises(StorageError):
        hooks.register(str(tmp_path / "absent.cu"))
    latin = tmp_path / "latin-1.cuh"
    latin.write_bytes(f"// é{TEXT}".encode("latin-1"))
    with pytest.raises(InvalidConfig, match="UTF-8"):
        hooks.register(latin)
    with pytest.raises(InvalidConfig, match="not known to this process"):
        hooks.hook_of("0" * 16)


def test_a_workload_names_its_hook() -> None:
    digest = hooks.register(TEXT)
    w = dataclasses.replace(PLAIN, score_hook=digest)
    assert w.key == f"{PLAIN.key}_hook{digest}"
    assert Workload.from_key(w.key) == w
    assert not w.is_plain
    with pytest.raises(InvalidConfig, match="write the cap into the hook"):
        dataclasses.replace(w, softcap=30.0)


@pytest.mark.parametrize("name", ["sm80", "sm90"])
def test_a_kernel_is_compiled_from_the_text(name: str) -> None:
    family = families.get(name)
    config = family.default_config(128, DType.FP16)
    digest = hooks.register(TEXT)
    traits = family.traits(config, dataclasses.replace(PLAIN, score_hook=digest, causal=True))
    assert traits == f"causal+hook_{digest}"
    assert Traits.parse(traits) == Traits(causal=True, hook=digest)
    assert TEXT in family.entry_source(config, traits)
    assert "score_hook" not in family.entry_source(config, "causal")
    (name,) = family.name_expressions(config, traits)
    assert str(Traits.in_kernel_name(name)) == "causal+hook_unknown"


def test_a_text_of_four_scores_is_compiled_as_such() -> None:
    family = families.get("sm90")
    config = family.default_config(128, DType.FP16)
    digest = hooks.register("struct score_hook { static __device__ void four(); };")
    for one, by_four in ((digest, True), (hooks.register(TEXT), False)):
        assert hooks.hook_of(one).by_four == by_four
        source = family.entry_source(config, f"hook_{one}")
        assert ("#define FA_TUNE_SCORE_HOOK_BY_FOUR" in source) == by_four


def test_a_file_is_known_to_processes_that_start_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(hooks.FILES, raising=False)
    files = [tmp_path / f"{n}.cuh" for n in range(2)]
    for n, file in enumerate(files):
        file.write_text(TEXT.replace("1.f", f"{n + 3}.25f"))
    digests = [hooks.register_for_children(file) for file in files]
    asked = f"from fa_tune.core import hooks; print(*(hooks.hook_of(d).digest for d in {digests}))"
    told = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, check=True
    ).stdout
    assert told.split() == digests


def test_names_of_older_kernels_have_fewer_traits() -> None:
    old = "flash_forward_kernel<FlashForwardKernelConfig{}, WorkloadTraits{1, 0, 1}>"
    assert Traits.in_kernel_name(old) == Traits(causal=True, lse=True)
    for values in ("1, 0", ", ".join("1" * (len(dataclasses.fields(Traits)) + 1))):
        with pytest.raises(InvalidConfig, match="not traits"):
            Traits.in_kernel_name(f"WorkloadTraits{{{values}}}")
