"""How an attempt ended: all that a worker knows of the model before it has a job."""

from enum import StrEnum


class Outcome(StrEnum):
    """How an attempt at a variant ended."""

    OK = "ok"
    REJECTED = "rejected"
    COMPILE_FAILED = "compile_failed"
    WRONG_RESULT = "wrong_result"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    NOT_RECORDED = "not_recorded"  # replay only: no recording holds this variant
