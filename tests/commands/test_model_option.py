"""`--model`: the workloads of published models in place of a grid."""

from __future__ import annotations

import pytest

from fa_tune.core import published
from fa_tune.core.options import SearchOptions
from fa_tune.core.workload import BACKWARD, FORWARD, DType
from tests.commands.console import Console, words

CONFIG = "sm90(BF16, 128, 128x128): stages_2+q_stages_2+pingpong+overlap+stale_max+dynamic"


@pytest.mark.parametrize("op", [FORWARD, BACKWARD])
def test_models_are_the_workloads(console: Console, asked: list[SearchOptions], op: str) -> None:
    done = console(*words(f"search --model llama-3.1-8b,deepseek-v3 --op {op}"))
    assert done.status == 0, done.err
    both = (*published.workloads_of("llama-3.1-8b"), *published.workloads_of("deepseek-v3"))
    (options,) = asked
    assert options.workloads.workloads() == tuple(w for w in both if w.op == op)
    assert options.workloads.head_dims == ((128, 0), (192, 128))


def test_a_problem_of_several_models_is_searched_once(
    console: Console, asked: list[SearchOptions]
) -> None:
    assert console(*words("search --model llama-3.1-8b,mixtral-8x7b,llama-3.1-8b")).status == 0
    found = asked[0].workloads.workloads()
    assert len({*found}) == len(found)


def test_a_config_leaves_the_workloads_of_its_kind(
    console: Console, asked: list[SearchOptions]
) -> None:
    assert console("search", "--model", "all", "--kernels", CONFIG).status == 0
    every = asked[0].workloads
    kind = (DType.BF16, 128, 128, FORWARD)
    found = every.with_kind(*kind).workloads()
    assert found == tuple(w for w in every.workloads() if (w.dtype, w.d_head, w.d_v, w.op) == kind)
    assert 0 < len(found) < len(every.workloads())


@pytest.mark.parametrize(
    "arguments",
    [
        ("--model", "gpt-2", "--seq-lens", "512"),
        ("--model", "gpt-2", "--dtype", "bf16"),
        ("--model", "gpt-2", "--lse"),
        ("--model", "gpt-2:decoding", "--op", "backward"),
        ("--model", "gpt-2", "--kernels", CONFIG),
        ("--model", "gpt-2:singing"),
        ("--model", "gpt-2,"),
    ],
)
def test_what_contradicts_a_model_is_refused(
    console: Console, asked: list[SearchOptions], arguments: tuple[str, ...]
) -> None:
    done = console("search", *arguments)
    assert done.status == 2
    assert len(done.err.splitlines()) == 1
    assert not asked


def test_the_models_are_listed(console: Console) -> None:
    done = console("search", "--model", "list")
    assert done.status == 2
    assert all(name in done.err for name in published.names())


def test_a_replay_of_a_model_answers_for_what_is_recorded(console: Console) -> None:
    done = console(*words("search --model llama-3.1-8b:decoding --ref none --json"))
    assert done.status == 0, done.err
    wanted = {w.key for w in published.workloads_of("llama-3.1-8b:decoding")}
    chosen = {w["workload"] for w in done.json["workloads"] if w["decision"]}
    assert chosen
    assert chosen <= wanted
