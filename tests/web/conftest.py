"""A store with a few books in every state, and a dashboard on it, as a browser and as a script see it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from html import unescape
from typing import Any

import pytest
from starlette.testclient import TestClient

from holdfast import Context, Holdfast, Item, Permanent, Pipeline
from holdfast.web import Access, dashboard
from holdfast.web.dashboard import Dashboard

#: Texts that try to get out of where they are shown.
HOSTILE = (
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "{{ 7919 * 7907 }}{% raw %}",  # 62615533: no page shows this by chance
    "\u202ereversed",
    "=1+1",
    "كتاب",
)


def books(url: str) -> Pipeline:
    """Two stages; keys that begin with `bad` can never work."""
    books = Pipeline("books", store=url)

    @books.stage()
    def extract(item: Item, ctx: Context) -> dict[str, str]:
        if item.key.startswith("bad"):
            raise Permanent(f"{item.key} has no pages {HOSTILE[0]}")
        return {"text": item.key}

    @books.stage(after=extract)
    def chunk(item: Item, ctx: Context) -> int:
        return 1

    return books


@pytest.fixture
def shelf(url: str) -> str:
    """Books that are done, two that failed, hostile ones, and one that waits."""
    pipeline = books(url)
    pipeline.add(["walden", "emma", "bad-1", "bad-2", *HOSTILE])
    pipeline.run()
    pipeline.add(["late"])
    return url


@dataclass
class Web:
    """A dashboard and a client of it."""

    client: TestClient
    app: Dashboard

    def get(self, path: str, **more: Any) -> Any:
        return self.client.get(path, **more)

    def form(self, path: str) -> dict[str, str]:
        """The hidden fields of the last form of a page."""
        found = self.get(path)
        assert found.status_code == 200, found.text
        return hidden_fields(found.text)

    def post(self, path: str, data: dict[str, str], **more: Any) -> Any:
        return self.client.post(path, data=data, follow_redirects=False, **more)


def hidden_fields(html: str) -> dict[str, str]:
    form = html[html.rindex('<form method="post"') :]
    found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', form)
    return {name: unescape(value) for name, value in found}


@pytest.fixture
def serve() -> Iterator[Callable[..., Web]]:
    """Makes dashboards, which are closed at the end. Everybody may do everything, unless something else is said."""
    with ExitStack() as stack:

        def make(store: str | Holdfast, **settings: Any) -> Web:
            # A busy machine is no reason for a page to give up here.
            settings.setdefault("question_seconds", 120.0)
            if "token" not in settings:
                settings.setdefault("access", lambda request: Access("ada"))
            # On a busy machine an answer may take long; how long is judged by the tests of the time limit alone.
            settings.setdefault("question_seconds", 120.0)
            app = dashboard(store, **settings)
            return Web(stack.enter_context(TestClient(app, base_url="http://localhost")), app)

        yield make


@pytest.fixture
def web(shelf: str, serve: Callable[..., Web]) -> Web:
    return serve(shelf)
