"""The `fa-tune` program: its commands, loaded when named, and what becomes of an error.

    0    done
    2    usage: an option, name or value that means nothing here
    3    a tool, device, file or place to write is missing
    4    nothing usable came out
    5    a file is malformed
    130  interrupted; not in the background of a shell script (`fa-tune … &`), where SIGINT
         is ignored from the start and stays so: SIGTERM ends it there

Whatever a user can cause ends in one line `error: …`; a bug keeps its traceback.
"""

from __future__ import annotations

import codecs
import errno
import fcntl
import importlib
import json
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from fa_tune import __version__
from fa_tune.commands.shared.aside import abandon, aside
from fa_tune.commands.shared.groups import HelpfulGroup
from fa_tune.core.errors import FaTuneError, StorageError

PROGRAM = "fa-tune"
INTERRUPTED = 130
_STANDARD_STREAMS = (0, 1, 2)
READER_GONE = 141  # what a shell reports for a program that wrote into a closed pipe

# Heading of --help -> the names of commands under it -> their lines, in that order.  Each is the
# `command` of fa_tune.commands.<name>, with _ for -, which is only imported when it is called: the
# lines stand here so that --help is quick.
SECTIONS = {
    "Tune, and use the result": {
        "capture": "Run a program and write the attention that it ran.",
        "search": "Find the fastest config per workload and keep it.",
        "registry": "Chosen configs: show, check, best, merge.",
        "prove": "Say what a program gains, and what served its attention.",
        "export": "Write the chosen kernels as a C++ library.",
    },
    "Look at a few kernels": {
        "profile": "Measure with ncu: times, and counters that explain them.",
        "explain": "Say why one kernel is slower than another.",
        "bench": "Time with CUDA events: mean, median, spread.",
        "run": "Verify one config, then launch it n times.",
        "verify": "Only check results against a reference.",
        "judge": "Judge an untrusted kernel, and refuse cheats.",
    },
    "Read measurements": {
        "report": "Tables from our CSV files or straight from ncu's.",
    },
    "Study the space of configs": {
        "space": "List configs, and why others are not among them.",
        "build": "Compile a set and show what each kernel uses.",
        "record-space": "Measure a whole space and keep it in a file.",
        "spaces": "Such files: show, export, import.",
    },
    "Judge the tuner": {
        "bench-search": "Compare search strategies on recorded spaces.",
        "bench-decisions": "Tune several times and count how often it agrees.",
        "bench-between": "Check what serves between tuned lengths.",
    },
    "Set up": {
        "doctor": "Check that everything the commands need is here.",
        "completion": "Print what makes the shell complete fa-tune.",
        "schema": "Print the JSON Schema of a document.",
    },
}
COMMANDS = {name: line for section in SECTIONS.values() for name, line in section.items()}

# Commands that have nothing to do until their workers have loaded torch.
_WAITS_FOR_WORKERS = ("profile", "bench", "doctor")
# Commands that keep what they measured, and go on from there.
_GOES_ON = {"search", "record-space"}
_BEGUN_EARLY = "fa_tune.tune.early"
_DRIVER = "/dev/nvidiactl"

# Of the disk, not of the program, whether or not the error names a file.
_STORAGE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}


_ESCAPED = "fa-tune-escaped"
_LONG_WORD = re.compile(r"(\S{80})\S{920,}")  # of what was typed; no path is as long


class _ReaderGone(Exception):
    """Whoever read our output has closed it: nothing is wrong, and nothing is left to do."""


@contextmanager
def _reader_may_leave() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise _ReaderGone from None


