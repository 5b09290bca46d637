"""What became of users' kernels."""

from __future__ import annotations

from collections.abc import Iterable

from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.model import Attempt, Outcome, is_users, user_place


def check_users(attempts: Iterable[Attempt]) -> None:
    """Raise NoUsableVariant for a user's kernel that is wrong or failed; one that has no call for a
    workload was told like a library's."""
    for a in attempts:
        if is_users(a.subject) and a.outcome not in (Outcome.OK, Outcome.REJECTED):
            place, how = user_place(a.subject), a.outcome.replace("_", " ")
            raise NoUsableVariant(f"--with {place}: {how} on {a.workload}: {a.reason}")
