"""The application: routes made of the pages, what every page has, and what becomes of errors."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.app import Holdfast
from holdfast.errors import HoldfastError, StoreError, UsageError
from holdfast.model.log_lines import logger, printable
from holdfast.model.redact import redact
from holdfast.version import VERSION
from holdfast.web.access import Access, Judge
from holdfast.web.bulk_actions import Acting
from holdfast.web.bulk_verbs import VERBS
from holdfast.web.change_settings import Changing
from holdfast.web.downloads import Downloads
from holdfast.web.filters import Query, WrongQuery, read_query
from holdfast.web.json_and_csv import csv_response, json_response
from holdfast.web.live import LiveStream, Streams
from holdfast.web.long_questions import Counting, Walks
from holdfast.web.metrics import serve_metrics
from holdfast.web.page import Page
from holdfast.web.pages import pages
from holdfast.web.rendering import render, render_block
from holdfast.web.resolve_doubt import Settling
from holdfast.web.security import METRICS_PATH, Guard, Policy, Token, path_within, visit
from holdfast.web.shared_answers import LIMIT_SECONDS, Answered, GaveUp, Questions

log = logger("holdfast.web")

#: Of the stream of a page: the mark of the answer that the tab shows.
SEEN = "mark"
#: When to ask again for a file that is still being made.
RETRY_SECONDS = 2


def dashboard(
    store: str | Holdfast | Callable[[], Holdfast],
    access: Judge | None = None,
    read_only: bool = False,
    *,
    token: str | None = None,
    name: str = "",
    allowed_hosts: Collection[str] | None = None,
    question_seconds: float = LIMIT_SECONDS,
) -> Dashboard:
    """An ASGI application that shows a store: `app.mount("/holdfast", dashboard(store, access=fn))`.

    `store` is an address, a Holdfast or a function that opens one. `access` gets each request and returns an `Access`, or None
    to refuse it. Instead of it, a `token` may be given: who opens the dashboard's address with `?token=…` gets a cookie, and
    acts under `name`. `allowed_hosts` are the names under which it is reached, beside numbers and `localhost`.
    """
    if (access is None) == (token is None):
        raise UsageError("say who may see the dashboard: dashboard(store, access=a_function), or token=…, and not both")
    key = None if token is None else Token(token, Access(name))
    if key is not None:
        allowed_hosts = allowed_hosts or ()
    return Dashboard(store, Policy(key, access, read_only, allowed_hosts), question_seconds)


def _opening(store: str | Holdfast | Callable[[], Holdfast]) -> Callable[[], Holdfast]:
    """Every thread has an app of its own: a long question or act of one is in nobody's way."""
    if isinstance(store, str):
        return lambda: Holdfast(store, create=False)
    if isinstance(store, Holdfast):
        return lambda: Holdfast(store.url, store.pipelines, blobs=store.blobs_at, create=False)
    return store


