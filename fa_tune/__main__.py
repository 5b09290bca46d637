"""The console script `fa-tune`, and `python -m fa_tune`.

Reading the program's modules takes some tenths of a second. Ctrl-C ends the process at once
meanwhile; from then on `fa_tune.cli` says in a line what became of the work.
"""

import signal


def main() -> None:
    """Run the program and leave with its exit status."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from fa_tune.cli import main as run  # late: see above

    run()


if __name__ == "__main__":
    main()
