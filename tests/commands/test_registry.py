from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path

import pytest

from fa_tune.commands.views.registry_prose import _tied
from fa_tune.core.model import DeviceInfo, Provenance, Variant
from fa_tune.core.paths import profiles_dir
from fa_tune.core.stats import Interval, Ratio
from fa_tune.core.workload import DType, benchmark_workload
from fa_tune.operations import flops
from fa_tune.store.registry.file import load, save
from fa_tune.store.registry.schema import (
    Entry,
    Gpu,
    InputFigures,
    Registry,
    RunnerUp,
    Served,
    VerdictSummary,
)
from tests.commands import fakes
from tests.commands.console import Console

H200, H100 = "NVIDIA H200", "NVIDIA H100"


def entry(
    seq_len: int = 4096,
    *,
    gpu: str = H200,
    dtype: DType = DType.FP16,
    config: str = fakes.FAST,
    n: int = 5,
    method: str = "ncu",
) -> Entry:
    workload = benchmark_workload(seq_len, 128, dtype)
    config = config.replace("FP16", dtype.name)
    provenance = Provenance(
        *(gpu, "580.1", "13.0", "13.0", method, "2025.3.1", ("--csv",), "none", "all", "ab" * 32),
        recorded_at="2026-01-02T03:04:05+00:00",
        fa_tune_version="0.1.0",
    )
    return Entry(
        gpu=Gpu(gpu, (9, 0)),
        workload=workload,
        method=method,
        inputs="normal",
        source="measured",
        recording=None,
        chosen=Variant("sm80", config),
        traits="",
        reason="it is the fastest",
        median_s=5e-3,
        interval_s=(4.9e-3, 5.1e-3),
        n=n,
        tflops=flops.tflops(flops.matmul_flop(workload), 5e-3),
        default=Variant("sm80", fakes.SLOW),
        ratio_to_default=Ratio(0.5, None),
        ratio_to_references={"fa2": Ratio(0.8, None)},
        tie_set=(Variant("sm80", config), Variant("sm80", fakes.SLOW)),
        runners_up=(),
        verdict=VerdictSummary(True, 4, 1e-4, 2e-4),
        confirmation=None,
        per_inputs={},
        provenance=provenance,
        served=None,
    )


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three entries of one GPU, where the program looks for them."""
    path = tmp_path / "registry.json"
    save(path, Registry.of([entry(1024), entry(4096), entry(4096, dtype=DType.BF16)]))
    monkeypatch.setenv("FA_TUNE_REGISTRY", str(path))
    return path


def test_show_lists_entries_as_speeds(console: Console, registry: Path) -> None:
    done = console("registry", "show", "--wide", "--seq-len", "4096", "--dtype", "fp16")
    assert done.status == 0
    (row,) = [line for line in done.out.splitlines() if line.startswith("|") and H200 in line]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == [
        *(H200, "FP16 s4096 d128 b16 h16", "ncu", "sm80", fakes.FAST, "5.000 ms", "±2.00 %", "5"),
        *("440", "2.00", "1.25", "", "1.25", "1", "2026-01-02 measured"),
    ]
    assert done.out.endswith(f"1 of 3 entries in {registry}.\n")


A, B, C = (Variant("sm80", c) for c in (fakes.FAST, fakes.SLOW, fakes.FAST + "+buffer"))


@pytest.mark.parametrize(
    ("chosen", "tied", "ratios", "told"),
    [
        (A, (A, B), {B: 1.001}, ("cannot tell it from", B)),
        (A, (A,), {B: 1.2}, ("No other config measured as fast",)),
        # The default within the margin: the fastest is another, tied with itself alone.
        (B, (A,), {A: 0.994}, (A, "measured fastest")),
        (B, (C, A), {A: 0.992, C: 0.993}, ("cannot tell the fastest,", A, "from", C)),
        (B, (B, A), {A: 0.998}, ("cannot tell the fastest,", A, "from it")),
        (B, (B, A, C), {A: 0.998, C: 0.999}, ("the fastest,", A, "from it or", C)),
    ],
)
def test_ties_are_with_the_fastest_whether_it_was_chosen_or_not(
    chosen: Variant,
    tied: tuple[Variant, ...],
    ratios: dict[Variant, float],
    told: tuple[str | Variant, ...],
) -> None:
    runners = tuple(RunnerUp(v, 5e-3 * r, Ratio(r, None)) for v, r in ratios.items())
    kept = dataclasses.replace(entry(), chosen=chosen, tie_set=tied, runners_up=runners)
    (sentence,) = _tied(kept)
    rest = sentence
    for part in told:
        text = part if isinstance(part, str) else part.config
        assert text in rest, sentence
        rest = rest.partition(text)[2]
    assert sentence.count(A.config) <= 1 + (C in tied), "no config is told from itself"


@pytest.mark.parametrize(
    ("figures", "told"),
    [
        (
            {"normal": InputFigures(5e-3, None, 1.0), "falling": InputFigures(5e-3, None, 1.25)},
            "falling inputs, 1.25 times",
        ),
        (
            {
                "normal": InputFigures(5e-3, Ratio(0.9, None)),
                "falling": InputFigures(6e-3, Ratio(0.95, None)),
            },
            "worst on falling: 5.00 % less time",
        ),
    ],
)
def test_show_says_what_inputs_cost_if_it_is_known(
    console: Console, tmp_path: Path, figures: dict[str, InputFigures], told: str
) -> None:
    path = tmp_path / "one.json"
    save(path, Registry.of([dataclasses.replace(entry(4096), per_inputs=figures)]))
    out = console("registry", "show", "--wide", "--registry", str(path)).out
    assert told in out


def test_show_json_is_a_registry(console: Console, registry: Path, tmp_path: Path) -> None:
    workload = benchmark_workload(1024, 128, DType.FP16)
    done = console("registry", "show", "--workload", workload.key, "--json")
    copy = tmp_path / "copy.json"
    copy.write_text(done.out)
    assert [e.workload for e in load(copy).entries] == [workload]


@pytest.mark.parametrize("option", [("--method", "events"), ("--gpu", H100)])
def test_show_of_nothing_is_status_4(
    console: Console, registry: Path, option: tuple[str, str]
) -> None:
    done = console("registry", "show", *option)
    assert (done.status, len(done.lines)) == (4, 1)


@pytest.mark.parametrize("beside", [("--seq-len", "10"), ("--causal",), ("--dtype", "fp16")])
def test_best_takes_a_key_alone(console: Console, registry: Path, beside: tuple[str, ...]) -> None:
    key = ("registry", "best", "--workload", entry().workload.key)
    assert console(*key, "--gpu", H200).out == f"{fakes.FAST}\n"
    done = console(*key, *beside)
    assert (done.status, done.out) == (2, "")
    assert beside[0] in done.err


def test_best_prints_the_config_alone_and_json_whether_it_is_exact(
    console: Console, registry: Path
) -> None:
    document = console("registry", "best", "--seq-len", "3000", "--json").json
    assert document["exact"] is False
    assert document["config"] == fakes.FAST
    assert document["workload"].startswith("b16_h16_kv16_q3000")
    assert document["entry"]["workload"].startswith("b16_h16_kv16_q4096")
    key = benchmark_workload(4096, 128, DType.FP16).key
    assert console("registry", "best", "--workload", key, "--json").json["exact"]
    done = console("registry", "best", "--seq-len", "4096")
    assert done == type(done)(0, f"{fakes.FAST}\n", "")


def test_best_without_a_match_says_what_there_is(console: Console, registry: Path) -> None:
    done = console("registry", "best", "--seq-len", "4096", "--d-head", "64")
    assert done.status == 4
    assert "only for BF16 d_head 128 full; FP16 d_head 128 full" in done.err
    assert "results of another GPU" in console(*_best("--gpu", H100)).err
    for causal in (("--causal",), ("--mask", "causal"), ("--mask", "causal_br", "--causal")):
        assert console(*_best(*causal)).status == 4
    assert console(*_best("--mask", "full")).out == console(*_best()).out == f"{fakes.FAST}\n"


def _best(*arguments: str) -> tuple[str, ...]:
    return ("registry", "best", "--seq-len", "4096", *arguments)


def test_best_asks_for_the_gpu_only_where_it_is_unclear(console: Console, registry: Path) -> None:
    save(registry, Registry.of([entry(), entry(gpu=H100, config=fakes.SLOW)]))
    done = console(*_best())
    assert done.status == 2
    assert f"--gpu: {H100}, {H200}" in done.err
    assert done.err.count("\n") == 1
    # One GPU alone has an entry of this very workload.
    save(registry, Registry.of([entry(), entry(2048, gpu=H100, config=fakes.SLOW)]))
    assert console(*_best()).out == f"{fakes.FAST}\n"
    events = entry(gpu=H100, config=fakes.SLOW, method="events")
    save(registry, Registry.of([entry(), events]))
    assert console(*_best("--method", "events")).out == f"{fakes.SLOW}\n"
    assert console(*_best("--gpu", H100)).out == f"{fakes.SLOW}\n"


def test_best_is_for_this_machines_gpu(
    console: Console, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(registry, Registry.of([entry(), entry(gpu=H100, config=fakes.SLOW)]))
    here = DeviceInfo(H100, (9, 0), "999.9")
    monkeypatch.setattr("fa_tune.core.devices.find_device", lambda index=0: here)
    done = console(*_best())
    assert done.out == f"{fakes.SLOW}\n"
    assert done.lines == [
        "warning: measured with driver 580.1, this is 999.9; search again to be sure"
    ]


def test_merge_keeps_the_better_evidence(console: Console, tmp_path: Path) -> None:
    save(tmp_path / "a.json", Registry.of([entry(1024), entry(n=3)]))
    save(tmp_path / "b.json", Registry.of([entry(n=9, config=fakes.SLOW), entry(gpu=H100)]))
    done = console("registry", "merge", "a.json", "b.json", "-o", "c.json")
    assert done.status == 0, done.err
    assert done.out == "3 entries in c.json, of 4 in 2 files.\n"
    (line,) = done.lines
    assert line.startswith("b16_h16_kv16_q4096_k4096_d128_fp16_full on NVIDIA H200 by ")
    assert line.endswith(f": {fakes.SLOW} stays, {fakes.FAST} goes: 9 samples against 3")
    (kept,) = [e for e in load(tmp_path / "c.json").entries if e.key == entry(4096).key]
    assert (kept.n, kept.chosen.config) == (9, fakes.SLOW)


def test_merge_overwrites_only_what_it_did_read(console: Console, tmp_path: Path) -> None:
    save(tmp_path / "a.json", Registry.of([entry(1024)]))
    save(tmp_path / "precious.json", Registry.of([entry(4096)]))
    before = (tmp_path / "precious.json").read_bytes()
    done = console("registry", "merge", "a.json", "-o", "precious.json")
    assert done.status == 2
    assert "name it among the files" in done.err
    assert (tmp_path / "precious.json").read_bytes() == before
    save(tmp_path / "a.json", Registry.of([entry(1024)]))
    save(tmp_path / "b.json", Registry.of([entry(4096)]))
    assert console("registry", "merge", "a.json", "b.json", "-o", "./a.json").status == 0
    assert len(load(tmp_path / "a.json").entries) == 2
    assert len(load(tmp_path / "b.json").entries) == 1


def test_merge_of_a_damaged_or_missing_file_writes_nothing(
    console: Console, tmp_path: Path
) -> None:
    save(tmp_path / "a.json", Registry.of([entry()]))
    (tmp_path / "b.json").write_text("{")
    assert console("registry", "merge", "a.json", "b.json", "-o", "c.json").status == 5
    assert console("registry", "merge", "a.json", "none.json", "-o", "c.json").status == 3
    assert not (tmp_path / "c.json").exists()


def test_ratio_keys_may_be_subjects_and_the_fastest_counts(
    console: Console, tmp_path: Path
) -> None:
    odd = dataclasses.replace(
        entry(),
        ratio_to_references={"fa2": Ratio(0.5, None), "ref:cudnn": Ratio(1.25, None)},
        per_inputs={
            "normal": InputFigures(5e-3, Ratio(0.5, None)),
            "falling": InputFigures(6e-3, Ratio(0.8, None)),
        },
    )
    path = tmp_path / "odd.json"
    save(path, Registry.of([odd]))
    table = console("registry", "show", "--wide", "--registry", str(path)).out.splitlines()
    cells = [[cell.strip() for cell in table[i].strip("|").split("|")] for i in (1, 3)]
    shown = dict(zip(*cells, strict=True))
    assert (shown["x FA2"], shown["x cuDNN"], shown["x best"]) == ("2.00", "0.80", "0.80")
    assert shown["x default at worst"] == "1.25 (falling)"


# Against the default ----------------------------------------------------------------------------


@pytest.mark.usefixtures("wide_terminal")
def test_check_says_how_many_are_slower_than_the_default(console: Console, registry: Path) -> None:
    done = console("registry", "check")
    assert done.status == 0
    assert done.out.splitlines()[-1] == "Slower than the default by more than 1 %: 0 of 3 choices."
    slow = dataclasses.replace(entry(2048), ratio_to_default=Ratio(1.05, Interval(1.04, 1.06)))
    own = entry(8192, config=fakes.SLOW)
    unknown = dataclasses.replace(entry(512), ratio_to_default=None)
    save(registry, Registry.of([*load(registry).entries, slow, own, unknown]))
    lines = console("registry", "check").out.splitlines()
    assert lines[-1] == (
        "Slower than the default by more than 1 %: 1 of 6 choices; 1 is the default itself; "
        "1 could not be compared, the default was not measured."
    )
    first = next(line for line in lines if line.startswith("|") and H200 in line)
    assert "s2048" in first
    assert "1.0500 (1.0400 to 1.0600)" in first
    assert "slower" in first
    told = console("registry", "check", "--json").json
    assert (told["schema"], told["slower"], len(told["choices"])) == ("fa-tune-check-1", 1, 6)
    (one,) = [c for c in told["choices"] if c["slower"]]
    assert one["ratio"] == {"value": 1.05, "interval": [1.04, 1.06]}


@pytest.mark.usefixtures("wide_terminal")
def test_check_of_recordings_and_of_nothing(
    console: Console, registry: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "profiles" / "nvidia_h200"
    folder.mkdir(parents=True)
    for path in (profiles_dir() / "nvidia_h200").glob("fast_ncu.*"):
        shutil.copy(path, folder)
    done = console("registry", "check", "--recordings", str(folder), "--method", "ncu")
    assert done.status == 0
    assert re.search(r"^Slower than the default .*: 0 of \d+ choices", done.out.splitlines()[-1])
    nothing = console("registry", "check", "--gpu", "NVIDIA Z")
    assert nothing.status == 4
    assert nothing.err == f"error: no choice to check in {registry}\n"


def test_best_prints_nothing_that_is_no_config(console: Console, registry: Path) -> None:
    text = registry.read_text().replace("(FP16, 128, 64, 64, 4): ", "(FP16, 128, 64, 64, 4): x+")
    registry.write_text(text)
    done = console("registry", "best", "--seq-len", "1024", "--dtype", "fp16")
    assert done.status == 5
    assert done.out == ""


def test_best_tells_of_a_library_beside_the_config(console: Console, registry: Path) -> None:
    served = Served("cudnn", "torch 2.11.0, cudnn 9.19.0", Ratio(0.94, None), 40)
    save(registry, Registry.of([dataclasses.replace(entry(1024), served=served)]))
    done = console("registry", "best", "--seq-len", "1024", "--dtype", "fp16")
    assert done.out.strip() == entry(1024).chosen.config
    assert served.packages in " ".join(done.err.split())
