"""Acting on many items: filter, preview, confirm, and the action with its own page.

The preview makes an id, and the form that confirms it carries this id to the app, where it names the action: the same form sent
twice acts once. A POST begins the action and leads to its page; a thread does the rest, and if the server dies, a worker does.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl, unquote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from holdfast.answers.action import ActionRecord
from holdfast.app import Holdfast
from holdfast.engine.actions import ActionCounts
from holdfast.errors import HoldfastError
from holdfast.model.key_pattern import exactly
from holdfast.model.log_lines import logger
from holdfast.web.bulk_verbs import VERB_OF_KIND, VERBS, Verb, preview
from holdfast.web.filters import Query, WrongQuery, read_query
from holdfast.web.pages import pages
from holdfast.web.security import require_form_token, visit
from holdfast.web.shared_answers import Questions
from holdfast.web.ticked_rows import Ticked, keys_to_follow, look_up
from holdfast.web.undoing import undo

log = logger("holdfast.web")

T = TypeVar("T")

BEGIN_SECONDS = 30.0
LONGEST_REASON = 1000
LONGEST_FORM = 1_000_000
MOST_FIELDS = 2000
#: At the end of the name of a field: its value is written as in an address, since a browser would change it (`carried` in
#: templates/macros.html).
WRITTEN_AS_ADDRESS = "*"
#: Fields of forms that are no filters.
OWN_FIELDS = ("form_token", "step", "request", "reason", "all", "select", "count", "more", "typed")


class Face(Protocol):
    """What acting needs of the dashboard."""

    questions: Questions
    open: Callable[[], Holdfast]

    def html(self, request: Request, template: str, status: int = 200, **values: Any) -> Response: ...
    def message(self, request: Request, status: int, title: str, text: str, advice: str = "") -> Response: ...


class Acting:
    """The changes that a dashboard makes. Every one has an app of its own: one that takes hours is in nobody's way."""

    def __init__(self, dashboard: Face) -> None:
        self._dashboard = dashboard
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="holdfast-web-act")
        #: The actions that this server does the rest of.
        self._going_on: set[int] = set()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def routes(self) -> list[Route]:
        return [
            Route("/act/{verb}", self.act, methods=["GET", "POST"]),
            Route("/actions/{number:holdfast_number}/{what}", self.change_action, methods=["POST"]),
        ]

    # Preview and confirmation -----------------------------------------------------------------------------------------

    async def act(self, request: Request) -> Response:
        verb = VERBS.get(request.path_params["verb"])
        if verb is None:
            raise HTTPException(404, f"There is nothing of this name to do here; there are: {', '.join(VERBS)}.")
        require(request, verb.name)
        fields: list[tuple[str, Any]] = list(request.query_params.multi_items())
        form: dict[str, str] = {}
        rows: list[str] = []
        if request.method == "POST":
            given = await posted(request)
            form = {name: value for name, value in given if name in OWN_FIELDS}
            filters = [(name, value) for name, value in given if name not in OWN_FIELDS]
            rows = [value for name, value in given if name == "select"]
            ticked = await self._look_up(rows, is_confirmed=form.get("step") == "confirm") if rows else None
            if ticked is not None and not ticked.keys:
                return self._nothing_to_do(request)
            fields = narrowed(filters, verb, ticked)
        query = read_query(f"act/{verb.name}", verb.filters, fields)
        if form.get("step") == "confirm":
            return await self._confirm(request, verb, query, form)
        return await self._ask(request, verb, query, rows)

    async def _look_up(self, rows: list[str], *, is_confirmed: bool) -> Ticked:
        """The items that were ticked. Those that were deleted after the preview are asked for by their keys, too, so that the
        action tells what became of them."""

        def ask(app: Holdfast) -> Ticked:
            ticked = look_up(app, rows)
            return replace(ticked, keys=keys_to_follow(app, ticked)) if is_confirmed else ticked

        answered = await self._dashboard.questions.ask(f"rows {is_confirmed} {','.join(rows)}", ask)
        ticked: Ticked = answered.value
        if not is_confirmed:
            ticked.require_all()
        return ticked

    async def _ask(self, request: Request, verb: Verb, query: Query, rows: Sequence[str] = ()) -> Response:
        """The preview, with the form that confirms it."""
        answered = await self._dashboard.questions.ask(
            f"preview {query.path} {query.text}", lambda app: preview(app, verb, query)
        )
        # Rows that were ticked are confirmed as rows: their keys are not repeated.
        sent = [(name, one) for name, several in query.given.items() if not (rows and name == "key") for one in several]
        values = {
            "verb": verb,
            "query": query,
            "preview": answered.value,
            "request_id": secrets.token_hex(16),
            "sent": [*sent, *(("select", one) for one in rows)],
            "back": _back(verb, query, rows),
        }
        return self._dashboard.html(request, "preview.html", title=f"{verb.label}?", **values)

    async def _confirm(self, request: Request, verb: Verb, query: Query, form: dict[str, str]) -> Response:
        if not query.given and form.get("all") != "yes":
            raise WrongQuery(f"{verb.name} would act on everything: choose a filter, or tick the box that says so")
        if verb.type_number and not _typed(form):
            raise WrongQuery(f"{verb.name} cannot be undone: type the number that the preview shows")
        counts = await self._begin(request, verb, query, form)
        if counts.action is None:
            return self._nothing_to_do(request)
        return RedirectResponse(f"../actions/{counts.action}", 303)

    def _nothing_to_do(self, request: Request) -> Response:
        text = "Nothing matches any more: everything has changed since the preview."
        return self._dashboard.message(request, 200, "Nothing to do", text)

    async def _begin(self, request: Request, verb: Verb, query: Query, form: dict[str, str]) -> ActionCounts:
        """Begin what was confirmed, unless the same form has done so before; the rest is done behind the page."""
        name = form.get("request", "")
        if not re.fullmatch(r"[0-9a-f]{32}", name):
            raise WrongQuery("this form has no id of a preview: begin with the preview")
        how: dict[str, Any] = {"by": visit(request).access.name, "reason": form.get("reason", "")[:LONGEST_REASON]}
        how |= {"dry_run": False, "request": name, "previewed": _previewed(form)}
        counts = await self.run(lambda app: verb.act(app, **how, **verb.which(query)))
        if counts.action is not None:
            self._go_on(counts.action)
        return counts

    # An action that exists --------------------------------------------------------------------------------------------

    async def change_action(self, request: Request) -> Response:
        """Stop, continue or undo it."""
        number, what = request.path_params["number"], request.path_params["what"]
        given = dict(await posted(request))
        found = await self.run(lambda app: app.action(number, most=1))
        require(request, VERB_OF_KIND.get(found.kind, found.kind))
        by, reason = visit(request).access.name, given.get("reason", "")[:LONGEST_REASON]
        if what == "stop":
            await self.run(lambda app: app.stop_action(number, by=by, reason=reason))
        elif what == "continue":
            self._go_on(number)
        elif what == "undo":
            return await self._undo(request, found, given)
        else:
            raise HTTPException(404, "An action can be stopped, continued or undone.")
        return RedirectResponse(f"../{number}", 303)

    async def _undo(self, request: Request, action: ActionRecord, given: dict[str, str]) -> Response:
        verb = undo(action)
        query = read_query(f"{verb.page}/undo", (), ())
        if given.get("step") != "confirm":
            return await self._ask(request, verb, query)
        counts = await self._begin(request, verb, query, given)
        if counts.action is None:
            text = f"Nothing that action {action.id} has moved is still where it was put."
            return self._dashboard.message(request, 200, "Nothing to undo", text)
        return RedirectResponse(f"../{counts.action}", 303)

    async def run(self, work: Callable[[Holdfast], T]) -> T:
        """Run work that writes, in a thread."""

        def run() -> T:
            with self._dashboard.open() as app:
                return work(app)

        try:
            future = asyncio.get_running_loop().run_in_executor(self._pool, run)
            return await asyncio.wait_for(asyncio.shield(future), BEGIN_SECONDS)
        except TimeoutError:
            raise HTTPException(
                503,
                "The store is busy, and it is not known whether this was done: look at the actions before you try again.",
            ) from None
        finally:
            self._dashboard.questions.forget()

    def _go_on(self, number: int) -> None:
        """Do the rest of an action behind the page. What is left if this ends is for a worker."""

        def run() -> None:
            try:
                with self._dashboard.open() as app:
                    app.continue_action(number)
            except HoldfastError as error:
                log.warning("action %d: %s", number, error)
            finally:
                self._going_on.discard(number)

        if number not in self._going_on:
            self._going_on.add(number)
            # A server that stops does not wait for it.
            threading.Thread(target=run, name=f"holdfast-web-action-{number}", daemon=True).start()


