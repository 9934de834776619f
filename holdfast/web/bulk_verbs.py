"""What people may do to many items at once: a row of a table for each verb of the command line.

A new verb is one `Verb` in `VERBS`. Buttons, preview, confirmation, audit and the page of the action follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.answers.item import Items
from holdfast.app import Holdfast
from holdfast.model.states import State
from holdfast.web.filters import ERROR, GROUP, KEY, OLDER_THAN, PIPELINE, STAGE, WHICH_ITEMS, Filter, Query
from holdfast.web.reprocessing import WHICH_RESULTS, foresee, reprocess

#: The name of a call.
MEMO = Filter("memo", "Call")


class Counts(Protocol):
    """What an act of the app returns."""

    action: int | None
    more: bool

    def values(self) -> Any: ...
    def items(self) -> Any: ...


class Act(Protocol):
    """A method of the app that acts on many items."""

    def __call__(
        self,
        app: Holdfast,
        /,
        *,
        by: str,
        reason: str,
        dry_run: bool,
        request: str,
        previewed: int | None = None,
        **which: Any,
    ) -> Counts: ...


@dataclass(frozen=True, slots=True)
class Verb:
    #: As on the command line.
    name: str
    label: str
    #: What it does, said in the preview: "12 stages of items will be …".
    does: str
    act: Act
    #: The states that it means where none is chosen.
    states: tuple[State, ...]
    #: Whether items can be paid for again by it.
    may_cost: bool = False
    #: What is counted.
    of: str = "stages of items"
    #: Whether the preview shows some of them: not where the filters of items do not say which they are.
    has_samples: bool = True
    #: Whether the number has to be typed: it cannot be undone.
    type_number: bool = False
    #: What it takes: the filters of items, and perhaps more.
    filters: tuple[Filter, ...] = field(default=WHICH_ITEMS)
    #: Where it is offered, and where a preview leads back to: a page with the same filters.
    page: str = "items"
    #: What a preview says instead of counting items: how many at which stage, and the price in words.
    foresee: Callable[[Holdfast, Query], tuple[Mapping[str, int], str]] | None = None

    def which(self, query: Query) -> dict[str, Any]:
        """The filter as the app takes it."""
        return {
            "states" if name == "state" else name: value
            for name, value in query.named(*(one.name for one in self.filters)).items()
        }


VERBS: Mapping[str, Verb] = {
    verb.name: verb
    for verb in (
        Verb(
            "retry",
            "Retry",
            "sent back to pending, with all their attempts",
            Holdfast.retry,
            (State.FAILED, State.EXHAUSTED, State.CANCELLED),
            may_cost=True,
        ),
        Verb(
            "cancel",
            "Cancel",
            "cancelled, until somebody retries them; a worker that is running one loses it",
            Holdfast.cancel,
            (State.PENDING, State.RETRY_LATER, State.IN_PROGRESS, State.ON_HOLD),
        ),
        Verb(
            "forget",
            "Forget",
            "rejected, so that the next attempt calls, and pays, again",
            Holdfast.forget,
            (),
            of="recorded answers of paid calls",
            has_samples=False,
            filters=(PIPELINE, STAGE, KEY, ERROR, GROUP, OLDER_THAN, MEMO),
        ),
        Verb(
            "delete",
            "Delete",
            "deleted for good, with their data, results, history, and children that belong to no other item; "
            "a worker that is running one loses it",
            Holdfast.delete,
            (),
            of="items",
            type_number=True,
        ),
        Verb(
            "reprocess",
            "Reprocess",
            "run again by workers, the later ones of an item only if what they are given has changed or they are stale",
            reprocess,
            (),
            filters=WHICH_RESULTS,
            page="plan",
            foresee=foresee,
        ),
    )
}

#: Which verb somebody must be allowed to use to stop or undo an action of a kind, where it is not the kind's own name.
VERB_OF_KIND = {"restore": "forget"}
#: Kinds of actions that can be undone.
CAN_UNDO = frozenset({"retry", "cancel", "reprocess", "forget", "restore"})

SAMPLES = 5


@dataclass(frozen=True)
class Preview:
    """What an act would do: how many, five of them, and what that may cost."""

    counts: Mapping[str, int]
    more: bool
    samples: Items
    expected_cost: Any
    #: The price in words, where it is more than an average.
    price: str = ""

    @property
    def total(self) -> int:
        return sum(self.counts.values())


def preview(app: Holdfast, verb: Verb, query: Query) -> Preview:
    if verb.foresee is not None:
        foreseen, price = verb.foresee(app, query)
        return Preview(foreseen, False, Items(), None, price)
    which = verb.which(query)
    found = verb.act(app, by="", reason="", dry_run=True, request="preview", **which)
    counts = dict(found.items())
    states: Sequence[str] = which.get("states") or verb.states
    filters = query.named(*(one.name for one in verb.filters if one.name in _OF_ITEMS))
    samples = app.items(**{**filters, "state": states}, most=SAMPLES) if counts and verb.has_samples else Items()
    return Preview(counts, found.more, samples, _expected_cost(app, verb, query, sum(counts.values())))


_OF_ITEMS = {one.name for one in WHICH_ITEMS}


def _expected_cost(app: Holdfast, verb: Verb, query: Query, count: int) -> Any:
    """What so many attempts of the stage have cost on average, if one stage is meant and it has ever cost anything."""
    pipeline, stage = query.values.get("pipeline"), query.values.get("stage")
    if not verb.may_cost or not pipeline or not stage:
        return None
    spent = [one.spent for one in app.costs(pipeline=pipeline).sums if one.stage == stage]
    known = [one for one in app.status().pipelines if one.name == pipeline]
    attempts = sum(one.timings.count for found in known for one in found.stages if one.name == stage)
    return sum(spent) * count / attempts if spent and attempts else None
