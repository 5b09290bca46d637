"""A family that the package does not know keeps the contract, once it is registered."""

from dataclasses import replace
from pathlib import Path

import pytest

from fa_tune import families
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.compile import build, kernel_source_sha256
from fa_tune.core.arch import limits
from fa_tune.core.errors import InvalidConfig, ToolMissing
from fa_tune.core.model import Outcome
from fa_tune.core.paths import kernels_dir
from fa_tune.core.workload import DType
from fa_tune.families.sources import closure
from fa_tune.tune.build import build_request
from tests.families.wave import WaveConfig, WaveFamily, register
from tests.tune import fakes

CONFIG = WaveConfig(DType.FP16, 128, 128, 176, 2, pingpong=True)
H200 = limits((9, 0))


@pytest.fixture(autouse=True)
def wave(only_sm80: None, monkeypatch: pytest.MonkeyPatch) -> WaveFamily:
    return register(monkeypatch)


def test_a_text_that_is_of_no_family_lists_what_each_accepts() -> None:
    with pytest.raises(InvalidConfig) as caught:
        families.parse("fastest please")
    assert str(caught.value) == (
        'no config in "fastest please"; write it like '
        f"{families.get('sm80').example!r} (sm80) or {WaveFamily().example!r} (wave)"
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("wave(FP16, 128, 128, 2): pingpong", "no wave config"),
        ("(FP16, 128, 64, 64, 4): waves", 'unknown word "waves"'),
        ("(FP16, 128, 64, 64, 4): pingpong", "no load_<Q>_<K>_<V>_tiles"),
        ("(FP16, 128, 64, 64, 4)", "no ':' and words"),
    ],
)
def test_a_damaged_short_form_is_explained_by_the_family_it_is_of(
    text: str, complaint: str
) -> None:
    with pytest.raises(InvalidConfig, match=complaint):
        families.parse(text)


def test_no_config_is_nobodys() -> None:
    with pytest.raises(TypeError, match="str is no family's config class"):
        families.of("(FP16, 64, 64, 4): load_0_0_0_tiles")


def test_the_preferred_family_comes_first_where_it_runs() -> None:
    assert [f.name for f in families.runnable(H200)] == ["wave", "sm80"]
    assert [f.name for f in families.runnable(limits((8, 6)))] == ["sm80"]


def test_defaults_are_of_those_families_that_have_one() -> None:
    def names(d_head: int, capability: tuple[int, int]) -> list[str]:
        found = families.defaults(d_head, DType.FP16, limits(capability))
        return [families.of(config).name for config in found]

    assert names(128, (9, 0)) == ["wave", "sm80"]
    assert names(96, (9, 0)) == ["sm80"], "wave has nothing for 96"
    assert names(128, (8, 0)) == ["sm80"]
    assert names(100, (8, 0)) == []


def test_it_compiles_for_an_architecture_of_its_own(tmp_path: Path) -> None:
    """The kernel has an instruction that sm_90 refuses, so the option must have come through."""
    machine = fakes.machine(tmp_path)
    request = build_request(CONFIG, "plain", machine)
    assert request.arch == "sm_90a"
    assert build_request(fakes.default_config(), "plain", machine).arch == "sm_90"
    store = ArtifactStore(tmp_path)
    (result,) = build([request], store)
    assert result.artifact.arch == "sm_90a"
    assert build([request], store)[0].cached
    (plain,) = build([replace(request, arch="sm_90")], store)
    assert plain.outcome is Outcome.COMPILE_FAILED
    assert not plain.cached, "what sm_90a made is not what sm_90 gets"


def test_a_familys_hash_is_its_own(wave: WaveFamily) -> None:
    before = {name: kernel_source_sha256(name) for name in ("sm80", "wave")}
    both = kernel_source_sha256("sm80", "wave")
    assert both == kernel_source_sha256("wave", "sm80")
    assert len({*before.values(), both}) == 3
    wave.scale = "2.0f"
    assert kernel_source_sha256("sm80") == before["sm80"]
    assert kernel_source_sha256("wave") != before["wave"]
    assert kernel_source_sha256("sm80", "wave") != both


def test_only_what_is_included_counts(tmp_path: Path) -> None:
    files = {
        "ptx/used.cuh": "// used\n",
        "tile/used.cuh": '#pragma once\n  #  include "ptx/used.cuh"\n',
        "sm1/entry.cu": '#include "tile/used.cuh"\n// #include "ptx/commented.cuh"\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert closure("sm1/entry.cu", root=tmp_path) == files
    (tmp_path / "ptx" / "wgmma.cuh").write_text("// of another family\n")
    (tmp_path / "sm2").mkdir()
    (tmp_path / "sm2" / "entry.cu").write_text('#include "ptx/wgmma.cuh"\n')
    assert closure("sm1/entry.cu", root=tmp_path) == files
    assert set(closure("sm2/entry.cu", root=tmp_path)) == {"sm2/entry.cu", "ptx/wgmma.cuh"}
    (tmp_path / "ptx" / "used.cuh").unlink()
    with pytest.raises(ToolMissing, match=r"used\.cuh cannot be read"):
        closure("sm1/entry.cu", root=tmp_path)


def test_every_sm80_file_is_used() -> None:
    """A file in the family's own folder that no kernel includes is a leftover."""
    files = families.get("sm80").source_files()
    own = {f"sm80/fwd/{p.name}" for p in (kernels_dir() / "sm80" / "fwd").iterdir()}
    assert own == {name for name in files if name.startswith("sm80/")}
