"""The console script `fa-tune`, and `python -m fa_tune`.

Ctrl-C ends the process at once while the program's modules are read, some tenths of a second, and
when nothing is left to do.  Between the two `fa_tune.cli` says in a line what became of the work.
"""

# What `signal` is made of: it reads no file, while an interrupt would still show where it came.
import _signal as signal  # type: ignore[import-not-found, unused-ignore]


def main() -> None:
    """Run the program and leave with its exit status."""
    _end_on_interrupt()
    from fa_tune.cli import main as run  # late: see above

    try:
        run()
    finally:
        try:
            _end_on_interrupt()
        except KeyboardInterrupt:  # pressed twice
            _end_on_interrupt()


def _end_on_interrupt() -> None:
    """Unless whoever started the program had SIGINT ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
