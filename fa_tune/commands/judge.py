"""`fa-tune judge`."""

from __future__ import annotations

import dataclasses
import json
import secrets
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from fa_tune.commands.shared.grouped_help import GroupedCommand
from fa_tune.commands.shared.option_groups import Output, is_typed, shared_options
from fa_tune.commands.shared.options import gathered, option
from fa_tune.commands.shared.output import tell, write_json
from fa_tune.commands.shared.parameters import NamedPath, Number, WholeNumber, names, output_file
from fa_tune.commands.shared.progress import watching
from fa_tune.core import codec
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.files import save_file
from fa_tune.core.judged import CLAIMS, REQUIREMENTS, JudgeReport, read_report
from fa_tune.core.model import is_users
from fa_tune.core.options import SearchOptions
from fa_tune.core.units import format_seconds
from fa_tune.report.page.judged import write_judged
from fa_tune.tune.judge.flow import confirms, judge, retake
from fa_tune.tune.judge.process import Limits
from fa_tune.tune.judge.trial import JudgeOptions
from fa_tune.tune.session import open_machine

CPU_LENGTH = 256  # without a GPU, unless other lengths are given


@dataclass(frozen=True, kw_only=True)
class Terms:
    """How a target is judged; `claim` and `seed` None: by its file, drawn."""

    claim: str | None
    required: tuple[str, ...]
    runs: int
    seed: int | None
    timeout_s: float
    memory_gb: float

    @property
    def limits(self) -> Limits:
        """The limits of the target's process."""
        return Limits(self.timeout_s, int(self.memory_gb * 2**30))

    def of(self, target: str, options: SearchOptions, *, on_gpu: bool) -> JudgeOptions:
        """What they are for a target."""
        grid = options.workloads
        if not on_gpu and not is_typed("seq_lens"):
            grid = dataclasses.replace(grid, seq_lens=(CPU_LENGTH,), batches=(1,), heads=4)
        return JudgeOptions(
            workloads=grid.workloads(),
            claim=self.claim or ("kernel" if ".cu:" in target else "torch"),
            required=self.required,
            references=_references(options) if on_gpu else (),
            runs=self.runs,
            seed=secrets.randbits(62) if self.seed is None else self.seed,
            limits=self.limits,
        )


@dataclass(frozen=True, kw_only=True)
class Written:
    """Where a report goes besides the terminal."""

    kept: Path | None
    html: Path | None

    def write(self, found: JudgeReport) -> None:
        """Write it; raises StorageError."""
        if self.kept is not None:
            save_file(self.kept, json.dumps(codec.dump(found), indent=1).encode())
        if self.html is not None:
            write_judged(self.html, found)


@click.command("judge", cls=GroupedCommand)
@click.argument("target", required=False)
@option(
    "--claim",
    type=click.Choice(CLAIMS),
    show_default="kernel for a CUDA file, else torch",
    help="What the target says it is: kernel (nothing of torch computes for it), torch (it uses "
    "torch's operators, no library's attention), library (it may call any).",
)
@option(
    "--require",
    "required",
    type=names(REQUIREMENTS),
    default=(),
    show_default="none",
    metavar="NAME,…",
    help="Also refuse what is not deterministic (equal inputs, equal bits), or does not pass a "
    "query's nan on. Both are reported anyway.",
)
@option("--runs", type=WholeNumber(3, 1000), default=15, help="Samples on each workload.")
@option(
    "--seed",
    type=WholeNumber(0, 2**63 - 1),
    show_default="drawn",
    help="Seed of all shapes and inputs. A target that knows it beforehand may be fitted to it.",
)
@option(
    "--timeout",
    "timeout_s",
    type=Number(1.0, 86_400.0),
    default=120.0,
    metavar="SECONDS",
    help="Time limit for one answer of the target's process.",
)
@option(
    "--memory",
    "memory_gb",
    type=Number(0.1, 100_000.0),
    default=8.0,
    metavar="GB",
    help="On a CPU, memory that the target's process may have.",
)
@option(
    "--report",
    "kept",
    type=output_file(stdout=False),
    metavar="FILE",
    help="Keep the report as JSON, which --retake reads.",
)
@option(
    "--retake",
    "report",
    type=NamedPath(dir_okay=False),
    metavar="FILE",
    help="Judge the target of a report again, with the same draws, and compare.",
)
@gathered("terms", Terms, [field.name for field in dataclasses.fields(Terms)])
@gathered("written", Written, ("kept", "html"))
@shared_options("workloads", "references", "device", "as_json", "html", "quiet")
def command(
    target: str | None,
    options: SearchOptions,
    terms: Terms,
    report: Path | None,
    output: Output,
    written: Written,
    quiet: bool,
) -> None:
    """Verify and time a kernel that may cheat, and refuse it if it does.

    TARGET is what `--with` takes: module:function, file.py:function or file.cu:kernel. It runs in
    a process of its own, on the verification's cases, on random shapes and inputs, and on the
    given workloads, where every timed result is checked. Without a GPU functions are judged on the
    CPU, on 256 queries and keys unless lengths are given. Exit status 4 if the target is refused,
    or if a report is not confirmed.

    \b
    Examples:
      fa-tune judge examples/row_attention.cu:rows --dtype fp16
      fa-tune judge mine.py:attention --claim library --report kept.json
      fa-tune judge --retake kept.json
    """
    if (target is None) == (report is None):
        raise click.UsageError("name a TARGET, or a report with --retake")
    then = None
    told: list[str] = []
    with watching(quiet) as progress:
        machine = open_machine(options.machine, progress)
        if report is not None:
            then = read_report(report)
            found, told = retake(then, terms.limits, machine, progress)
        else:
            wanted = terms.of(str(target), options, on_gpu=machine.device is not None)
            found = judge(str(target), wanted, machine, progress)
    if output.as_json:
        write_json(codec.dump(found))
    else:
        for line in (*_lines(found), *told):
            tell(line)
    written.write(found)
    if then is not None and not confirms(then, found):
        raise NoUsableVariant(f"the report is not confirmed: {'; '.join(told)}")
    if then is None and not found.accepted:
        raise NoUsableVariant(f"{found.target} is refused: {found.refusals[0].reason}")


def _references(options: SearchOptions) -> tuple[str, ...]:
    return tuple(name for name in options.measure.references if not is_users(name))


def _lines(report: JudgeReport) -> Iterator[str]:
    """What a reader wants to know of a report."""
    yield f"{report.target}: {'accepted' if report.accepted else 'refused'}"
    for refusal in report.refusals:
        yield f"{refusal.kind}: {refusal.reason}"
    calls = sum(case.calls for case in report.cases)
    taken = [case for case in report.cases if not case.no_call]
    drawn = sum(case.drawn for case in taken)
    yield (
        f"{calls} calls on {len(taken)} cases, {drawn} of them drawn; "
        f"{len(report.cases) - len(taken)} cases not taken"
    )
    if report.deterministic is not None:
        yield f"equal inputs give {'equal' if report.deterministic else 'different'} bits"
    for timing in report.timings:
        yield f"{timing.workload}: {format_seconds(statistics.median(timing.samples_s))}"
        for name, seconds in timing.references.items():
            yield f"  {name}: {format_seconds(statistics.median(seconds))}"
    yield f"on {report.device}; seed {report.seed}; digest {report.digest}"