def require(request: Request, verb: str) -> None:
    """Refuse who may not give this command."""
    if not visit(request).access.may(verb):
        raise HTTPException(403, f"You may look, but not {verb}.")


async def posted(request: Request) -> list[tuple[str, str]]:
    """The fields of a form of ours."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise HTTPException(415, "Only forms are understood here.")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LONGEST_FORM:
            raise HTTPException(413, "This form is too large.")
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS)
        fields = [_carried(name, value) for name, value in fields]
    except ValueError:
        raise HTTPException(400, "This form cannot be read.") from None
    require_form_token(request, dict(fields).get("form_token", ""))
    return fields


def _back(verb: Verb, query: Query, rows: Sequence[str]) -> str:
    """The page that an act is reached from, with those of its filters that this page has, too."""
    taken = {one.name for page in pages() if page.path == verb.page for one in page.filters}
    left_out = [name for name in query.given if name not in taken or (rows and name == "key")]
    return query.link(verb.page, **dict.fromkeys(left_out))


def _carried(name: str, value: str) -> tuple[str, str]:
    """A field as it was before it was written as in an address."""
    if not name.endswith(WRITTEN_AS_ADDRESS):
        return name, value
    return name.removesuffix(WRITTEN_AS_ADDRESS), unquote(value, errors="strict")


def _typed(form: dict[str, str]) -> bool:
    """Whether the number of the preview was typed, with or without its commas. A preview that found nothing shows none."""
    typed = form.get("typed", "").strip().replace(",", "")
    return typed not in ("", "0") and typed == form.get("count")


def _previewed(form: dict[str, str]) -> int | None:
    """The number that the preview has shown, if it has counted everything."""
    count = form.get("count", "")
    return int(count) if count.isascii() and count.isdecimal() and len(count) < 10 and "more" not in form else None


def narrowed(filters: list[tuple[str, str]], verb: Verb, ticked: Ticked | None = None) -> list[tuple[str, str]]:
    """A filter, narrowed to the rows that were ticked: their keys instead of its own, and their pipeline and stage where they
    have them in common.

    What a list can be filtered by, and the verb cannot, is left out only where the rows say the same."""
    taken = {one.name for one in verb.filters}
    beyond = sorted({name for name, value in filters if value and name not in taken})
    filters = [(name, value) for name, value in filters if name in taken]
    if ticked is None:
        if beyond:
            raise WrongQuery(
                f"{verb.name} cannot be limited by {' and '.join(beyond)}: select rows, or remove the filter"
            )
        return filters
    if beyond and len(ticked.stages) > 1:
        raise WrongQuery(f"{verb.name} cannot be limited by {' and '.join(beyond)}: select rows of one stage")
    found = [("key", exactly(key)) for key in sorted(ticked.keys)]
    if ticked.pipeline is not None:
        found.append(("pipeline", ticked.pipeline))
    if len(ticked.stages) == 1 and (stage := ticked.stages[0]):
        found.append(("stage", stage))
    return [*((name, value) for name, value in filters if name not in dict(found)), *found]
