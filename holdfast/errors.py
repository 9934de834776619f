"""Every error holdfast raises, drawn as one family.

HoldfastError
├── UsageError            the call was wrong: an empty key, an unknown stage            (exit code 2)
├── DefinitionError       a pipeline, a stage or the file it lives in is wrong          (exit code 4)
├── StoreError            the database                                                  (exit code 5)
│   ├── StoreUnavailable  passes by itself: lost, locked, read-only, full; wait, try again
│   ├── QuestionTimeout   a question took longer than it was given
│   ├── StoreConflict     lost a race inside the database (deadlock): run it again at once
│   └── StoreBroken       does not pass by itself: gone, damaged, of a newer schema
├── EffectStalled         an effect kept its transaction waiting until the database ended it
├── ValueRefused          a value that has no faithful JSON form
├── ValueMismatch         a value that does not fit the type that is declared for it
├── BlobMissing           content that was kept with `ctx.keep` is not there any more, or damaged
├── LeaseLost             the work was taken over; nothing of it was saved
├── StageTimeout          an attempt ran longer than its stage allows
├── RunFailed             a run in which items failed, if asked for                      (exit code 3)
├── AlreadyRunning        another run of the same pipeline holds the lock, if asked for  (exit code 7)
├── ProcessDied           the process that ran an attempt ended before the attempt did
├── Rejected              raised by `validate`: this answer of a paid call is not acceptable
├── CallInDoubt           a paid call may have been made, and a person has to decide
├── NotSent               a call failed before anything was sent to the provider
├── InDoubt               a call failed after it was sent: the provider may have acted and charged
└── Permanent             raised by a handler: this item can never work
    ├── InputTooLong      the provider does not accept an input of this length
    ├── ContentFiltered   a filter of the provider refused the input or the answer
    ├── BadRequest        the provider says that the request is wrong
    ├── RejectedTooOften  the answers of one call were rejected as often as is allowed
    └── AnswerNotKept     the answer of a paid call has no JSON form, or cannot be assigned to items

`Skip`, `RetryLater`, and what pauses a resource (`RateLimited`, `Overloaded`, `OutOfCredit`, `CredentialRefused`) are a
handler's answers, not errors; they live in `model.outcome`.
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
    """The database is unavailable for now; nothing was written."""


class QuestionTimeout(StoreError):
    """A question took longer than it was given, and was ended in the database."""


class StoreConflict(StoreError):
    """The database preferred another transaction; the same work may be run again at once."""


class StoreBroken(StoreError):
    """The database cannot be used until a person has fixed it."""


class EffectStalled(HoldfastError):
    """An effect kept its transaction waiting for so long that the database ended it."""


class ValueRefused(HoldfastError):
    """A value that has no faithful JSON form, or one that is too large or too deep."""


class ValueMismatch(HoldfastError):
    """A value that does not fit the type that is declared for it. The message begins with its path."""


class BlobMissing(HoldfastError):
    """Content that a reference names is not where it was kept, or is not what was kept."""


class LeaseLost(HoldfastError):
    """The lease for this work has ended: another worker, or a person, has the item."""


class StageTimeout(HoldfastError):
    """An attempt ran longer than its stage allows. It counts, and the item is tried again."""


class ProcessDied(HoldfastError):
    """The process that ran an attempt died. The attempt counts, and the item is tried again."""


class Rejected(HoldfastError):
    """Raise it in `validate` to reject the answer of a call: it stays paid for and readable, and the next attempt calls
    again."""


class RunFailed(HoldfastError):
    """Raised by `run(raise_on_failure=True)` if items ended failed or exhausted. Everything else is done and saved; `summary`
    has the details."""

    exit_code = 3

    def __init__(self, summary: Any) -> None:
        super().__init__(summary)
        self.summary = summary


class AlreadyRunning(HoldfastError):
    """Another run of the pipeline is at work, and one at a time was asked for. Nothing was done."""

    exit_code = 7


class Permanent(HoldfastError):
    """Raise it in a handler to say that this item can never work: it ends `failed`, without another attempt."""


class CallInDoubt(HoldfastError):
    """A paid call may have been made, and a person has to decide (`on_doubt="hold"`). Until then the item is on hold."""


class NotSent(HoldfastError):
    """Nothing was sent to the provider: the call is free, and the attempt fails like any other."""


class InDoubt(HoldfastError):
    """The provider may have acted on the call, and charged for it: a paid call stays in doubt."""


class InputTooLong(Permanent):
    """The provider does not accept an input of this length: the item ends `failed`."""


class ContentFiltered(Permanent):
    """A filter of the provider refused the input, or withheld the answer: the item ends `failed`."""


class BadRequest(Permanent):
    """The provider says that the request is wrong, and would say so again: the item ends `failed`."""


class RejectedTooOften(Permanent):
    """The answers of one call were rejected as often as its `rejections=` allows: the item ends `failed`."""


class AnswerNotKept(Permanent):
    """The answer of a paid call has no JSON form, or does not have one part for each item of a batch. It is kept as text (bytes
    as base64), and the stage is paused until a person resumes it."""
