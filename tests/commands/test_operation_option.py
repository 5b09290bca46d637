"""`--op`, what implies it, and what backward passes are shown as."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fa_tune import families, libraries
from fa_tune.core.model import Variant
from fa_tune.core.options import SearchOptions
from fa_tune.core.workload import DType
from fa_tune.operations import flops
from fa_tune.operations.backward.spec import backward_of
from fa_tune.store.registry import file as registry_file
from fa_tune.store.registry.schema import Registry
from fa_tune.store.table.from_attempts import rows_from_attempts
from fa_tune.store.table.write_csv import write_report
from tests.commands import fakes
from tests.commands.console import Console, words
from tests.commands.test_registry import entry

CONFIG = "sm90_bwd(FP16, 128, 64, 128): q_stages_3+turns"
WORKLOAD = backward_of(fakes.workload())


@pytest.mark.parametrize(
    ("arguments", "op"),
    [
        ((), "forward"),
        (("--op", "backward"), "backward"),
        (("--family", "sm90_bwd"), "backward"),
        (("--kernels", CONFIG), "backward"),
        (("--op", "backward", "--kernels", CONFIG), "backward"),
        (("--family", "sm80,sm90_bwd"), "forward"),
        (("--kernels", fakes.FAST), "forward"),
    ],
)
def test_an_operation_is_named_or_implied(
    console: Console, asked: list[SearchOptions], arguments: tuple[str, ...], op: str
) -> None:
    done = console("search", *arguments)
    assert done.status == 0, done.err
    (options,) = asked
    assert {w.op for w in options.workloads.workloads()} == {op}


@pytest.mark.parametrize(
    "arguments",
    [
        ("--op", "forward", "--kernels", CONFIG),
        ("--op", "backward", "--kernels", fakes.FAST),
        ("--op", "forward", "--family", "sm90_bwd"),
        ("--op", "backward", "--family", "sm80,sm90"),
    ],
)
@pytest.mark.parametrize("command", ["search", "bench", "verify"])
def test_an_operation_that_what_is_named_does_not_compute_is_refused(
    console: Console, asked: list[SearchOptions], command: str, arguments: tuple[str, ...]
) -> None:
    done = console(command, *arguments)
    assert done.status == 2
    assert "leave --op out" in done.err
    assert not asked


def test_backward_passes_are_beside_those_that_are_there(
    console: Console, asked: list[SearchOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FlashAttention 3's is the fastest of the libraries, and not everybody has it."""
    there = libraries.is_installed
    for installed in (False, True):
        monkeypatch.setattr(
            "fa_tune.commands.shared.option_groups.is_installed",
            lambda name, has=installed: has if name == "fa3" else there(name),
        )
        for arguments in ("--op backward", "--op backward --ref fa2", "--ref none", ""):
            assert console("search", *words(arguments)).status == 0
    references = [options.measure.references for options in asked]
    usual = ("fa2", "cudnn")
    assert references[:4] == [usual, ("fa2",), (), usual]
    assert references[4:] == [(*usual, "fa3"), ("fa2",), (), usual]


def test_the_registry_has_both_operations(console: Console, tmp_path: Path) -> None:
    forward = entry()
    config = families.get("sm90_bwd").default_config(128, DType.FP16)
    variant = families.variant(config)
    backward = dataclasses.replace(
        forward,
        workload=WORKLOAD,
        chosen=variant,
        default=variant,
        tie_set=(),
        runners_up=(),
        tflops=flops.tflops(flops.matmul_flop(WORKLOAD), forward.median_s),
    )
    path = tmp_path / "registry.json"
    registry_file.save(path, Registry.of([forward, backward]))
    best = ("registry", "best", "--registry", str(path), "--seq-len", "4096")
    assert console(*best).out.strip() == forward.chosen.config
    assert console(*best, "--op", "backward").out.strip() == variant.config
    nothing = console(*best, "--op", "backward", "--d-head", "64")
    assert nothing.status == 4
    assert "backward" in nothing.err
    shown = console("registry", "show", "--registry", str(path), "--wide").out
    assert "backward" in shown


def test_a_report_counts_and_calls_a_backward_pass_what_it_is(
    console: Console, tmp_path: Path, wide_terminal: None
) -> None:
    found = [
        fakes.attempt(Variant("sm90_bwd", CONFIG).key, (5.0,), WORKLOAD),
        fakes.attempt("ref:fa2", (6.0,), WORKLOAD),
        *fakes.attempts(),
    ]
    path = tmp_path / "both.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        write_report(rows_from_attempts(found, {}), stream)
    backward = console("report", str(path), "--op", "backward")
    assert backward.status == 0, backward.err
    assert ", backward" in backward.out
    assert f"{flops.matmul_flop(WORKLOAD) / 5e-3 / 1e12:.0f} TFLOP/s" in backward.out
    assert fakes.FAST not in backward.out
    both = console("report", str(path), "--format", "json").out
    assert both.count('"op": "backward"') == 2
