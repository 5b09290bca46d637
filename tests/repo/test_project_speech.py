"""The project speaks of itself: no place on one machine, no index address, no working notes."""

from __future__ import annotations

import re

import pytest

from tests.project_files import ROOT, project_files

# The last letter of a word stands in brackets, so that the pattern does not match itself.
FORBIDDEN: dict[str, str] = {
    "a path of one machine": (
        r"(?<![\w.~$}])/(?:wor[k]|far[m]|roo[t])/[\w.]"
        r"|(?<![\w.~$}])/(?:home|Users)/(?!user\b|you\b|USER\b|\.\.\.|…|<)[a-z]"
        r"|/tmp/bash_job[s]|\.devic[e]/"
    ),
    "the address of a package index": (
        r"(?i)pypi\.or[g]|pythonhosted\.or[g]|download\.pytorch\.or[g]|pypi\.nvidi[a]\.com"
    ),
    "a place to look that a reader does not have": (
        r"DESIGN\.m[d]|CONTRACT\.m[d]|craft\.m[d]|brief[s]/|seeds?/\d{3}|\bshared/(?:sample|seed)[s]"
    ),
    "who wrote it, or where": (  # not a repository of models: openai/whisper-large-v3
        r"\b(?i:claud[e]|anthropi[c]|openA[I](?!(?:-community)?/\w)|chatgp[t]|copilo[t]|subagen[t]|AI-generate[d])\b"
        r"|\b(?:[Tt]his|[Mm]y|[Aa] developer's|[Tt]he present) sessio[n]\b|\bthe ancesto[r]\b"
        r"|\b(?:this|the) workplac[e]\b|\blent (?:machine|GP[U])|\bdevice machin[e]\b"
        r"|\bmain develope[r]\b|\bhelper'?s? tas[k]\b|\bthe issu[e] (?:says|asks|names)"
    ),
    "an unfinished thought": r"\b(?:TOD[O]|FIXM[E]|XX[X])\b",
}

BINARY = (".cubin", ".png", ".ncu-rep", ".gz", ".xz", ".ico", ".svg")


def _text_files() -> list[str]:
    return [p for p in project_files() if not p.endswith(BINARY)]


def _findings(pattern: str) -> list[str]:
    compiled = re.compile(pattern)
    found = []
    for path in _text_files():
        text = (ROOT / path).read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), start=1):
            if hit := compiled.search(line):
                found.append(f"{path}:{number}: {hit[0]!r}")
    return found


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_holds(what: str) -> None:
    found = _findings(FORBIDDEN[what])
    assert not found, f"{what}:\n" + "\n".join(found[:40])


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("a path of one machine", "see /wor" + "k/main/run"),
        ("a path of one machine", "cd /home/" + "anna/fa"),
        ("the address of a package index", "https://pypi" + ".org/simple"),
        ("a place to look that a reader does not have", "as in DESIGN" + ".md"),
        ("an unfinished thought", "# TO" + "DO later"),
        ("who wrote it, or where", "written with Open" + "AI"),
    ],
)
def test_patterns_match(what: str, text: str) -> None:
    assert re.search(FORBIDDEN[what], text)


@pytest.mark.parametrize(
    "text", ["~/wor" + "k/x", "framework/x", "$HOME/.cache", "kernels/sm80/entry.cu"]
)
def test_paths_of_no_machine_are_fine(text: str) -> None:
    assert not re.search(FORBIDDEN["a path of one machine"], text)