class FaTuneGroup(HelpfulGroup):
    """The top of the command tree: finds commands by module, and turns errors into a line and
    an exit status wherever it is run from."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"fa_tune.commands.{cmd_name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands by what people do, none of them imported."""
        width = max(map(len, COMMANDS))
        for heading, lines in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), line) for name, line in lines.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Names of commands, none of them imported, and the options of the program itself."""
        named = [
            CompletionItem(name, help=line)
            for name, line in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return named + click.Command.shell_complete(self, ctx, incomplete)

    def make_context(self, *args: Any, **settings: Any) -> click.Context:
        """Context as click makes it; a closed pipe is told apart."""
        with _reader_may_leave():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: click.Context) -> object:
        """Result of the command; a closed pipe is told apart."""
        with _reader_may_leave():
            return super().invoke(ctx)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **settings: Any,
    ) -> Any:
        """Run the program and leave it with its exit status; without `standalone_mode`, errors
        are raised and the command's own result is returned."""
        if not standalone_mode:
            return super().main(args, PROGRAM, complete_var, False, **settings)
        _open_closed_streams()
        _say_what_the_terminal_cannot_show()
        sys.exit(self._status(args, complete_var, settings))

    def _status(
        self, args: Sequence[str] | None, complete_var: str | None, settings: dict[str, Any]
    ) -> int:
        try:
            _heed_interrupts()
            with _early(sys.argv[1:] if args is None else args):
                status = super().main(args, PROGRAM, complete_var, False, **settings)
            _finish_output()
            return status if isinstance(status, int) else 0
        except _ReaderGone:
            abandon(sys.stdout)
            return READER_GONE
        except (click.Abort, KeyboardInterrupt):
            words = sys.argv[1:] if args is None else args
            kept = "; finished measurements are kept" if _GOES_ON & set(words[:1]) else ""
            return _fail(f"interrupted{kept}", INTERRUPTED, prefix="")
        except click.ClickException as error:
            return _fail(_usage_line(error), error.exit_code)
        except FaTuneError as error:
            return _fail(str(error), error.exit_status)
        except OSError as error:
            if error.filename is None and error.errno not in _STORAGE_ERRORS:
                raise
            return _fail(_os_error_line(error), StorageError.exit_status)


def _heed_interrupts() -> None:
    """Ctrl-C raises KeyboardInterrupt again, which `fa_tune.__main__` had not let it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _early(words: Sequence[str]) -> AbstractContextManager[None]:
    """See `fa_tune.tune.early`; nothing for a command that measures nothing, or without a GPU."""
    asks = any(word in ("-h", "--help") for word in words)
    if asks or not words or words[0] not in _WAITS_FOR_WORKERS or not Path(_DRIVER).exists():
        return nullcontext()
    begun: AbstractContextManager[None] = importlib.import_module(_BEGUN_EARLY).begun_early(words)
    return begun


def _usage_line(error: click.ClickException) -> str:
    message = error.format_message()
    context = getattr(error, "ctx", None)
    return f"{message} (see: {context.command_path} --help)" if context else message


def _os_error_line(error: OSError) -> str:
    why = error.strerror or type(error).__name__
    if error.filename is not None:
        where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "a file"
        return f"cannot use {where}: {why}"
    return f"cannot write: {why}"


def _fail(message: str, status: int, prefix: str = "error: ") -> int:
    """Say it on stderr and hand the status on."""
    try:
        aside(prefix + _LONG_WORD.sub(r"\1…", " ".join(message.split())))
        _finish_output()
    except OSError:  # nobody is there to be told
        abandon(sys.stderr)
        abandon(sys.stdout)
    return status


def _finish_output() -> None:
    """Write what is buffered while errors can still be told."""
    with _reader_may_leave():
        sys.stdout.flush()


def _open_closed_streams() -> None:
    """Where a shell closed a standard stream (`>&-`), its output goes nowhere; else the next file
    to be opened would take its number, and get what is printed.  In a script (`./run … 2>&-`) that
    was the script, which can be read only."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_STREAMS[-1]:
        os.set_inheritable(number, True)
    for written in _STANDARD_STREAMS[1:]:
        if fcntl.fcntl(written, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            os.dup2(number, written)
    os.close(number)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _say_what_the_terminal_cannot_show() -> None:
    """A character outside the output's encoding is escaped as JSON escapes it, so that a document
    stays one, instead of ending the program.  In UTF-8 that can be a byte of a path."""
    codecs.register_error(_ESCAPED, _escaped)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors=_ESCAPED)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


@click.group(
    cls=FaTuneGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="docs/usage.md has a glossary: family, config, set, bare read, tied, … Exit status: 0 "
    "done; 2 wrong usage; 3 a tool, device, file or place to write is missing; 4 nothing usable "
    "came out; 5 a file is malformed; 130 interrupted.",
)
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
def cli() -> None:
    """Find, prove and keep the fastest FlashAttention kernels for a GPU.

    A search compiles every variant of the kernel, checks each result, measures what is right
    under Nsight Compute, and keeps the winners in a registry. Without a GPU it works on
    recorded measurements, and says so.

    \b
    Start here:
      fa-tune doctor                        is everything there?
      fa-tune search --seq-lens 1024,4096   find the fastest kernels
      fa-tune registry show                 what is kept
    """


main = cli  # calling it runs the program
