"""The JSON documents of all commands, by name: what `fa-tune schema` prints."""

from __future__ import annotations

from collections.abc import Mapping

from fa_tune.commands.bench_between import BenchBetween
from fa_tune.commands.bench_decisions import BenchDecisions
from fa_tune.commands.build import Build
from fa_tune.commands.doctor import Doctor
from fa_tune.commands.explain import Explain
from fa_tune.commands.profile import Profile
from fa_tune.commands.report import Report
from fa_tune.commands.run import Run
from fa_tune.commands.search import Stale
from fa_tune.commands.shared.documents import name_of
from fa_tune.commands.space import Space
from fa_tune.commands.verify import Verify
from fa_tune.commands.views.default_check import RegistryCheck
from fa_tune.commands.views.registry_table import Best
from fa_tune.commands.views.search import Search
from fa_tune.commands.views.timings import Bench
from fa_tune.core.judged import JudgeReport
from fa_tune.core.published import PublishedModel
from fa_tune.lab.scores import BenchSearch
from fa_tune.store.capture.schema import Capture
from fa_tune.store.proof import Proof
from fa_tune.store.registry.schema import Registry

_PRINTED: tuple[type, ...] = (
    *(Search, Profile, Bench, Verify, Run, Report, Doctor),
    *(Explain, Stale, Space, Build, RegistryCheck, Best),
    *(BenchSearch, BenchDecisions, BenchBetween, JudgeReport),
)
# Files, which have no name in a field `schema`.
_FILES: Mapping[str, type] = {"registry": Registry, "model": PublishedModel}
DOCUMENTS: Mapping[str, type] = {**{name_of(d): d for d in (*_PRINTED, Capture, Proof)}, **_FILES}
