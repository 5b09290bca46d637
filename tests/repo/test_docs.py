"""What README and docs/ say is so: links, paths, commands, tables copied from code, snippets."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import click
import pytest

from fa_tune.cli import main as fa_tune
from fa_tune.core.arch import parse_arch
from fa_tune.core.workload import DType
from fa_tune.families.sm80.constraints import constraints
from fa_tune.kernel_configs import get_kernel_configs, parse_short_form
from fa_tune.operations.traits import Traits
from fa_tune.profile.ncu.command import NcuOptions, NcuVersion, ncu_arguments
from fa_tune.store.registry.file import load, save
from tests.project_files import ROOT, project_files

# docs/cli.md is written from the commands' help and has a test of its own.
PAGES = ["README.md", "CHANGELOG.md"] + [
    p for p in project_files() if p.startswith("docs/") and p.endswith(".md") and p != "docs/cli.md"
]
# Accounts of experiments: their links are to lead somewhere, their names are those of then.
ACCOUNTS = [p for p in project_files() if p.startswith("benchmarks/") and p.endswith(".md")]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
# A file of the project in inline code.  profiles/ is left out: recordings come and go.
PATH = re.compile(r"`((?:fa_tune|kernels|csrc|docs|tests|tools)/[\w./-]+)`")
SHORT_FORM = re.compile(r'"(\([BF]\w+, [^"]+)"')


def _read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def _prose(page: str) -> str:
    return FENCE.sub("", _read(page))


def _blocks(page: str, language: str) -> list[str]:
    return [text for found, text in FENCE.findall(_read(page)) if found == language]


def _introduced(page: str) -> Iterator[tuple[str, str, str]]:
    """(the paragraph before it, language, text) of each code block of a page."""
    text = _read(page)
    for block in FENCE.finditer(text):
        yield text[: block.start()].rstrip().rpartition("\n\n")[2], block[1], block[2]


def _between(page: str, marker: str) -> str:
    found = re.search(rf"<!-- {marker} -->\n(.*?)<!-- /{marker} -->", _read(page), re.DOTALL)
    assert found, f"{page} has no block between {marker} markers"
    return found[1]


def _anchors(page: Path) -> list[str]:
    """The anchors of a page's headings, as GitHub makes them; none for what is no page."""
    headings = HEADING.findall(page.read_text(encoding="utf-8")) if page.suffix == ".md" else []
    return [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings]


def broken_links(page: str, text: str) -> list[str]:
    """Relative links of a page that lead nowhere, anchors included."""
    broken = []
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (ROOT / page).parent / path if path else ROOT / page
        anchors = ["", *_anchors(linked)] if linked.exists() else []
        if anchor not in anchors:
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", PAGES + ACCOUNTS)
def test_links_lead_somewhere(page: str) -> None:
    broken = broken_links(page, _prose(page))
    assert not broken, f"{page}: {broken}"


def test_broken_links_are_found() -> None:
    text = "[a](docs/none.md) [b](#no-such) [c](README.md) [d](https://x.org/) [e](#how-fast)"
    assert broken_links("README.md", text) == ["docs/none.md", "#no-such"]


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page: str) -> None:
    missing = [path for path in PATH.findall(_prose(page)) if not (ROOT / path).exists()]
    assert not missing, f"{page} names files that do not exist: {missing}"


def stated_commands() -> Iterator[tuple[str, str, str]]:
    """(page, what is said before it, command line) of every fa-tune or ./run line in a code block:
    the paragraph before the block, and the comment before the line."""
    for page in PAGES:
        for before, language, text in _introduced(page):
            comment = ""
            for line in re.sub(r"\\\n\s*", "", text).splitlines() if language == "sh" else ():
                if line.startswith("#"):
                    comment = line
                elif re.match(r"\s*(fa-tune|\./run)\b", line):
                    yield page, f"{before} {comment}", line.strip()


def commands() -> Iterator[tuple[str, str]]:
    """(page, command line) of every fa-tune or ./run line in a code block."""
    for page, _, line in stated_commands():
        yield page, line


