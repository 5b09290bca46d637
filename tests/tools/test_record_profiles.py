"""tools/record_profiles.sh says what the pages need."""

from __future__ import annotations

import re
import subprocess

from fa_tune.families.names import parse_short_form
from fa_tune.families.sm80_sets import PROGRESSION, get_kernel_configs
from tests.project_files import ROOT

SCRIPT = ROOT / "tools" / "record_profiles.sh"


def test_the_shell_reads_it() -> None:
    done = subprocess.run(["bash", "-n", SCRIPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert SCRIPT.stat().st_mode & 0o100


def test_the_profiled_configs_are_the_ladder_and_one_of_the_fast_set() -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    variable = re.search(r"^async=(\S+)$", text, re.MULTILINE)
    assert variable is not None
    forms = re.findall(r'^    "(.*)" \\$', text.replace("$async", variable[1]), re.MULTILINE)
    assert tuple(forms[:-1]) == PROGRESSION
    assert parse_short_form(forms[-1]) in get_kernel_configs("fast")
