"""A receiver of OTLP in the test's process: it decodes what an exporter posts.

with OtlpReceiver() as receiver:
    exporter = OTLPSpanExporter(receiver.url)
    ...
    receiver.one("holdfast.add")
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Received:
    """A span as it was received, with attributes as a dictionary."""

    def __init__(self, span: Span) -> None:
        self.name = span.name
        self.kind = Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower()
        self.trace, self.id, self.parent = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
        self.about = _values(span.attributes)
        self.links = [(link.trace_id.hex(), link.span_id.hex()) for link in span.links]
        self.about_links = [_values(link.attributes) for link in span.links]
        self.events = [(event.name, _values(event.attributes)) for event in span.events]
        self.failed = span.status.code == 2
        self.error = span.status.message

    def __repr__(self) -> str:
        return f"<{self.name} {self.about}>"

    @property
    def identity(self) -> tuple[str, str]:
        return self.trace, self.id


class OtlpReceiver:
    """Keeps spans. Without `go_on` it accepts requests and does not answer."""

    def __init__(self) -> None:
        receiver = self
        self.spans: list[Received] = []
        self.go_on = threading.Event()
        self.go_on.set()
        #: Set when a request has arrived.
        self.asked = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.asked.set()
                receiver.go_on.wait()
                receiver.spans += [Received(span) for span in _spans(request)]
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def __enter__(self) -> OtlpReceiver:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()

    def named(self, name: str) -> list[Received]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> Received:
        [span] = self.named(name)
        return span


def _spans(request: ExportTraceServiceRequest) -> Iterator[Span]:
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            yield from scope.spans


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
