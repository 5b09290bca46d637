"""Captures for tests."""

from __future__ import annotations

from typing import Any

from fa_tune.store.capture.schema import SCHEMA, Capture, Problem, Process, Served, Usage

H200 = "NVIDIA H200"


def problem(**others: Any) -> Problem:
    fields: dict[str, Any] = {
        "op": "forward",
        "api": "sdpa",
        "kind": "dense",
        "device": H200,
        "batch": 2,
        "heads": 16,
        "kv_heads": 4,
        "seq_len_q": 1024,
        "seq_len_kv": 1024,
        "d_head": 128,
        "d_head_v": 128,
        "dtype": "bfloat16",
        "layout": "bshd",
    }
    return Problem(**fields | others)


def usage(calls: int = 10, call_s: float | None = 1e-4, **others: Any) -> Usage:
    more = {name: others.pop(name) for name in list(others) if name in Usage.__annotations__}
    timed = 0 if call_s is None else 3
    given: dict[str, Any] = {
        "problem": problem(**others),
        "served": Served("flash", why="nobody asked"),
        "calls": calls,
        "timed": timed,
        "call_s": call_s,
    }
    return Usage(**given | more)


def capture(*usages: Usage, **others: Any) -> Capture:
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "command": ("python", "x.py"),
        "started": "2026-11-29T06:00:00+00:00",
        "wall_s": 1.0,
        "exit_status": 0,
        "processes": (Process(7, "2.13.0", True),),
    }
    return Capture(**fields | {"usages": usages} | others)