def dry_parse(line: str) -> click.Context:
    """Parse a command line as the program would, without running it; raises ClickException."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(takewhile(lambda word: not re.fullmatch(r"[|<>&;()]+", word), lexer))[1:]
    command: click.Command = fa_tune
    context = click.Context(fa_tune, info_name="fa-tune")
    while isinstance(command, click.Group):
        _, found, words = command.resolve_command(context, words)
        assert found is not None
        command = found
        if isinstance(command, click.Group):
            context = click.Context(command, parent=context, info_name=command.name)
    return command.make_context(command.name, words, parent=context)


@pytest.mark.parametrize(("page", "line"), list(commands()))
def test_commands_parse(
    page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in os.environ if n.startswith("FA_TUNE_") or n == "KERNELS"]:
        monkeypatch.delenv(name)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    dry_parse(line)


def test_the_pages_show_every_command() -> None:
    shown = {dry_parse(line).command_path.split()[1] for page, line in commands()}
    assert shown >= set(fa_tune.list_commands(click.Context(fa_tune))) - {"completion"}


def test_configs_in_commands_can_run() -> None:
    found = [config for _, line in commands() for config in SHORT_FORM.findall(line)]
    assert found
    for text in found:
        assert constraints(parse_short_form(text), parse_arch("sm_90")) is None, text


def _variables(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        one = parameter.envvar or ()
        yield from [one] if isinstance(one, str) else one
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _variables(child)


def test_usage_names_every_variable() -> None:
    set_up = set(re.findall(r"FA_TUNE_\w+", _read("tools/environment.sh")))
    named = set(re.findall(r"`(FA_TUNE_\w+|KERNELS)`", _read("docs/usage.md")))
    assert named == {*_variables(fa_tune), *set_up}
    counts = dict(re.findall(r"\| `([\w-]+)` \((\d+)\)", _read("docs/usage.md")))
    keys = ("fast", "wide", "tune", "prog", "prog-all", "all")
    dtypes = [DType.FP16]  # both have as many, which is what `--dtype fp16` shows
    assert counts == {key: str(len(get_kernel_configs(key, dtypes=dtypes))) for key in keys}


def test_the_snippet_of_usage_reads_a_registry(tmp_path: Path) -> None:
    """Run as a program of its own, with the registry that docs/registry.md shows."""
    _, snippet = _blocks("docs/usage.md", "python")
    (example,) = _blocks("docs/registry.md", "json")
    path = tmp_path / "example.json"
    path.write_text(example, encoding="utf-8")
    environment = {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}

    def run() -> str:
        done = subprocess.run(
            [sys.executable, "-c", snippet],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run() == "the registry is empty; run a search first\n"
    registry = load(path)
    save(tmp_path / "fa-tune" / "registry.json", registry)
    config = registry.entries[0].chosen.config
    assert run() == f"{config}\n"


PROGRAMS = {page: "\n".join(found) for page in PAGES if (found := _blocks(page, "python"))}
PRINTED = {"docs/usage.md": "16384"}  # of the data frame


def _says_gpu(page: str) -> bool:
    """Whether the paragraph before the first python block of a page names a GPU."""
    return "GPU" in next(said for said, language, _ in _introduced(page) if language == "python")


@pytest.mark.parametrize("page", PROGRAMS)
def test_python_of_a_page_has_only_names_that_the_page_makes(page: str) -> None:
    pytest.importorskip("ruff")
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "-"]
    done = subprocess.run(ruff, input=PROGRAMS[page], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "page", [pytest.param(p, marks=[pytest.mark.gpu] * _says_gpu(p)) for p in PROGRAMS]
)
def test_python_of_a_page_runs(page: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS[page]],
        cwd=ROOT,
        env={
            **os.environ,
            "FA_TUNE_REGISTRY": str(tmp_path / "r.json"),
            "XDG_DATA_HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert PRINTED.get(page, "") in done.stdout


@pytest.mark.parametrize(
    ("needs", "word"),
    [
        (r" (bench|bench-decisions|record-space|run|verify) |--(devices|ray|with) ", "GPU"),
        (r"file:|spaces import ", "own"),  # a file of the reader's
    ],
)
def test_what_a_command_needs_is_said_before_it(needs: str, word: str) -> None:
    said_before = {line: said for _, said, line in stated_commands() if re.search(needs, line)}
    assert said_before
    assert not [line for line, said in said_before.items() if word not in said]


def test_kernel_page_has_every_trait() -> None:
    for trait in dataclasses.fields(Traits):
        assert f"| `{trait.name}` |" in _read("docs/kernel-sm80.md")


def test_measuring_page_has_the_default_arguments_of_ncu() -> None:
    (shown,) = FENCE.findall(_between("docs/measuring.md", "ncu arguments"))
    options = NcuOptions(log_file=Path("LOG"))
    assert shown[1].split() == ncu_arguments(options, NcuVersion(2025, 3, 1))


def test_dependencies_page_has_every_package() -> None:
    project = tomllib.loads(_read("pyproject.toml"))["project"]
    extras = project["optional-dependencies"].values()
    wanted = {
        re.split(r"[^\w-]", requirement)[0]
        for requirement in [*project["dependencies"], *itertools.chain(*extras)]
    } - {"fa-tune"}
    rows = re.findall(r"^\| ([^|*]+) \| [^|]+ \|$", _read("docs/dependencies.md"), re.MULTILINE)
    listed = {package.split()[0] for row in rows for package in row.split(", ")}
    assert listed - {"Package"} == wanted


def test_architecture_page_has_every_module() -> None:
    table = _between_headings("docs/architecture.md", "## Modules", "## Workers")
    listed = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\|([^|]*)\|", table, re.MULTILINE))))
    parts = {p.split("/")[1].removesuffix(".py") for p in project_files() if _is_module(p)}
    assert listed == parts - {"__init__", "__main__"}


def _between_headings(page: str, start: str, end: str) -> str:
    return _read(page).partition(f"\n{start}\n")[2].partition(f"\n{end}\n")[0]


def _is_module(path: str) -> bool:
    return path.startswith("fa_tune/") and path.endswith(".py")
