"""What every kernel family has to keep; a family's test class inherits `KernelFamilyContract`."""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from typing import Any

import pytest

from fa_tune import families
from fa_tune.build import nvrtc
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.compile import BuildRequest
from fa_tune.core.arch import limits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.paths import kernels_dir
from fa_tune.core.workload import FORWARD, DType, Workload
from fa_tune.families.axes import read_value
from fa_tune.families.base import KernelFamily
from fa_tune.operations.traits import Traits
from tests.described import DEVICE, described
from tests.gpu.cases import compiled

WORKLOADS = [
    Workload(2, 6, 3, 512, 512, 128, DType.FP16),
    Workload(1, 5, 5, 113, 203, 64, DType.BF16),
    Workload(3, 4, 1, 1, 1, 128, DType.BF16, causal=True),
    Workload(1, 2, 2, 70, 30, 128, DType.FP16, causal=True, bottom_right=True, softmax_scale=2.0),
]
COMPILED = [w for w in WORKLOADS if w.seq_len_q > 1]  # which has the traits of another
ALL_TRAITS = [str(Traits(*flags)) for flags in itertools.product((False, True), repeat=3)]


class KernelFamilyContract:
    """Set `name`, `compute_capability` (of a device it runs on), `bad_configs`, configs that
    no device can run, and `refusing`, the devices that the family does not run on."""

    name: str
    compute_capability: tuple[int, int]
    bad_configs: tuple[Any, ...] = ()
    refusing: tuple[tuple[int, int], ...] = ()

    @pytest.fixture
    def family(self) -> KernelFamily:
        return families.get(self.name)

    @pytest.fixture
    def workload(self, family: KernelFamily, request: pytest.FixtureRequest) -> Workload:
        """That of the parameter, or an ordinary one, of the family's operation."""
        of_forward = getattr(request, "param", WORKLOADS[0])
        return dataclasses.replace(of_forward, op=family.operation)

    def test_is_found_by_its_name(self, family: KernelFamily) -> None:
        assert family.name == self.name
        assert self.name in families.family_names()

    @pytest.mark.parametrize("dtype", list(DType))
    @pytest.mark.parametrize("d_head", [64, 128])
    def test_default_config_runs_and_reads_back(
        self, family: KernelFamily, dtype: DType, d_head: int
    ) -> None:
        config = family.default_config(d_head, dtype)
        assert family.constraints(config, limits(self.compute_capability)) is None
        assert family.parse(str(config)) == config
        variant = families.variant_of(family, config)
        assert families.get(variant.family).parse(variant.config) == config

    def test_refuses_what_cannot_run_with_name_and_reason(self, family: KernelFamily) -> None:
        assert self.bad_configs
        for config in self.bad_configs:
            rejected = family.constraints(config, limits(self.compute_capability))
            assert rejected is not None, config
            assert rejected.constraint.isidentifier()
            assert " " in rejected.reason
            assert "\n" not in rejected.reason

    def test_runs_on_its_devices_and_refuses_the_others(self, family: KernelFamily) -> None:
        here = limits(self.compute_capability)
        assert families.device_rejection(family, here) is None
        assert family in families.runnable(here, family.operation)
        assert family.compile_arch(here) in (here.arch, f"{here.arch}a")
        config = family.default_config(128, DType.FP16)
        for capability in self.refusing:
            rejected = families.device_rejection(family, limits(capability))
            assert rejected is not None
            assert family.constraints(config, limits(capability)) == rejected
            assert family not in families.runnable(limits(capability), family.operation)

    @pytest.mark.parametrize("d_head", [64, 128])
    def test_the_tune_set_runs_somewhere_and_belongs_to_the_family(
        self, family: KernelFamily, d_head: int
    ) -> None:
        configs = family.configs("tune", d_head=d_head)
        assert any(not family.constraints(c, limits(self.compute_capability)) for c in configs)
        assert len(set(configs)) == len(configs)
        assert {type(c) for c in configs} == {family.config_class}
        assert {c.d_head for c in configs} == {d_head}
        assert not [c for c in configs if family.tune_rejection(c)]
        (dtype, *_) = DType
        assert family.configs("tune", dtypes=[dtype], d_head=d_head) == [
            c for c in configs if c.dtype is dtype
        ]

    def test_a_key_that_is_none_of_its_sets_is_refused(self, family: KernelFamily) -> None:
        with pytest.raises(InvalidConfig, match="no such set"):
            family.configs("no such set")

    def test_its_short_forms_and_kernel_names_are_its_own(self, family: KernelFamily) -> None:
        workload = dataclasses.replace(WORKLOADS[1], op=family.operation)
        for config in family.configs("tune"):
            traits = family.traits(config, workload, lse=True)
            for text in (str(config), family.name_expression(config, traits)):
                assert [f.name for f in families.all_families() if f.recognises(text)] == [
                    self.name
                ]
                assert families.parse(text) == config
            assert families.of(config) is family
            assert str(Traits.in_kernel_name(family.name_expression(config, traits))) == traits
        assert families.parse(family.example) == family.parse(family.example)
        assert families.parse(f'"{family.example}"') == family.parse(family.example)

    def test_knobs_read_back_from_text(self, family: KernelFamily) -> None:
        config = family.default_config(128, DType.BF16)
        for f in dataclasses.fields(config):
            value = getattr(config, f.name)
            word = value.name if isinstance(value, Enum) else str(value)
            assert read_value(family.config_class, f.name, word) == value

    def test_sources_are_complete(self, family: KernelFamily) -> None:
        files = family.source_files()
        entry = family.entry_source(family.default_config(128, DType.FP16), "plain")
        for text in (entry, *files.values()):
            assert set(re.findall(r'^ *#include "(.*)"', text, re.MULTILINE)) <= files.keys()

    def test_refuses_garbage(self, family: KernelFamily) -> None:
        with pytest.raises(InvalidConfig):
            family.parse("no config at all")

    @pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.key, indirect=True)
    def test_geometry_covers_every_query(self, family: KernelFamily, workload: Workload) -> None:
        config = family.default_config(workload.d_head, workload.dtype)
        launch, *_ = described(config, workload)
        rows, _ = families.blocks(config)
        ctas = math.prod(launch.grid)
        shape = families.grid_shape(config, launch.grid)
        if shape is None:  # a persistent grid: as many as the device runs at once, or fewer
            threads_at_once = (
                DEVICE.multiprocessors * limits(self.compute_capability).max_threads_per_sm
            )
            assert 1 <= ctas * launch.block[0] <= threads_at_once
        else:
            assert ctas * rows >= workload.batch * workload.heads * workload.seq_len_q
            assert shape.query_blocks == -(-workload.seq_len_q // rows)
            assert (shape.heads, shape.batch) == (workload.heads, workload.batch)
        parts = zip(launch.grid, launch.cluster, strict=True)
        assert all(whole % part == 0 for whole, part in parts)
        assert launch.block[0] <= 1024

    def test_traits_say_whether_the_log_sum_exp_is_wanted(
        self, family: KernelFamily, workload: Workload
    ) -> None:
        """Of a forward pass; others are given it, and some take its gradient."""
        config = family.default_config(workload.d_head, workload.dtype)
        wanting = dataclasses.replace(workload, lse=True)
        plain, with_lse = (family.traits(config, workload, lse=lse) for lse in (False, True))
        if family.operation == FORWARD:
            assert family.traits(config, wanting) == with_lse != plain
        else:
            assert with_lse == plain
            assert not family.suits(wanting) or family.traits(config, wanting) != plain

    @pytest.mark.parametrize("traits", ALL_TRAITS)
    def test_a_kernel_is_verified_on_workloads_of_its_own_traits(
        self, family: KernelFamily, traits: str
    ) -> None:
        """Else it is not the kernel that is meant, and one with the log-sum-exp, launched on a
        workload without it, has no room to write it to."""
        if Traits.parse(traits).lse and "lse" not in family.computes:
            pytest.skip("a trait that the family has no kernels for")
        configs = (family.default_config(128, DType.BF16), *family.configs("tune", d_head=64))
        for config in configs:
            for workload in family.extra_verification(config, traits):
                assert family.traits(config, workload) == traits
                assert (workload.dtype, workload.d_head) == (config.dtype, config.d_head)

    def test_every_config_computes_what_it_is_verified_on(self, family: KernelFamily) -> None:
        for config in family.configs("tune", d_head=64):
            kernel = families.variant_of(family, config)
            for case in families.verification_cases(kernel, "ragged"):
                assert family.traits(config, case.workload) in ("plain", "ragged")

    @pytest.mark.parametrize("workload", COMPILED, ids=lambda w: w.key, indirect=True)
    def test_compiles_for_the_workloads_traits(
        self, family: KernelFamily, workload: Workload, artifacts: ArtifactStore
    ) -> None:
        config = family.default_config(workload.d_head, workload.dtype)
        traits = family.traits(config, workload, lse=True)
        arch = family.compile_arch(limits(self.compute_capability))
        request = BuildRequest(families.variant_of(family, config), traits, arch)
        (artifact,) = compiled([request], artifacts)
        assert artifact.resources.ctas_per_sm >= 1


class SaidContract(KernelFamilyContract):
    """Of a family whose `rules` (name, sentence and whether it holds) are static_asserts in
    `folder` of kernels/, but for some `unsaid`, and where `traits` are asserted, too, with others;
    `computed` are names of constraints besides."""

    rules: Sequence[tuple[str, str, Callable[[Any], bool]]]
    folder: str
    unsaid: Collection[str] = ()
    traits = False
    computed: Collection[str] = ("smem_fits",)

    def test_each_constraint_is_tried(self, family: KernelFamily) -> None:
        here = limits(self.compute_capability)
        broken = [family.constraints(config, here) for config in self.bad_configs]
        named = {rejected.constraint for rejected in broken if rejected is not None}
        assert named == {name for name, _, _ in self.rules} | {*self.computed}

    def test_static_asserts_say_the_same_sentences(self) -> None:
        text = (kernels_dir() / self.folder / "constraints.cuh").read_text()
        joined = re.sub(r'"\s+"', "", text)  # adjacent literals are one
        asserted = {*re.findall(r'static_assert\(.*?"([^"]+)"\)', joined, re.DOTALL)}
        told = {sentence for name, sentence, _ in self.rules if name not in self.unsaid}
        assert told < asserted if self.traits else told == asserted


class AssertedContract(KernelFamilyContract):
    """Of a family whose `rules` (name, sentence and whether it holds) are static_asserts of its
    `header` as well; `of_device` names what only a device refuses, `archs` are devices with
    different amounts of shared memory."""

    rules: Sequence[tuple[str, str, Callable[[Any], bool]]]
    header: str
    of_device: str
    archs: Sequence[tuple[int, int]]

    def first_broken(self, config: Any) -> str:
        broken = (name for name, _, holds in self.rules if not holds(config))
        return next(broken, self.of_device)

    @pytest.mark.parametrize("d_head", [64, 96, 128, 192, 256])
    def test_there_is_a_default_for_every_d_head_and_size_of_shared_memory(
        self, family: KernelFamily, d_head: int
    ) -> None:
        for dtype, arch in itertools.product(DType, self.archs):
            config = family.default_config(d_head, dtype)
            assert (config.dtype, config.d_head) == (dtype, d_head)
            assert family.constraints(config, limits(arch)) is None

    def test_each_constraint_is_tried(self) -> None:
        named = {self.first_broken(config) for config in self.bad_configs}
        assert named == {name for name, _, _ in self.rules} | {self.of_device}

    def test_the_compiler_refuses_it_with_the_same_sentence(self, family: KernelFamily) -> None:
        for name, sentence, _ in self.rules:
            config = next(c for c in self.bad_configs if self.first_broken(c) == name)
            source = (
                f'#include "{self.header}"\n'
                f"using namespace fa_tune;\nusing namespace fa_tune::{self.name};\n"
                f"constexpr {type(config).__name__} kConfig = {config.to_cpp_struct()};\n"
                "__global__ void kernel() { Constraints<kConfig>(); }\n"
            )
            options = ("-std=c++20", "-arch=sm_90")
            with pytest.raises(nvrtc.CompileError) as caught:
                nvrtc.compile_source(source, "k.cu", family.source_files(), options, ())
            assert sentence in caught.value.log, name
