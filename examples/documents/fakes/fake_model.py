"""A fake of a model that wants money, on this machine: a process of its own that speaks the chat-completions protocol.

    python -m examples.documents.fakes.fake_model --ledger calls.jsonl --port 8040

It answers slowly, page by page; every so often it fails (500) or asks for a pause (429 with Retry-After). Each call is
a line in the ledger, with what it was charged, written before the answer begins: a caller who is killed meanwhile has
paid. With `--honours-keys` a call with an Idempotency-Key that was paid before is answered again and not charged.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from examples.documents.fakes.fake_tidying import tidy
from examples.documents.model import PAGE_MARK

PRICE = "0.40"


class FakeModel(ThreadingHTTPServer):
    """The server. Port 0 takes any that is free."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        ledger: Path,
        *,
        port: int = 0,
        price: str = PRICE,
        key: str = "local",
        first_seconds: float = 0.0,
        page_seconds: float = 0.0,
        fail_every: int = 0,
        limit_every: int = 0,
        retry_after: float = 1.0,
        honours_keys: bool = False,
    ) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.ledger = ledger
        self.price, self.key = price, key
        self.first_seconds, self.page_seconds = first_seconds, page_seconds
        self.fail_every, self.limit_every, self.retry_after = fail_every, limit_every, retry_after
        self.honours_keys = honours_keys
        self._lock = threading.Lock()
        self._requests = 0
        self._paid: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def decide(self, document: str, idempotency: str, pages: int) -> tuple[int, str]:
        """What becomes of a request: its status, and what it is charged. The ledger has it when this returns."""
        with self._lock:
            self._requests += 1
            n = self._requests
            again = self.honours_keys and idempotency in self._paid
            status, charged = 200, "0" if again else self.price
            if not again and self.limit_every and n % self.limit_every == 0:
                status, charged = 429, "0"
            elif not again and self.fail_every and n % self.fail_every == 0:
                status, charged = 500, "0"
            if status == 200:
                self._paid.add(idempotency)
            line = {
                "at": time.time(),
                "n": n,
                "document": document,
                "idempotency": idempotency,
                "pages": pages,
                "status": status,
                "charged": charged,
            }
            descriptor = os.open(self.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                os.write(descriptor, json.dumps(line).encode() + b"\n")
            finally:
                os.close(descriptor)
        return status, charged

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that was killed is no error of ours."""


class _Handler(BaseHTTPRequestHandler):
    server: FakeModel

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if not self.path.endswith("/chat/completions"):
            self._refuse(404, "there is only /chat/completions here")
            return
        if self.headers.get("Authorization") != f"Bearer {self.server.key}":
            self._refuse(401, "the key is wrong")
            return
        text = next((one["content"] for one in reversed(body.get("messages", ())) if one["role"] == "user"), "")
        pages = cut(text)
        document, idempotency = self.headers.get("X-Document", ""), self.headers.get("Idempotency-Key", "")
        status, _ = self.server.decide(document, idempotency, len(pages))
        if status == 429:
            self._refuse(429, "not so fast", {"Retry-After": f"{self.server.retry_after:g}"})
        elif status != 200:
            self._refuse(status, "the model has a bad moment")
        else:
            self._answer(str(body.get("model")), text, pages)

    def _answer(self, model: str, text: str, pages: list[tuple[int, str]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        time.sleep(self.server.first_seconds)
        chunk = {"id": "chatcmpl-local", "object": "chat.completion.chunk", "model": model}
        for number, page in pages:
            time.sleep(self.server.page_seconds)
            delta = {"content": f"<!-- page {number} -->\n{tidy(page)}\n"}
            self._say({**chunk, "choices": [{"index": 0, "delta": delta}]})
        usage = {"prompt_tokens": len(text) // 4, "completion_tokens": len(text) // 4}
        self._say({**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def _say(self, part: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(part).encode() + b"\n\n")
        self.wfile.flush()

    def _refuse(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        body = json.dumps({"error": {"message": message}}).encode()
        self.send_response(status)
        for name, value in {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """The ledger tells it all."""


def cut(text: str) -> list[tuple[int, str]]:
    """The pages of a text, each behind its mark."""
    parts = PAGE_MARK.split(text)
    return [(int(number), page) for number, page in zip(parts[1::2], parts[2::2], strict=True)]


# The ledger -----------------------------------------------------------------------------------------------------------


def read_ledger(path: Path) -> list[dict[str, Any]]:
    """Every call, oldest first."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def paid(calls: Iterable[dict[str, Any]]) -> Counter[str]:
    """How often each document was charged."""
    return Counter(call["document"] for call in calls if float(call["charged"]) > 0)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m examples.documents.fakes.fake_model", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--ledger", type=Path, default=Path("calls.jsonl"))
    # Where the pipeline looks for it.
    parser.add_argument("--port", type=int, default=urlsplit(os.environ.get("DOCUMENTS_MODEL_URL", "")).port or 8040)
    parser.add_argument("--price", default=PRICE)
    parser.add_argument("--key", default=os.environ.get("DOCUMENTS_MODEL_KEY", "local"))
    parser.add_argument("--first-seconds", type=float, default=0.5, help="before an answer begins")
    parser.add_argument("--page-seconds", type=float, default=0.02, help="for each page")
    parser.add_argument("--fail-every", type=int, default=7, help="every n-th call fails")
    parser.add_argument("--limit-every", type=int, default=9, help="every n-th call is refused for a while")
    parser.add_argument("--retry-after", type=float, default=1.0, help="for how long")
    parser.add_argument("--honours-keys", action="store_true", help="charge each Idempotency-Key once")
    server = FakeModel(**vars(parser.parse_args()))
    print(server.url, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
