"""Settling a call in doubt: a page with what is known of it and a form, and the decision, which is made once.

A call that has a memo is settled for its item (`app.resolve`), with its answer if that is known. One whose memo is gone is
only money: what was charged is said by an action (`app.resolve_many`).
"""

from __future__ import annotations

import re
import secrets
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from holdfast.answers.item import ItemDetails
from holdfast.app import UNKNOWN, Holdfast
from holdfast.errors import ValueRefused
from holdfast.model import codec
from holdfast.model.key_pattern import exactly
from holdfast.web.bulk_actions import LONGEST_REASON, Acting, Face, posted, require
from holdfast.web.filters import Filter, Query, WrongQuery, link, read_query
from holdfast.web.security import visit
from holdfast.web.values import OF_ITEM

VERB = "resolve"

WHICH_CALL = (*OF_ITEM, Filter("stage", "Stage"), Filter("name", "Name of the call"))
_OWN_FIELDS = ("form_token", "request", "decided", "amount", "answer", "reason")


class Settling:
    def __init__(self, dashboard: Face, acting: Acting) -> None:
        self._dashboard, self._acting = dashboard, acting

    def routes(self) -> list[Route]:
        return [
            Route("/settle", self.ask, methods=["GET"]),
            Route("/settle", self.settle, methods=["POST"]),
        ]

    async def ask(self, request: Request) -> Response:
        """The form."""
        require(request, VERB)
        query = _which(request.query_params.multi_items())
        answered = await self._dashboard.questions.ask(
            f"settle {query.text}", lambda app: app.show(query["key"], query["pipeline"]).without_secrets()
        )
        memo, calls = _in_doubt(answered.value, query)
        if memo is None and not calls:
            raise HTTPException(404, "This call is not in doubt, or no longer.")
        values = {"query": query, "memo": memo, "calls": calls, "request_id": secrets.token_hex(16)}
        return self._dashboard.html(request, "settle.html", title="Settle a call in doubt", **values)

    async def settle(self, request: Request) -> Response:
        """The decision."""
        require(request, VERB)
        given = await posted(request)
        form = {name: value for name, value in given if name in _OWN_FIELDS}
        query = _which([one for one in given if one[0] not in _OWN_FIELDS])
        charged, answer = _decision(form)
        if not re.fullmatch(r"[0-9a-f]{32}", form.get("request", "")):
            raise WrongQuery("this form has no id: open it from the page of the item")
        how: dict[str, Any] = {
            "by": visit(request).access.name,
            "reason": form.get("reason", "")[:LONGEST_REASON],
        }

        def work(app: Holdfast) -> int | None:
            memo, _ = _in_doubt(app.show(query["key"], query["pipeline"]), query)
            if memo is not None:
                app.resolve(
                    query["key"], query["name"], value=answer, charged=charged, pipeline=query["pipeline"], **how
                )
                return None
            if answer is not UNKNOWN:
                raise WrongQuery("nothing waits for the answer of this call any more: say only what was charged")
            which: dict[str, Any] = {
                "pipeline": query["pipeline"],
                "stage": query["stage"],
                "key": exactly(query["key"]),
            }
            counts = app.resolve_many(
                charged=charged or "0", memo=query["name"], request=form["request"], **how, **which
            )
            return counts.action

        action = await self._acting.run(work)
        where = (
            f"actions/{action}" if action is not None else link("item", pipeline=query["pipeline"], key=query["key"])
        )
        return RedirectResponse(where, 303)


def _which(pairs: list[tuple[str, str]]) -> Query:
    query = read_query("settle", WHICH_CALL, pairs)
    for one in WHICH_CALL:
        if query[one.name] is None:
            raise WrongQuery(f"{one.name} is missing: open this page from that of the item")
    return query


def _in_doubt(item: ItemDetails, query: Query) -> tuple[Any, list[Any]]:
    """The memo of the call, if there is one in doubt, and what the ledger knows of it."""
    place = (query["stage"], query["name"])
    memos = [one for one in item.memos if (one.stage, one.name) == place and one.in_doubt]
    calls = [one for one in item.calls if (one.stage, one.name) == place and one.state == "doubtful"]
    return (memos[0] if memos else None), calls


def _decision(form: dict[str, str]) -> tuple[str | None, Any]:
    """What was charged, and the answer. An amount is needed unless there is an answer, which then cost what was expected."""
    decided, amount, answer = (form.get(name, "").strip() for name in ("decided", "amount", "answer"))
    if decided == "not_charged":
        if amount or answer:
            raise WrongQuery("a call that was not charged has neither an amount nor an answer")
        return "0", UNKNOWN
    if decided != "charged" or not (amount or answer):
        raise WrongQuery("say whether the call was charged and, if so, how much, or what it returned")
    if not answer:
        return amount, UNKNOWN
    try:
        value = codec.decode(answer)
        codec.encode(value)
    except (ValueError, RecursionError, ValueRefused) as error:
        raise WrongQuery(f"the answer is not JSON: {error}; a text stands in quotes") from None
    return amount or None, value
