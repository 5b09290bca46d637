"""`python -m fa_tune` is `fa-tune`."""

import sys

from fa_tune.cli import main

if __name__ == "__main__":
    sys.exit(main())
