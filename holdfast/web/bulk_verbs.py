"""What people may do to many items at once: a row of a table for each verb of the command line.

A new verb is one `Verb` in `VERBS`. Buttons, preview, confirmation, audit and the page of the action follow from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.app import Holdfast
from holdfast.engine.actions import ActionCounts
from holdfast.model.states import State
from holdfast.web.act_preview import SAMPLES, Preview, Sample, price, samples_of
from holdfast.web.filters import ERROR, GROUP, KEY, OLDER_THAN, PIPELINE, STAGE, WHICH_ITEMS, Filter, Query
from holdfast.web.reprocessing import WHICH_RESULTS, foresee, reprocess

#: The name of a call.
MEMO = Filter("memo", "Call")


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
    ) -> ActionCounts: ...


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
    #: What can be paid for again by it: `attempts`, or the `answers` that it rejects.
    pays_for: str = ""
    #: What is counted.
    of: str = "stages of items"
    #: Whether its filters are those of items, of which the preview can show some.
    is_of_items: bool = True
    #: Whether the number has to be typed: it cannot be undone.
    type_number: bool = False
    #: What it takes: the filters of items, and perhaps more.
    filters: tuple[Filter, ...] = field(default=WHICH_ITEMS)
    #: Where it is offered, and where a preview leads back to: a page with the same filters.
    page: str = "items"
    #: What a preview says instead of counting items.
    foresee: Callable[[Holdfast, Query], Preview] | None = None

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
            pays_for="attempts",
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
            pays_for="answers",
            of="recorded answers of paid calls",
            is_of_items=False,
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


def preview(app: Holdfast, verb: Verb, query: Query) -> Preview:
    """What an act would do. It counts up to a limit, and costs the same however much there is."""
    if verb.foresee is not None:
        return verb.foresee(app, query)
    which = verb.which(query)
    found = verb.act(app, by="", reason="", dry_run=True, request="preview", **which)
    samples = samples_of(found.forecast.samples)
    if verb.is_of_items and found:
        states: Sequence[str] = which.get("states") or verb.states
        listed = app.items(**{**query.named(*(one.name for one in WHICH_ITEMS)), "state": states}, most=SAMPLES)
        samples = [Sample(one.key, one.pipeline, one.stage, one.state or one.status, error=one.error) for one in listed]
    return Preview(dict(found.items()), found.more, samples, price(app, found, verb.pays_for))
