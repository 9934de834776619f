"""A source finds the links of a page on loopback."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from holdfast import Pipeline

PAGE = b"<html><body><article><h2><a href='/walden'>Walden</a></h2></article><a href='/imprint'>-</a></body></html>"


class Shelf(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/books" else 404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, format: str, *args: Any) -> None:
        pass


with HTTPServer(("127.0.0.1", 0), Shelf) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    books = Pipeline("books", store="sqlite:///html.db")
    books.source("shelf", html=f"{address}/books", links="article h2 a", every="1h", allow_private=True)

    @books.stage()
    def read(item: Any, ctx: Any) -> Any:
        return {"text": item.data["text"]}

    books.run()
    server.shutdown()
found = {row.key: row.result for row in books.results("read")}
assert found == {f"{address}/walden": {"text": "Walden"}}, found
print("html: works")
