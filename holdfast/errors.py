"""Every error holdfast raises, drawn as one family.

HoldfastError
├── UsageError            the call was wrong: an empty key, an unknown stage            (exit code 2)
├── DefinitionError       a pipeline, a stage or the file it lives in is wrong          (exit code 4)
├── StoreError            the database                                                  (exit code 5)
│   ├── StoreUnavailable  passes by itself: lost, locked, read-only, full; wait, try again
│   ├── StoreConflict     lost a race inside the database (deadlock): run it again at once
│   └── StoreBroken       does not pass by itself: gone, damaged, of a newer schema
├── EffectStalled         an effect kept its transaction waiting until the database ended it
├── ValueRefused          a value that has no faithful JSON form
├── LeaseLost             the work was taken over; nothing of it was saved
├── StageTimeout          an attempt ran longer than its stage allows
├── RunFailed             a run whose items did not all pass, where that was asked for  (exit code 3)
├── ProcessDied           the process that ran an attempt ended before the attempt did
├── Rejected              raised by `validate`: this answer of a paid call is no good
└── Permanent             raised by a handler: this item can never work
    ├── RejectedTooOften  the answers of one call were rejected as often as is allowed
    └── AnswerNotKept     the answer of a paid call has no JSON form, or nobody can tell whose it is

`Skip` and `RetryLater` are a handler's answers, not errors; they live in `model.outcome`.
"""

from __future__ import annotations

from typing import Any


class HoldfastError(Exception):
    """Anything holdfast raises on purpose."""

    exit_code = 1


class UsageError(HoldfastError):
    """A call that cannot be carried out as it was made; nothing was written."""

    exit_code = 2


class DefinitionError(HoldfastError):
    """A pipeline that cannot work: a cycle, a wrong handler, a file that does not import."""

    exit_code = 4


class StoreError(HoldfastError):
    """The database did not do what was asked."""

    exit_code = 5


class StoreUnavailable(StoreError):
    """The database cannot serve now and will later; nothing was written."""


class StoreConflict(StoreError):
    """The database chose another transaction over this one; the same work may be run again at once."""


class StoreBroken(StoreError):
    """The database cannot be used until a person has looked at it."""


class EffectStalled(HoldfastError):
    """An effect kept the transaction it is part of waiting for so long that the database ended it."""


class ValueRefused(HoldfastError):
    """A value that has no faithful JSON form, or one that is too large or too deep."""


class LeaseLost(HoldfastError):
    """The lease under which this was done no longer stands: another worker, or a person, has the item."""


class StageTimeout(HoldfastError):
    """An attempt ran longer than its stage allows; it counts, and is tried again."""


class ProcessDied(HoldfastError):
    """The process that ran an attempt ended before the attempt did; it counts, and is tried again."""


class Rejected(HoldfastError):
    """Raise it in `validate` to reject the answer of a call: it stays paid for and readable, and the next attempt calls
    again."""


class RunFailed(HoldfastError):
    """Some items ended failed or exhausted, and `run(raise_on_failure=True)` was asked to say so. All that could be done is
    done and saved; `summary` says how it ended."""

    exit_code = 3

    def __init__(self, summary: Any) -> None:
        super().__init__(summary)
        self.summary = summary


class Permanent(HoldfastError):
    """Raise it in a handler to say that this item can never work: it ends `failed`, without another attempt."""


class CallInDoubt(HoldfastError):
    """A paid call may have been made, and a person decides about it (`on_doubt="hold"`): until then the item is on hold."""


class RejectedTooOften(Permanent):
    """The answers of one call were rejected as often as its `rejections=` allows: the item ends `failed`."""


class AnswerNotKept(Permanent):
    """The answer of a paid call has no JSON form, or is not one for each item of a batch: it is kept as text, and the stage
    stands still until a person has looked."""
