"""What runs a problem: the choice among the registry's configs and the default, compiled."""

from fa_tune.choice.chooser import Choice, Chooser, representative

__all__ = ["Choice", "Chooser", "representative"]
