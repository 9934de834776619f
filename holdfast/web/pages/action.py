"""One action: how far it has come, what it did to which item, and the buttons that stop and undo it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from holdfast.answers.action import ActedOn, ActionDetails
from holdfast.app import Holdfast
from holdfast.web.bulk_verbs import CAN_UNDO, VERB_OF_KIND
from holdfast.web.filters import Query
from holdfast.web.json_and_csv import columns_of
from holdfast.web.long_lists import AFTER, Line, behind, fit
from holdfast.web.page import Page

#: What the place of an item that was left alone begins with; other places are cursors of the app.
LEFT_ALONE = "left-alone-"


def ask(app: Holdfast, query: Query) -> ActionDetails:
    after = "" if query["after"].startswith(LEFT_ALONE) else query["after"]
    return app.action(query["number"], after=after)


def view(answer: ActionDetails, query: Query) -> Mapping[str, Any]:
    done, is_done = sum(answer.counts.values()), answer.state == "done"
    return {
        "lines": partial(fit, _lines(answer, query["after"]), query),
        "next_page": query.link(after=answer.cursor) if answer.cursor else None,
        "first_page": query.link() if query.given.get("after") else None,
        "done": done,
        # What was not counted when it began, and children of what is deleted, are known once they are done.
        "meant": done if is_done and answer.preview.more else max(done, sum(answer.preview.counts.values())),
        "or_more": answer.preview.more and not is_done,
        "can_undo": answer.state != "open" and answer.kind in CAN_UNDO and answer.undoes is None,
        "verb_needed": VERB_OF_KIND.get(answer.kind, answer.kind),
    }


def _lines(answer: ActionDetails, after: str) -> Iterator[Line]:
    """On the first pages what was left alone, then what was done."""
    if not after or after.startswith(LEFT_ALONE):
        left = [Line("left alone", one, f"{LEFT_ALONE}{n}") for n, one in enumerate(answer.left_alone)]
        yield from behind(left, after)
    yield from (Line("done", one, one.cursor) for one in answer.items)


def rows(answer: ActionDetails) -> Iterable[Any]:
    return answer.items


page = Page(
    name="action",
    title="Action",
    path="actions/{number:holdfast_number}",
    under="actions",
    filters=(AFTER,),
    ask=ask,
    view=view,
    rows=rows,
    columns=columns_of(ActedOn),
)
