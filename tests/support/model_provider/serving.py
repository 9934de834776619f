"""The process that answers: `python -m tests.support.model_provider.serving LEDGER`. It prints its port, and serves until
it is killed."""

from __future__ import annotations

import ctypes
import json
import select
import signal
import sys
import threading
from collections import Counter
from contextlib import suppress
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.support.model_provider import faults
from tests.support.model_provider.asked import PRICES, Answer, Asked, answer_to
from tests.support.model_provider.dialects.anthropic import Anthropic
from tests.support.model_provider.dialects.contract import Dialect
from tests.support.model_provider.dialects.gemini import Gemini
from tests.support.model_provider.dialects.mistral import Mistral
from tests.support.model_provider.dialects.openai import OpenAI
from tests.support.model_provider.faults import Fault, Refusal
from tests.support.model_provider.ledger import Entry, ProviderLedger

DIALECTS: dict[str, Dialect] = {one.name: one for one in (OpenAI(), Anthropic(), Gemini(), Mistral())}
#: A caller that waits for a late reply is let go after this time, whatever happens.
LATE_SECONDS = 15
#: What stands for a fault that the dialect does not know, or that does not fit the request.
NO_SUCH_FAULT = 599


class Orders:
    """What the control address has asked for, and how often each prompt came."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next: list[tuple[Fault, str]] = []
        self._came: Counter[str] = Counter()

    def add(self, what: str, count: int, containing: str) -> None:
        with self._lock:
            self._next += [(faults.parse(what), containing)] * count

    def fault(self, asked: Asked) -> Fault | None:
        """What to do to this request."""
        with self._lock:
            self._came[asked.prompt] += 1
            for place, (ordered, containing) in enumerate(self._next):
                if containing in asked.prompt:
                    del self._next[place]
                    return ordered
            fault = faults.asked_for(f"{asked.model}\n{asked.prompt}")
            if fault is not None and self._came[asked.prompt] > fault.number("first", sys.maxsize):
                return None
            return fault


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    orders: Orders
    ledger: ProviderLedger

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.loads(raw or b"{}")
        _, name, *rest = unquote(urlsplit(self.path).path).split("/")
        if name == "control":
            self.orders.add(body["fault"], body["count"], body["containing"])
            return self._send(200, {})
        self._dialect = DIALECTS.get(name)
        if self._dialect is None or (asked := self._dialect.read("/" + "/".join(rest), body)) is None:
            return self._send(404, {"error": f"nothing is at {self.path}"})
        return self._answer(asked)

    def do_GET(self) -> None:
        self._send(404, {"error": f"nothing is at {self.path}"})

    def _answer(self, asked: Asked) -> None:
        assert self._dialect is not None
        fault = self.orders.fault(asked)
        if asked.plain_model not in PRICES:
            fault = Fault("404")
        if fault is not None and (refusal := self._refusal(asked, fault)) is not None:
            self._note(asked, fault, refusal.status, None)
            return self._send(refusal.status, refusal.body, refusal.headers)
        name = "" if fault is None else fault.name
        answer = answer_to(asked, name if name in faults.FINISHES else "stop")
        if fault is not None and name in faults.GATEWAY:
            charged = fault.options.get("charged") != "no"
            self._note(asked, fault, int(name), answer if charged else None)
            return self._send(int(name), faults.page(name))
        if fault is not None and name in faults.BREAKS:
            return self._break(asked, fault, answer)
        headers = dict(self._dialect.headers(fault if name == "remaining-0" else None))
        self._note(asked, fault, 200, answer)
        if asked.stream:
            return self._stream(self._dialect.events(asked, answer), headers)
        return self._send(200, self._dialect.reply(asked, answer), headers)

    def _refusal(self, asked: Asked, fault: Fault) -> Refusal | None:
        """An error instead of an answer; also for what nobody can do, so that a typing error in a test is seen."""
        assert self._dialect is not None
        if (refusal := self._dialect.refusal(asked, fault)) is not None:
            return refusal
        known = (*self._dialect.finishes, *faults.BREAKS, *faults.GATEWAY, "remaining-0")
        if fault.name in known and (asked.stream or fault.name not in ("ends-early", "error-in-stream")):
            return None
        return Refusal(NO_SUCH_FAULT, {"error": {"message": f"{self._dialect.name} cannot do {fault} here"}})

    def _break(self, asked: Asked, fault: Fault, answer: Answer) -> None:
        """Charge, and let the caller not know."""
        assert self._dialect is not None
        headers = dict(self._dialect.headers(None))
        name = fault.name
        self.close_connection = True
        charged = answer.first_half() if name == "error-in-stream" else answer
        self._note(asked, fault, 0 if name in ("lost", "late") else 200, charged)
        if name == "late":
            # Readable means closed: the caller has nothing more to say.
            select.select([self.connection], [], [], LATE_SECONDS)
        elif asked.stream and name != "lost":
            events = self._dialect.events(asked, answer)
            events = events[: len(events) // 2]
            if name == "error-in-stream":
                events.append(self._dialect.error_event(asked, fault))
            self._stream(events, headers, whole=name != "cut")
        elif name == "cut":
            raw = json.dumps(self._dialect.reply(asked, answer)).encode()
            half = raw[: len(raw) // 2]
            self._write(200, "application/json", {**headers, "Content-Length": str(len(raw))}, half)

    def _note(self, asked: Asked, fault: Fault | None, status: int, answer: Answer | None) -> None:
        assert self._dialect is not None
        given, dialect = answer or Answer("", 0, 0, 0, 0), self._dialect.name
        self.ledger.append(
            lambda number: Entry(
                number=number,
                dialect=dialect,
                route=asked.route,
                model=asked.plain_model,
                prompt=asked.prompt,
                stream=asked.stream,
                status=status,
                fault="" if fault is None else fault.name,
                charged=answer is not None,
                tokens_in=given.tokens_in,
                cached=given.cached,
                tokens_out=given.tokens_out,
                reasoning=given.reasoning,
                amount=given.amount(asked.plain_model) if answer is not None else Decimal(0),
                idempotency_key=self.headers.get("Idempotency-Key"),
            )
        )

    def _send(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        kind = "text/html; charset=UTF-8" if isinstance(body, str) else "application/json"
        kind = "audio/mpeg" if isinstance(body, bytes) else kind
        raw = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
        self._write(status, kind, {**(headers or {}), "Content-Length": str(len(raw))}, raw)

    def _stream(self, events: list[bytes], headers: dict[str, str], *, whole: bool = True) -> None:
        """One chunk per event; without the last, empty one the stream is broken."""
        chunks = [b"%x\r\n%s\r\n" % (len(event), event) for event in events]
        body = b"".join(chunks) + (b"0\r\n\r\n" if whole else b"")
        self._write(200, "text/event-stream; charset=utf-8", {**headers, "Transfer-Encoding": "chunked"}, body)

    def _write(self, status: int, kind: str, headers: dict[str, str], body: bytes) -> None:
        """All in one write: many small ones wait for each other's acknowledgement."""
        self.send_response(status, None if status < 520 else "Provider Error")
        self.send_header("Content-Type", kind)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self._headers_buffer.append(b"\r\n" + body)  # type: ignore[attr-defined]
        self.flush_headers()

    def handle(self) -> None:
        with suppress(OSError):  # the caller has given up
            super().handle()

    def log_message(self, *args: Any) -> None: ...


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main(ledger: str) -> None:
    # It ends with the test that has started it, even if that is killed.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    Handler.orders, Handler.ledger = Orders(), ProviderLedger(Path(ledger))
    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
