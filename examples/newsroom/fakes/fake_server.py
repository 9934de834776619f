"""The world around the newsroom, on this machine: a fake news site, a fake analyst that is paid, and a place that alerts are
sent to.

    with FakeServer(FakeSite(seed=7, pages=40)) as server:   # on a free port; ends with the block
        server.pages.limit_every = 10                        # every tenth page: 429 with Retry-After
        server.site.day = 2                                  # two days later
        ...
        assert server.paid() == ...                          # every call of the analyst, and what it was charged

Every request is written down before it is answered. Only the standard library is used to serve.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from examples.newsroom.fakes import fake_analyst, fake_pages
from examples.newsroom.fakes.fake_prose import SECTIONS
from examples.newsroom.fakes.fake_site import BROKEN, EMPTY, MISSING, FakeSite
from examples.newsroom.fakes.fake_trouble import FakeTrouble

#: In seconds; what is waited for takes a moment at most.
_POLL = 0.02


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as the server saw it."""

    #: On the machine's steady clock, which all processes share.
    at: float
    #: `pages`, `analyst`, or `sources` for what is read by machines.
    what: str
    path: str
    #: 0: the connection was closed without an answer.
    status: int
    idempotency: str = ""
    charged: Decimal = Decimal(0)


class FakeServer:
    """Serves a site in threads of its own, until the block ends. Port 0 takes any that is free."""

    def __init__(self, site: FakeSite | None = None, *, port: int = 0) -> None:
        self.site = site or FakeSite()
        self.pages, self.analyst, self.sources = FakeTrouble(), FakeTrouble(), FakeTrouble()
        self.asked: list[Asked] = []
        #: What was told to us, oldest first.
        self.alerts: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        #: Numbers of articles that cannot be delivered.
        self.broken = {BROKEN}
        #: The idempotency keys of the calls that were charged.
        self._charged: set[str] = set()
        self._http = _Http(self, port)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(_POLL,), daemon=True)

    def __enter__(self) -> FakeServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def visits(self, path: str) -> int:
        """How often a page was delivered."""
        with self._lock:
            return sum(one.path == path and one.status == 200 for one in self.asked)

    def paid(self) -> Counter[str]:
        """How often each call was charged, by its idempotency key."""
        with self._lock:
            return Counter(one.idempotency for one in self.asked if one.charged)

    def bill(self) -> Decimal:
        """What the analyst has charged in all."""
        with self._lock:
            return sum((one.charged for one in self.asked), Decimal(0))

    def settings(self) -> dict[str, Any]:
        """How it stands: what can be changed with `change`."""
        told: dict[str, Any] = {"day": self.site.day}
        for name in ("pages", "analyst", "sources"):
            told |= {f"{name}.{key}": value for key, value in getattr(self, name).settings().items()}
        return told

    def change(self, changes: dict[str, Any]) -> None:
        """Change what `settings` shows: `{"day": 2, "pages.down": True}`; all or nothing."""
        there = self.settings()
        for name, value in changes.items():
            if name not in there:
                raise ValueError(f"{name!r} is unknown; there are: {', '.join(there)}")
            if type(value) is not type(there[name]) and not (isinstance(value, int) and type(there[name]) is float):
                raise ValueError(f"{name}: {value!r} is not of its kind; it is {there[name]!r}")
        for name, value in changes.items():
            holder, _, key = name.rpartition(".")
            setattr(getattr(self, holder) if holder else self.site, key, value)

    # What requests ask of it ------------------------------------------------------------------------------------------

    def note(self, what: str, path: str, status: int, idempotency: str = "", charged: Decimal = Decimal(0)) -> None:
        with self._lock:
            self.asked.append(Asked(time.monotonic(), what, path, status, idempotency, charged))

    def charge(self, path: str, idempotency: str, text: str) -> None:
        """Charge a call, and write it down. One with the key of an earlier one is not charged again."""
        with self._lock:
            charged = Decimal(0) if idempotency in self._charged else fake_analyst.price(text)
            if idempotency:
                self._charged.add(idempotency)
            self.asked.append(Asked(time.monotonic(), "analyst", path, 200, idempotency, charged))

    def told(self, body: dict[str, Any]) -> None:
        with self._lock:
            self.alerts.append(body)


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, news: FakeServer, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Request)
        self.news = news

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that was killed is no error of ours."""


class _Request(BaseHTTPRequestHandler):
    server: _Http
    #: An answer is written as one piece.
    wbufsize = -1

    @property
    def news(self) -> FakeServer:
        return self.server.news

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path == "/control":
            self._json(self.news.settings())
        elif parts.path == "/alerts":
            self._json(self.news.alerts)
        elif parts.path.startswith(("/news/", "/standing/")):
            if self._passes("pages", self.news.pages):
                self._page(parts.path)
        elif self._passes("sources", self.news.sources):
            self._source(parts.path, {name: values[0] for name, values in parse_qs(parts.query).items()})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if self.path == "/alerts":
            self.news.told(body)
            self._json({})
        elif self.path == "/control":
            try:
                self.news.change(body)
            except ValueError as error:
                self._answer(400, json.dumps({"error": str(error)}), "application/json")
                return
            self._json(self.news.settings())
        elif self.path == "/analyst/analyse":
            if self._passes("analyst", self.news.analyst):
                self._analyse(body)
        else:
            self._answer(404, "there is nothing here")

    def _passes(self, what: str, trouble: FakeTrouble) -> bool:
        """Whether a request is to be answered; otherwise it has been dealt with."""
        time.sleep(trouble.seconds)
        verdict, wait = trouble.next(time.monotonic())
        if verdict == "fine":
            return True
        status = {"down": 0, "limited": 429, "failed": 500}[verdict]
        self.news.note(what, self.path, status)
        if verdict == "down":
            self.close_connection = True
        elif verdict == "limited":
            self._answer(429, "not so fast", headers={"Retry-After": f"{wait:.3f}"})
        else:
            self._answer(500, "a bad moment")
        return False

    def _page(self, path: str) -> None:
        site, visits = self.news.site, self.news.visits(path) + 1
        article = site.find(path)
        text = fake_pages.standing_page(path, visits)
        status = 200 if text is not None else 404
        if article is not None:
            status, text = 200, fake_pages.article_page(article, site.day, visits)
            if article.number in self.news.broken:
                status, text = 500, "this page cannot be made"
            elif article.number == MISSING or article.first_day > site.day:
                status, text = 404, None
            elif not article.is_up(site.day):
                status, text = 410, None
            elif article.number == EMPTY:
                text = fake_pages.empty_page(article, visits)
        self.news.note("pages", path, status)
        self._answer(status, text or "there is no such page", "text/html; charset=utf-8")

    def _source(self, path: str, query: dict[str, str]) -> None:
        site, base = self.news.site, self.news.url
        section = path.removeprefix("/sitemap-").removesuffix(".xml")
        text, kind = "", "application/xml"
        if path == "/sitemap.xml":
            text = fake_pages.sitemap_index(base)
        elif path == "/feed.xml":
            text = fake_pages.feed(site, base)
        elif section in SECTIONS:
            text = fake_pages.sitemap(site, section, base)
        elif path == "/api/search" and query.get("q"):
            page = int(query.get("page", "1"))
            text, kind = json.dumps(fake_pages.search_results(site, query["q"], page, base)), "application/json"
        tag = f'"{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"'
        status = 404 if not text else 304 if self.headers.get("If-None-Match") == tag else 200
        self.news.note("sources", self.path, status)
        self._answer(status, text if status == 200 else "", kind, {"ETag": tag})

    def _analyse(self, body: dict[str, Any]) -> None:
        title, text = str(body.get("title", "")), str(body.get("text", ""))
        self.news.charge(self.path, self.headers.get("Idempotency-Key", ""), text)
        usage = {"input_tokens": fake_analyst.tokens(text), "output_tokens": 0}
        self._json({"model": body.get("model"), "usage": usage, **fake_analyst.analyse(title, text)})

    def _json(self, value: Any) -> None:
        self._answer(200, json.dumps(value), "application/json")

    def _answer(
        self, status: int, text: str, kind: str = "text/plain; charset=utf-8", headers: dict[str, str] | None = None
    ) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if status != 304:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """What was asked is written down already."""
