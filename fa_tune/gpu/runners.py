"""Runners: what can be launched on the tensors of a workload.  The jobs know nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from fa_tune import libraries
from fa_tune.core.jobs import KernelItem
from fa_tune.core.model import is_reference, is_users, reference_name, user_place
from fa_tune.gpu.launch import CompiledKernel
from fa_tune.libraries import user
from fa_tune.operations.base import Launch, Problem


class Runner(Protocol):
    """Runner: something that can be launched."""

    @property
    def subject(self) -> str:
        """Its key in tables."""

    @property
    def versions(self) -> Mapping[str, str]:
        """The packages that it ran with, by name; known after the first call."""

    def bind(self, problem: Problem) -> Launch:
        """A call that enqueues one launch on torch's current stream.  Calls of one runner follow
        each other.  Only the first may allocate what a graph cannot hold.  Raises InvalidConfig for
        a workload that the runner has no call for."""


def runner_of(item: KernelItem) -> Runner:
    """The runner of a job item: a library (`ref:fa2`), a user's (`user:…`), or a variant's
    kernel."""
    if is_users(item.subject):
        return user.locate(user_place(item.subject))
    if is_reference(item.subject):
        return libraries.get(reference_name(item.subject))
    return CompiledKernel(item)
