"""Make this checkout's environment: `.venv` with what a purpose needs, and nothing twice.

    bootstrap.py ready PURPOSE      exit status 0 when nothing is to do (run by .venv's Python)
    bootstrap.py setup PURPOSE      do what is to do               (run by any other Python)

PURPOSE is `run`, `test` or `dev`.  Only the standard library is used; `ready` is paid for by
every start of ./run, so it imports next to nothing.
"""

from __future__ import annotations

import sys

import checkout


def main(arguments: list[str]) -> int:
    """Run `ready` or `setup`; returns the exit status."""
    if (
        len(arguments) != 2
        or arguments[0] not in ("ready", "setup")
        or arguments[1] not in checkout.PURPOSES
    ):
        print(f"usage: bootstrap.py ready|setup {'|'.join(checkout.PURPOSES)}", file=sys.stderr)
        return 2
    action, purpose = arguments
    if action == "ready":
        return 0 if checkout.is_ready(purpose, sys.version_info[:2]) else 1

    import environment

    try:
        environment.set_up(purpose)
    except checkout.SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    except OSError as error:
        print(
            f"error: set-up failed at {error.filename or checkout.VENV}: "
            f"{error.strerror or error}; FA_TUNE_VENV names another folder for the environment",
            file=sys.stderr,
        )
        return 3
    except KeyboardInterrupt:
        print("error: set-up interrupted; the next start begins it again", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