class Dashboard:
    """The ASGI application; see `dashboard`."""

    def __init__(
        self, store: str | Holdfast | Callable[[], Holdfast], policy: Policy, question_seconds: float = LIMIT_SECONDS
    ) -> None:
        #: Opens the store as it is: nothing is made, neither a file nor tables.
        self.open = _opening(store)
        self.questions = Questions(self.open, question_seconds)
        self.walks = Walks(self.open)
        self.streams = Streams()
        self._acting = Acting(self)
        self._changing = Changing(self, self._acting)
        errors: Any = {
            HTTPException: self._http_error,
            WrongQuery: self._wrong_query,
            GaveUp: self._gave_up,
            HoldfastError: self._refused,
            Exception: self._failed,
        }
        app = Starlette(routes=self._routes(), exception_handlers=errors, lifespan=self._lifespan)
        # Such a redirect names the host as the client does.
        app.router.redirect_slashes = False
        self._app: ASGIApp = Guard(app, policy, self._refuse)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def close(self) -> None:
        self.streams.end()
        self._acting.close()
        self.walks.close()
        self.questions.close()

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        yield
        self.close()

    def _routes(self) -> list[BaseRoute]:
        routes: list[BaseRoute] = [
            Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
            *self._acting.routes(),
            *Settling(self, self._acting).routes(),
            *Downloads(self).routes(),
            *self._changing.routes(),
            Route(METRICS_PATH, self._metrics, methods=["GET"]),
        ]
        for page in pages():
            serve = _Serve(self, page)
            routes.append(Route(f"/{page.path}.json", serve.json, methods=["GET"]))
            routes.append(Route(f"/{page.path}.csv", serve.csv, methods=["GET"]))
            routes.append(Route(f"/{page.path}.live", serve.live, methods=["GET"]))
            routes.append(Route(f"/{page.path}", serve.html, methods=["GET"]))
        first = _Serve(self, pages()[0])
        return [Route("/", first.html, methods=["GET"]), *routes]

    async def _metrics(self, request: Request) -> Response:
        return await serve_metrics(request, self.questions)

    # Answers ----------------------------------------------------------------------------------------------------------

    def values(self, request: Request) -> dict[str, Any]:
        """What every template gets."""
        depth = path_within(request.scope).count("/") - 1
        who = visit(request)
        return {
            "root": "../" * depth or "./",
            "pages": [one for one in pages() if one.place is not None],
            "access": who.access,
            "form_token": who.form_token,
            "verbs": [verb for verb in VERBS.values() if verb.page == "items" and who.access.may(verb.name)],
            "version": VERSION,
            "new_id": lambda: secrets.token_hex(16),
            "page": None,
        }

    def html(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        return HTMLResponse(render(template, {**self.values(request), **values}), status)

    def message(self, request: Request, status: int, title: str, text: str, advice: str = "") -> Response:
        """A page that only says something, in the form that was asked for."""
        text = printable(redact(text))
        if request.scope["path"].endswith((".json", ".csv", ".live")):
            return json_response({"error": text}, status)
        return self.html(request, "message.html", status, title=title, text=text, advice=advice)

    # Errors -----------------------------------------------------------------------------------------------------------

    async def _refuse(self, request: Request, status: int, text: str) -> Response:
        return self.message(request, status, "No access" if status in (401, 403) else "Refused", text)

    async def _http_error(self, request: Request, error: HTTPException) -> Response:
        if error.status_code == 404 and error.detail == "Not Found":
            return self.message(request, 404, "There is no such page", "Nothing is at this address.")
        return self.message(request, error.status_code, "This did not work", error.detail)

    async def _wrong_query(self, request: Request, error: WrongQuery) -> Response:
        return self.message(request, 400, "This cannot be asked", str(error))

    async def _gave_up(self, request: Request, error: GaveUp) -> Response:
        text = f"This page gave up: {error}. Nothing is wrong with the work itself."
        advice = (
            "Load it again in a while, choose a narrower filter, or ask on the command line, which has no time limit."
        )
        return self.message(request, 503, "No answer in time", text, advice)

    async def _refused(self, request: Request, error: HoldfastError) -> Response:
        if isinstance(error, UsageError):
            return self.message(request, 400, "This cannot be done", str(error))
        status = 503 if isinstance(error, StoreError) else 500
        return self.message(request, status, "The store cannot be read", str(error))

    async def _failed(self, request: Request, error: Exception) -> Response:
        text = f"{type(error).__name__}: not expected, perhaps a bug in holdfast; the log of the server says where."
        return self.message(request, 500, "Something went wrong", text)


def _come_back(counting: Counting) -> Response:
    """What is counted in the background has no file yet: a program that took an empty one would not know."""
    text = f"the items are being counted, {counting.share:.0%} so far: ask again in {RETRY_SECONDS} seconds"
    response = json_response({"error": text}, 503)
    response.headers["retry-after"] = str(RETRY_SECONDS)
    return response


class _Serve:
    """One page in all its forms."""

    def __init__(self, dashboard: Dashboard, page: Page) -> None:
        self._dashboard, self._page = dashboard, page

    async def html(self, request: Request) -> Response:
        query = self._query(request)
        answered = await self._answered(query)
        return self._dashboard.html(request, self._page.template, **self._values(query, answered))

    async def json(self, request: Request) -> Response:
        query = self._query(request)
        answered = await self._answered(query)
        if isinstance(answered.value, Counting):
            return _come_back(answered.value)
        response = json_response(answered.json)
        if following := self._page.view(answered.value, query).get("next_page"):
            last = path_within(request.scope).rpartition("/")[2]
            response.headers["link"] = f'<{last}{"?" + following.partition("?")[2]}>; rel="next"'
        return response

    async def csv(self, request: Request) -> Response:
        query = self._query(request)
        answered = await self._answered(query)
        if isinstance(answered.value, Counting):
            return _come_back(answered.value)
        return csv_response(self._page.name, self._page.columns, self._page.rows(answered.value))

    async def live(self, request: Request) -> Any:
        if self._dashboard.streams.is_full:
            return json_response({"error": "too many streams are open"}, 503)
        query = self._query(request)

        def changed(answered: Answered) -> str:
            values = {**self._dashboard.values(request), **self._values(query, answered)}
            return render_block(self._page.template, "live", values)

        seen = request.query_params.get(SEEN, "")
        return LiveStream(self._dashboard.streams, lambda: self._answered(query), changed, seen)

    def _query(self, request: Request) -> Query:
        pairs = [(name, value) for name, value in request.query_params.multi_items() if name != SEEN]
        return read_query(self._page.address(request.path_params), self._page.filters, pairs, request.path_params)

    async def _answered(self, query: Query) -> Answered:
        name, ask, walk = f"{query.path}?{query.text}", self._page.ask, self._page.walk
        if walk is not None:
            return self._dashboard.walks.ask(name, lambda app, on_step: walk(app, query, on_step))
        assert ask is not None
        return await self._dashboard.questions.ask(name, lambda app: ask(app, query))

    def _values(self, query: Query, answered: Answered) -> dict[str, Any]:
        return {
            "page": self._page,
            "title": self._page.title,
            "query": query,
            "answer": answered.value,
            "answered": answered,
            **self._page.view(answered.value, query),
        }
