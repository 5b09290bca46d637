"""What goes into an export; nothing is compiled here."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import cast

import pytest

from fa_tune import families
from fa_tune.build.native.core import KernelImage
from fa_tune.core.arch import limits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Variant
from fa_tune.core.workload import BACKWARD, DType, Workload
from fa_tune.export.project import Export, ExportedKernel, choose
from fa_tune.export.selection import ExportOptions, Selection, kernel_computes, select
from fa_tune.families.decode.config import DecodeConfig
from fa_tune.store.registry.schema import Gpu, Registry
from tests.export.small_registry import (
    D_HEAD,
    FAST,
    FEW,
    FEW_CACHED,
    H200,
    MMA,
    OTHER,
    entry,
    small_registry,
)

NOWHERE = Path("registry.json")
SHAPE = (2, 4, 4, 512, 512)


def options(**given: object) -> ExportOptions:
    return ExportOptions(**{"registry": NOWHERE, "dtypes": (DType.FP16,), **given})  # type: ignore[arg-type]


def chosen_on_h200(*pairs: tuple[Workload, str]) -> Registry:
    return Registry.of(entry(H200, workload, config) for workload, config in pairs)


def exported(found: Selection) -> Export:
    """What an export of these would be, were they compiled."""
    image = cast(KernelImage, None)
    kernels = tuple(ExportedKernel(r.variant, r.traits, r.arch, "", image) for r in found.kernels)
    defaults = tuple(v.key for v in found.defaults)
    sized = tuple(found.sized)
    return Export(NOWHERE, kernels, tuple(found.entries), defaults, sized, (), "")


def test_each_mask_that_a_config_was_chosen_for_with_and_without_whole_blocks() -> None:
    full, causal = (Workload(*SHAPE, D_HEAD, DType.FP16, causal=c) for c in (False, True))
    found = select(chosen_on_h200((full, FAST), (causal, OTHER)), options())
    traits = {
        config: Counter(r.traits for r in found.kernels if r.variant.config == config)
        for config in (FAST, OTHER)
    }
    assert traits[FAST] == Counter(["plain", "ragged"])
    assert traits[OTHER] == Counter(["causal", "causal+ragged"])
    (default, *_) = families.defaults(D_HEAD, DType.FP16, limits((9, 0)))
    assert found.defaults == [families.variant(default)]
    assert {r.traits for r in found.kernels if r.variant == found.defaults[0]} == {
        *("plain", "ragged", "causal", "causal+ragged")
    }
    assert {r.arch for r in found.kernels} == {"sm_90a"}
    assert not found.left_out


@pytest.mark.parametrize("by_entry", [True, False])
def test_the_log_sum_exp_comes_by_wish_or_by_an_entry(by_entry: bool) -> None:
    workload = Workload(*SHAPE, D_HEAD, DType.FP16, lse=by_entry)
    found = select(chosen_on_h200((workload, FAST)), options(lse=not by_entry))
    assert {r.traits for r in found.kernels if r.variant.config == FAST} == {
        *("plain", "ragged", "lse", "ragged+lse")
    }


def test_windows_and_what_changes_scores_have_kernels_of_their_own() -> None:
    workload = Workload(*SHAPE, D_HEAD, DType.FP16, causal=True, window_left=99, sink=True)
    hooked = Workload(*SHAPE, D_HEAD, DType.FP16, score_hook="0" * 16)
    found = select(chosen_on_h200((workload, FAST), (hooked, OTHER)), options())
    made = {r.traits for r in found.kernels if r.variant.config == FAST}
    assert made == {"causal+window+sink", "causal+ragged+window+sink"}
    config = families.config_of(Variant("sm90", FAST))
    plain = Workload(*SHAPE, D_HEAD, DType.FP16, causal=True)
    assert kernel_computes(config, "causal+ragged+window+sink", workload)
    assert not kernel_computes(config, "causal+ragged+window+sink", plain)
    assert not kernel_computes(config, "causal+ragged", workload)
    assert [text for text in found.left_out if "score hook" in text]


@pytest.mark.parametrize("by", ["entry", "wish", "config"])
def test_backward_passes_come_with_the_forward_passes_that_they_need(by: str) -> None:
    full = Workload(*SHAPE, D_HEAD, DType.FP16)
    backward = dataclasses.replace(full, op=BACKWARD)
    (default, *_) = families.defaults(D_HEAD, DType.FP16, limits((9, 0)), BACKWARD)
    own = str(dataclasses.replace(default, dynamic=True))
    known = {"entry": ((backward, own),), "wish": ((full, FAST),), "config": ((full, FAST),)}[by]
    asked = {"entry": {}, "wish": {"backward": True}, "config": {"kernels": own}}[by]
    found = select(chosen_on_h200(*known), options(**asked))
    traits = {
        family: {r.traits for r in found.kernels if r.variant.family == family}
        for family in ("sm90", "sm90_bwd")
    }
    assert traits["sm90_bwd"] == {"plain", "ragged", "causal", "causal+ragged"}
    assert {"ragged+lse", "causal+lse"} < traits["sm90"]
    assert families.variant(default) in found.defaults
    assert not found.left_out
    made = exported(found)
    chosen = own if by == "entry" else str(default)
    assert choose(made, H200.name, 90, backward) == f"sm90_bwd:{chosen}"


def test_the_gradient_of_the_log_sum_exp_comes_by_an_entry() -> None:
    backward = Workload(*SHAPE, D_HEAD, DType.FP16, op=BACKWARD, lse=True)
    config = str(families.get("sm90_bwd").default_config(D_HEAD, DType.FP16))
    found = select(chosen_on_h200((backward, config)), options())
    made = {r.traits for r in found.kernels if r.variant.family == "sm90_bwd"}
    assert {"plain", "ragged", "lse", "ragged+lse"} <= made
    assert "causal+lse" not in made


def test_defaults_for_few_queries_come_first_and_by_wish() -> None:
    full = Workload(*SHAPE, D_HEAD, DType.FP16)
    few = dataclasses.replace(full, seq_len_q=1)
    registry = chosen_on_h200((full, FAST))
    plain = select(registry, options())
    found = select(registry, options(few_queries=True))
    *more, last = found.defaults
    assert [last] == plain.defaults
    configs = [families.config_of(variant) for variant in more]
    assert all(families.of(c).suits(few) and not families.of(c).suits(full, c) for c in configs)
    assert any(families.of(c).suits(few, c) for c in configs), "by a tile that is not too large"
    # One kernel for all lengths.
    assert {r.traits for r in found.kernels if r.variant in more} == {"ragged", "causal+ragged"}
    for c in configs:
        assert kernel_computes(c, "ragged", few)


def test_defaults_by_size_stand_behind_what_is_tuned_nearby() -> None:
    few = Workload(8, 16, 4, 2, 8192, D_HEAD, DType.FP16)
    found = select(chosen_on_h200((few, FEW)), options(by_size=True))
    made = exported(found)
    assert choose(made, H200.name, 90, few) == f"decode:{FEW}"
    for far in (
        dataclasses.replace(few, batch=1, seq_len_q=4),
        dataclasses.replace(few, batch=64, seq_len_kv=1024),
        dataclasses.replace(few, batch=128, cache_lengths="equal"),
    ):
        (default, *_) = families.defaults_for(far, limits((9, 0)))
        assert choose(made, H200.name, 90, far) == families.variant(default).key
    # 4 rows have the default of 16, which loads queries together.
    one = dataclasses.replace(few, batch=1, seq_len_q=1)
    (default, *_) = families.defaults_for(one, limits((9, 0)))
    assert isinstance(default, DecodeConfig)
    shared = dataclasses.replace(default, shared_queries=True)
    assert choose(made, H200.name, 90, one) == families.variant(shared).key
    many = dataclasses.replace(few, seq_len_q=100)
    assert choose(made, H200.name, 90, many) == made.defaults[-1]
    assert {d.key for d in found.sized} <= {r.variant.key for r in found.kernels}


@pytest.mark.parametrize("with_another", [False, True])
def test_defaults_by_size_are_those_of_the_model_that_entries_are_of(with_another: bool) -> None:
    """Of one with slower memory other CTAs are enough; of two models neither has its own."""
    few = Workload(8, 16, 4, 2, 8192, D_HEAD, DType.FP16)
    h100 = dataclasses.replace(H200, name="NVIDIA H100 80GB HBM3")
    found = [entry(h100, few, FEW)] + [entry(H200, few, FEW)] * with_another
    made = exported(select(Registry.of(found), options(by_size=True)))
    far = Workload(1, 64, 8, 2, 32768, D_HEAD, DType.FP16)
    own, other = (
        families.variant(families.defaults_for(far, limits((9, 0), gpu=gpu))[0]).key
        for gpu in (h100.name, H200.name)
    )
    assert own != other
    assert choose(made, h100.name, 90, far) == (other if with_another else own)


def test_an_entry_of_a_cache_in_e4m3_is_exported() -> None:
    few = Workload(8, 16, 4, 2, 8192, D_HEAD, DType.FP16, kv_e4m3=True)
    (config, *_) = families.defaults_for(few, limits((9, 0)))
    variant = families.variant(config)
    found = select(chosen_on_h200((few, variant.config)), options())
    assert not found.left_out
    assert choose(exported(found), H200.name, 90, few) == variant.key


def test_caches_in_e4m3_have_defaults_by_wish() -> None:
    full = Workload(*SHAPE, D_HEAD, DType.FP16)
    few = Workload(8, 16, 4, 2, 8192, D_HEAD, DType.FP16, kv_e4m3=True)
    registry = chosen_on_h200((full, FAST))
    for wish in ({}, {"few_queries": True}, {"by_size": True}):
        assert choose(exported(select(registry, options(**wish))), H200.name, 90, few) is None
    made = exported(select(registry, options(kv_e4m3=True)))
    assert choose(made, H200.name, 90, few) in made.defaults
    made = exported(select(registry, options(kv_e4m3=True, by_size=True)))
    (default, *_) = families.defaults_for(few, limits((9, 0)))
    assert choose(made, H200.name, 90, few) == families.variant(default).key
    wide = dataclasses.replace(few, kv_e4m3=False)
    (default, *_) = families.defaults_for(wide, limits((9, 0)))
    assert choose(made, H200.name, 90, wide) == families.variant(default).key
    older = options(kv_e4m3=True, by_size=True, archs=("sm_80",), d_heads=(D_HEAD,))
    assert not select(Registry.of(), older).left_out, "before 8.9 there are none"


def test_every_workload_of_an_entrys_kind_has_a_kernel() -> None:
    found = select(small_registry(), options())
    # Windows and packed batches depend on the lengths: with one query they are other kernels.
    for e in (e for e in found.entries if e.workload.is_plain and not e.workload.packed):
        for q in (1, 512, 1000):
            asked = dataclasses.replace(e.workload, seq_len_q=q, bottom_right=False)
            config = families.config_of(e.chosen)
            traits = [r.traits for r in found.kernels if r.variant == e.chosen]
            assert any(kernel_computes(config, t, asked) for t in traits)


def test_entries_of_packed_batches_and_of_few_queries_go_together() -> None:
    """A packed batch is nothing that decode kernels compute, whoever asks."""
    packed = Workload(*SHAPE, D_HEAD, DType.FP16, causal=True, lengths="lognormal-1-1")
    few = Workload(8, 16, 4, 2, 8192, D_HEAD, DType.FP16)
    found = select(chosen_on_h200((packed, FAST), (few, FEW)), options())
    able = {
        r.variant.config
        for r in found.kernels
        if kernel_computes(families.config_of(r.variant), r.traits, packed)
    }
    assert FAST in able
    assert FEW not in able


def test_only_what_serves_the_workloads() -> None:
    near = Workload(16, 16, 16, 3900, 3900, D_HEAD, DType.FP16)
    found = select(small_registry(), options(workloads=(near,), archs=("sm_90a",)))
    assert [e.workload.seq_len_q for e in found.entries] == [4096]
    other = dataclasses.replace(near, dtype=DType.BF16)
    found = select(small_registry(), options(workloads=(near, other), archs=("sm_90",)))
    assert any(other.key in text and "a default will" in text for text in found.left_out)


@pytest.mark.parametrize("d_heads", [(), (128,)])
def test_workloads_without_an_entry_have_the_default_of_their_head_dimension(
    d_heads: tuple[int, ...],
) -> None:
    workload = Workload(16, 16, 16, 1024, 1024, 40, DType.FP16)
    chosen = options(workloads=(workload,), archs=("sm_90a",), d_heads=d_heads)
    found = select(small_registry(), chosen)
    assert any("a default will" in text for text in found.left_out)
    assert any(families.fits(families.config_of(v), workload) for v in found.defaults)


def test_entries_that_cannot_be_exported_are_left_out() -> None:
    workload = Workload(*SHAPE, D_HEAD, DType.FP16)
    other = dataclasses.replace(workload, batch=3)
    registry = Registry.of(
        [
            entry(H200, workload, FAST),
            entry(Gpu("NVIDIA V100", (7, 0)), workload, MMA),
            dataclasses.replace(
                entry(H200, other, MMA), chosen=Variant("sm80", "(FP16, 64): of another version")
            ),
        ]
    )
    found = select(registry, options())
    assert [e.workload for e in found.entries] == [workload]
    assert len(found.left_out) == 2
    assert any("sm_70" in text for text in found.left_out)
    # Code for sm_90a does not run there.
    found = select(registry, options(archs=("sm_80",)))
    assert not found.entries
    assert any("no architecture" in text for text in found.left_out)


def test_devices_of_a_later_minor_version_run_the_earlier_code() -> None:
    workload = Workload(*SHAPE, D_HEAD, DType.FP16)
    registry = Registry.of([entry(Gpu("NVIDIA L40S", (8, 9)), workload, MMA)])
    found = select(registry, options(archs=("sm_80", "sm_90")))
    assert {r.arch for r in found.kernels if r.variant.config == MMA} == {"sm_80"}
    assert {r.arch for r in select(registry, options()).kernels} == {"sm_89"}


def test_configs_beside_those_that_were_chosen() -> None:
    found = select(Registry.of(), options(kernels=MMA, archs=("sm_80",)))
    assert {r.traits for r in found.kernels if r.variant.config == MMA} == {
        *("plain", "ragged", "causal", "causal+ragged")
    }
    found = select(
        Registry.of(), options(kernels="prog", archs=("sm_80",), d_heads=(128,), ptx=True)
    )
    ladder = {families.variant(c) for c in families.get("sm80").configs("prog", d_head=128)}
    assert ladder <= {r.variant for r in found.kernels}
    assert {variant for variant, _ in found.ptx} == set(found.defaults)
    found = select(Registry.of(), options(kernels=FAST, archs=("sm_80", "sm_90")))
    assert {r.arch for r in found.kernels if r.variant.config == FAST} == {"sm_90a"}
    assert len(found.left_out) == 1
    assert found.left_out[0].startswith(f"{FAST} on sm_80: ")
    stated_by_option = options(
        kernels=MMA.replace(", 64,", ",", 1), archs=("sm_80",), d_heads=(64,)
    )
    assert MMA in {r.variant.config for r in select(Registry.of(), stated_by_option).kernels}
    with pytest.raises(InvalidConfig, match="no-such-set"):
        select(Registry.of(), options(kernels="no-such-set", archs=("sm_80",)))


def test_an_entry_of_few_queries_brings_the_defaults_for_what_is_far_from_it() -> None:
    few = Workload(8, 16, 4, 2, 8192, D_HEAD, DType.FP16)
    found = select(chosen_on_h200((few, FEW)), options())
    far = dataclasses.replace(few, batch=1, seq_len_q=1)
    configs = [families.config_of(v) for v in found.defaults]
    assert any(families.is_for_decode_shapes(c) and families.of(c).suits(far, c) for c in configs)


def test_a_cache_of_several_sequences_runs_what_was_tuned_for_caches() -> None:
    known = Workload(8, 16, 4, 2, 8192, D_HEAD, DType.FP16)
    equal, uneven = (
        dataclasses.replace(known, cache_lengths=text) for text in ("equal", "lognormal-1-0")
    )
    one = dataclasses.replace(equal, batch=1, kv_heads=16)
    registry = chosen_on_h200((known, FEW), (equal, FEW), (uneven, FEW_CACHED))
    found = select(registry, options())
    assert [e.workload for e in found.entries] == [known, equal]
    made = exported(found)
    assert choose(made, H200.name, 90, known) == f"decode:{FEW}"
    assert choose(made, H200.name, 90, equal) == f"decode:{FEW_CACHED}"
    assert choose(made, H200.name, 90, uneven) == f"decode:{FEW_CACHED}"
    made = exported(select(chosen_on_h200((known, FEW)), options()))
    assert choose(made, H200.name, 90, known) == f"decode:{FEW}"
    assert choose(made, H200.name, 90, uneven) in made.defaults
    paged = dataclasses.replace(known, page_size=64)
    assert choose(made, H200.name, 90, paged) in made.defaults
    made = exported(
        select(chosen_on_h200((dataclasses.replace(one, cache_lengths=""), FEW)), options())
    )
    assert choose(made, H200.name, 90, one) == f"decode:{FEW}", "one sequence is as long as itself"


def with_kernels(*kernels: tuple[str, str, str]) -> Export:
    """Of (config, traits, architecture), each config a default in this order."""
    made = exported(Selection())
    variants = [families.variant(families.parse(config)) for config, _, _ in kernels]
    image = cast(KernelImage, None)
    parts = tuple(
        ExportedKernel(variant, traits, arch, "", image)
        for variant, (_, traits, arch) in zip(variants, kernels, strict=True)
    )
    return dataclasses.replace(
        made, kernels=parts, defaults=tuple(dict.fromkeys(v.key for v in variants))
    )


@pytest.mark.parametrize(
    ("n_q", "n_kv", "whole"),
    [(128, 256, True), (256, 128, True), (128, 255, False), (127, 256, True), (128, 64, False)],
)
def test_a_kernel_for_whole_blocks_runs_nothing_else(n_q: int, n_kv: int, whole: bool) -> None:
    """Its blocks are of 128 keys; queries may end within one."""
    workload = Workload(2, 4, 4, n_q, n_kv, D_HEAD, DType.FP16)
    of_whole = with_kernels((FAST, "plain", "sm_90a"))
    assert (choose(of_whole, H200.name, 90, workload) is not None) is whole
    of_any = with_kernels((FAST, "ragged", "sm_90a"))
    assert choose(of_any, H200.name, 90, workload) is not None
    for traits in ("causal+ragged", "ragged+lse"):
        assert choose(with_kernels((FAST, traits, "sm_90a")), H200.name, 90, workload) is None


@pytest.mark.parametrize(
    ("arch", "runs", "does_not"),
    [
        ("sm_80", (80, 86, 89), (75, 90, 100, 70)),
        ("sm_86", (86, 89), (80, 90)),
        ("sm_90a", (90,), (80, 89, 100, 120)),
        ("compute_80", (80, 86, 90, 120), (75,)),
    ],
)
def test_code_runs_on_the_devices_that_it_is_for(
    arch: str, runs: tuple[int, ...], does_not: tuple[int, ...]
) -> None:
    workload = Workload(2, 4, 4, 128, 256, D_HEAD, DType.FP16)
    made = with_kernels((MMA, "ragged", arch))
    able = {c for c in (*runs, *does_not) if choose(made, "another", c, workload) is not None}
    assert able == set(runs)
