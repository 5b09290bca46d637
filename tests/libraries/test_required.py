"""A reference that is not installed is told before anything is run."""

import dataclasses
from pathlib import Path

import pytest

from fa_tune import libraries
from fa_tune.core.errors import ToolMissing
from fa_tune.core.options import REFERENCES, MeasureOptions, Silent
from fa_tune.tune import profilers


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that is all there is."""
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    return tmp_path


def package(site: Path, name: str) -> None:
    """One that nobody may import."""
    folder = site.joinpath(*name.split("."))
    folder.mkdir(parents=True)
    for part in (site / name.split(".")[0], folder):
        (part / "__init__.py").write_text("raise AssertionError('imported')")


def test_what_comes_with_torch_is_not_asked_for(site: Path) -> None:
    libraries.require(REFERENCES)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("fa3", "reference fa3: FlashAttention 3 is not installed; install PyTorch's wheel "),
        (
            "fa4",
            "reference fa4: FlashAttention 4 is not installed; "
            "pip install 'flash-attn-4[cu13]>=4.0.0b36'",
        ),
        ("cudnn-fe", "reference cudnn-fe: cuDNN's front end is not installed; pip install "),
        ("flashinfer", "reference flashinfer: FlashInfer is not installed; pip install "),
    ],
)
def test_an_absent_package_is_told_in_one_line(site: Path, name: str, text: str) -> None:
    with pytest.raises(ToolMissing) as caught:
        libraries.require((*REFERENCES, name))
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)


def test_an_installed_one_is_found_without_importing_it(site: Path) -> None:
    package(site, "flash_attn.cute")
    for name in ("flash_attn_interface", "cudnn", "flashinfer"):
        package(site, name)
    libraries.require(tuple(libraries.ALL))


def test_flash_attention_2_alone_is_not_flash_attention_4(site: Path) -> None:
    package(site, "flash_attn.layers")
    with pytest.raises(ToolMissing, match="FlashAttention 4 is not installed"):
        libraries.require(("fa4",))


@pytest.mark.parametrize("profiler", ["ncu", "events"])
def test_it_is_asked_before_a_profiler_is_sought(site: Path, profiler: str) -> None:
    options = dataclasses.replace(MeasureOptions(), profiler=profiler, references=("fa4",))
    with pytest.raises(ToolMissing, match="FlashAttention 4"):
        profilers.choose_profiler(options, None, Silent())  # type: ignore[arg-type]
