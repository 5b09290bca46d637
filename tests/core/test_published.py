"""The models that come with fa-tune, and the workloads that follow from them."""

import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from fa_tune import families
from fa_tune.core import codec, published
from fa_tune.core.devices import limits_for
from fa_tune.core.errors import FaTuneError, InvalidConfig, ProfileFormatError
from fa_tune.core.paths import profiles_dir
from fa_tune.core.published import USES, Layers, PublishedModel
from fa_tune.core.workload import BACKWARD, FORWARD, DType, Workload
from fa_tune.families.computed import not_among

EVERY = published.workloads_of("all")
GOOD = """source = "a/b: config.json"
dtype = "bf16"
[[layers]]
count = 2
heads = 8
kv_heads = 2
d_head = 64
causal = true
context = 4096
uses = ["prefill", "decoding"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty one in place of that of the published models."""
    monkeypatch.setattr(published, "profiles_dir", lambda: tmp_path)
    (tmp_path / "models").mkdir()
    published.load.cache_clear()
    yield tmp_path / "models"
    published.load.cache_clear()


@pytest.mark.parametrize("name", published.names())
def test_every_file_fits_the_schema_and_names_its_source(name: str) -> None:
    raw = tomllib.loads((profiles_dir() / "models" / f"{name}.toml").read_text())
    Draft202012Validator(codec.schema(PublishedModel)).validate(raw)
    organisation, slash, rest = raw["source"].partition("/")
    assert organisation
    assert slash
    assert rest.endswith("config.json")
    assert published.load(name).workloads()


def test_there_are_enough_distinct_problems_of_all_kinds() -> None:
    assert len(published.names()) >= 20
    assert len({w.key for w in EVERY}) == len(EVERY) >= 400
    assert {w.d_head for w in EVERY} >= {64, 72, 80, 96, 128, 192, 256}
    assert {w.seq_len_q for w in EVERY} >= {1, 2, 4, 8, 16, 197, 257, 577, 729, 1500, 512, 32768}
    assert all(
        any(getattr(w, name) for w in EVERY)
        for name in ("packed", "sink", "softcap", "alibi", "window_left", "d_head_v", "page_size")
    )


def test_every_problem_is_one_that_keys_and_lookups_know() -> None:
    assert [Workload.from_key(w.key) for w in EVERY] == [*EVERY]


def test_a_family_takes_every_problem_or_says_why_not() -> None:
    limits = limits_for("sm_90", None)
    for workload in EVERY:
        if families.defaults_for(workload, limits):
            continue
        for family in families.runnable(limits, workload.op):
            config = families.default_for(family, workload)
            strange = not_among(workload, family.computes)  # type: ignore[attr-defined]
            refused = families.constraints(config, limits)
            other = not family.suits(workload) or not families.fits(config, workload)
            assert strange or (refused and refused.reason) or other, (workload.key, family.name)


def test_the_rule_by_hand() -> None:
    one = Layers(
        count=1, heads=4, kv_heads=2, d_head=64, causal=True, context=1000, uses=("prefill",)
    )
    (prompt,) = one.workloads("prefill", DType.FP16)
    assert prompt == Workload(16, 4, 2, 512, 512, 64, DType.FP16, causal=True)
    training = [*one.workloads("training", DType.FP16)]
    assert {(w.op, w.packed, w.lse) for w in training} == {
        *((FORWARD, packed, True) for packed in (False, True)),
        *((BACKWARD, packed, False) for packed in (False, True)),
    }
    assert all(w.seq_len_q == 1000 and w.causal for w in training)
    decoding = [*one.workloads("decoding", DType.FP16)]
    assert all(w.seq_len_kv <= 1000 for w in decoding)
    assert all(w.seq_len_q == 1 or w.mask == "causal_br" for w in decoding)
    of_encoder = Layers(
        count=1, heads=4, kv_heads=4, d_head=72, seq_lens=(729,), keys=77, uses=("encoding",)
    )
    found = [*of_encoder.workloads("encoding", DType.BF16)]
    assert {(w.seq_len_q, w.seq_len_kv, w.mask) for w in found} == {(729, 77, "full")}
    assert {w.batch for w in found} == {1, 16, 64}


def test_a_use_is_a_part_of_its_model() -> None:
    whole = published.workloads_of("gpt-oss-20b")
    parts = [published.workloads_of(f"gpt-oss-20b:{use}") for use in USES[:3]]
    assert {w for part in parts for w in part} == {*whole}
    assert published.workloads_of(" GPT-OSS-20B ") == whole
    for wrong in ("gpt-oss-20b:encoding", "gpt-oss-20b:speech", "gpt-oss-21b", "../models/gpt-2"):
        with pytest.raises(InvalidConfig):
            published.workloads_of(wrong)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("kv_heads = 2", "kv_heads = 3"),
        ("count = 2", "count = 0"),
        ("d_head = 64", "d_head = 64.0"),
        ("context = 4096", "seq_lens = [4096]"),
        ("context = 4096", "context = 4096\nseq_lens = [4096]"),
        ("context = 4096", ""),
        ("causal = true", "causal = true\ncolour = 1"),
        ('"prefill", "decoding"', ""),
        ('"prefill"', '"encoding"'),
        ("bf16", "fp64"),
        ("[[layers]]", "[layers]"),
        ("heads = 8", "heads ="),
        ("a/b", "\udcff"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_its_name(folder: Path, old: str, new: str) -> None:
    assert old in GOOD
    path = folder / "mine.toml"
    path.write_bytes(GOOD.encode())
    assert published.workloads_of("mine")
    published.load.cache_clear()
    path.write_bytes(GOOD.replace(old, new, 1).encode("utf-8", "surrogateescape"))
    with pytest.raises(ProfileFormatError, match=r"mine\.toml: ") as refused:
        published.workloads_of("mine")
    assert "\n" not in str(refused.value)


def test_an_installation_without_the_folder_names_no_model(folder: Path) -> None:
    shutil.rmtree(folder)
    with pytest.raises(FaTuneError):
        published.workloads_of("gpt-2")
