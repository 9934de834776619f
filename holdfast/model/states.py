"""The states of a stage of an item, and every move between them. Drawn in docs/states.md."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum


class State(StrEnum):
    PENDING = "pending"  # may be claimed now
    RETRY_LATER = "retry_later"  # may be claimed once next_attempt_at has passed
    IN_PROGRESS = "in_progress"  # one worker holds the lease
    ON_HOLD = "on_hold"  # waits for a person, a price or a version of its code
    DONE = "done"
    SKIPPED = "skipped"  # the handler said there is nothing to do; counts as done
    FAILED = "failed"  # the handler said it can never work
    EXHAUSTED = "exhausted"  # out of attempts; a person or a new version may send it back
    CANCELLED = "cancelled"  # set aside by a person


#: As plain str: drivers are slower with subclasses.
WORDS: Mapping[State, str] = {state: state.value for state in State}

#: Work still to do. A row in one of these states is in the table of that state, and in no other.
OPEN = frozenset({State.PENDING, State.RETRY_LATER, State.IN_PROGRESS, State.ON_HOLD})
#: The states of an outcome. docs/states.md lists what can move a stage on from here.
FINISHED = frozenset(State) - OPEN
#: Outcomes after which the next stages may run.
PASSED = frozenset({State.DONE, State.SKIPPED})
#: Outcomes that make `holdfast run` end with exit code 3.
BAD = frozenset({State.FAILED, State.EXHAUSTED})

MOVES: Mapping[State, frozenset[State]] = {
    State.PENDING: frozenset({State.IN_PROGRESS, State.ON_HOLD, State.CANCELLED}),
    State.RETRY_LATER: frozenset({State.PENDING, State.CANCELLED}),
    State.ON_HOLD: frozenset({State.PENDING, State.CANCELLED}),
    State.IN_PROGRESS: FINISHED | {State.PENDING, State.RETRY_LATER, State.ON_HOLD},
    State.DONE: frozenset({State.PENDING}),
    State.SKIPPED: frozenset({State.PENDING}),
    State.FAILED: frozenset({State.PENDING}),
    State.EXHAUSTED: frozenset({State.PENDING}),
    State.CANCELLED: frozenset({State.PENDING}),
}


class Alone(IntEnum):
    """How isolated an attempt must be. The number only grows while the work is open."""

    TOGETHER = 0  # beside any other attempts
    SINGLE = 1  # in a batch of one: the batch it was part of failed, and nobody knows which item was to blame
    ISOLATED = 2  # in a process of its own: the worker that held it died, and nobody knows which item was to blame
    # Plus one for each worker that died while it held this and other work.
    SOLITARY = 22  # in a process of its own, while the worker holds nothing else: that is how to find out
    # Plus one for each worker that died while it held nothing else.


class Rerun(IntEnum):
    """Why a stage that has an outcome runs again. 0 if it has none."""

    ASKED = 1  # a person or a follow-on asked for it, or its input changed
    WAVE = 2  # part of a run over everything stale: the stages after it are checked too

    @classmethod
    def _missing_(cls, value: object) -> Rerun:
        """Any other number was not written by us."""
        return cls.ASKED
