"""ctx.call with the client of Bedrock: what it returns is read from the connection later, and is the answer."""

from __future__ import annotations

import base64
import binascii
import json
import struct
import threading
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from holdfast import Context, Item, Pipeline
from tests.support.bench import QUICK, Bench
from tests.support.model_clients import GROUP

pytestmark = [GROUP, pytest.mark.req("P11", "P13", "V13")]

MODEL = "amazon.nova-lite-v1:0"
ASK: dict[str, Any] = {"modelId": MODEL, "messages": [{"role": "user", "content": [{"text": "well?"}]}]}
USAGE = {"inputTokens": 1000, "outputTokens": 500, "totalTokens": 1500}
PRICES = {MODEL: {"in": "1.00", "out": "4.00"}}
CONTENT = [
    {"reasoningContent": {"reasoningText": {"text": "Let me see.", "signature": "s"}}},
    {"text": "It is so."},
    {"toolUse": {"toolUseId": "t", "name": "look", "input": {"at": 1}}},
]
WHOLE = {
    "output": {"message": {"role": "assistant", "content": CONTENT}},
    "stopReason": "tool_use",
    "usage": USAGE,
    "metrics": {"latencyMs": 1},
}
EVENTS: list[tuple[str, dict[str, Any]]] = [
    ("messageStart", {"role": "assistant"}),
    ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"reasoningContent": {"text": "Let me "}}}),
    ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"reasoningContent": {"text": "see."}}}),
    ("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"reasoningContent": {"signature": "s"}}}),
    ("contentBlockStop", {"contentBlockIndex": 0}),
    ("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"text": "It is "}}),
    ("contentBlockDelta", {"contentBlockIndex": 1, "delta": {"text": "so."}}),
    ("contentBlockStart", {"contentBlockIndex": 2, "start": {"toolUse": {"toolUseId": "t", "name": "look"}}}),
    ("contentBlockDelta", {"contentBlockIndex": 2, "delta": {"toolUse": {"input": '{"at":'}}}),
    ("contentBlockDelta", {"contentBlockIndex": 2, "delta": {"toolUse": {"input": " 1}"}}}),
    ("messageStop", {"stopReason": "tool_use"}),
    ("metadata", {"usage": USAGE, "metrics": {"latencyMs": 1}}),
]


def frame(payload: Any, **headers: str) -> bytes:
    """One message of AWS's event streams."""
    named = b"".join(
        bytes([len(name) + 1]) + f":{name.replace('_', '-')}".encode() + b"\x07" + struct.pack(">H", len(value)) + value
        for name, value in ((name, text.encode()) for name, text in headers.items())
    )
    body = json.dumps(payload).encode()
    prelude = struct.pack(">II", 16 + len(named) + len(body), len(named))
    message = prelude + struct.pack(">I", binascii.crc32(prelude)) + named + body
    return message + struct.pack(">I", binascii.crc32(message))


def event(kind: str, payload: Any) -> bytes:
    return frame(payload, event_type=kind, content_type="application/json", message_type="event")


class Bedrock:
    """A local server that gives the same reply to every request, and a client of it."""

    def __init__(self) -> None:
        self.reply = ("application/json", json.dumps(WHOLE).encode())
        self.requests = 0
        bedrock = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                bedrock.requests += 1
                kind, body = bedrock.reply
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def client(self) -> Any:
        import botocore.session
        from botocore.config import Config

        return botocore.session.Session().create_client(
            "bedrock-runtime",
            region_name="us-east-1",
            endpoint_url=f"http://127.0.0.1:{self._server.server_port}",
            aws_access_key_id="none",
            aws_secret_access_key="none",
            config=Config(retries={"total_max_attempts": 1}),
        )

    def streams(self, events: list[tuple[str, dict[str, Any]]], *more: bytes) -> None:
        self.reply = ("application/vnd.amazon.eventstream", b"".join([*(event(*one) for one in events), *more]))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def bedrock() -> Iterator[Bedrock]:
    bedrock = Bedrock()
    yield bedrock
    bedrock.close()


def one_stage(handler: Any, max_attempts: int = 2) -> Pipeline:
    pipeline = Pipeline("p", prices=PRICES, resources={"aws": {"budget_per_day": "5.00"}})
    pipeline.stage(name="work", max_attempts=max_attempts, backoff=QUICK, resource="aws")(handler)
    return pipeline


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("method", ["converse", "converse_stream"])
def test_an_answer_of_converse_is_the_same_streamed_and_costs_what_it_used(
    run: Bench, bedrock: Bedrock, method: str, is_async: bool
) -> None:
    if method == "converse_stream":
        bedrock.streams(EVENTS)
    function = getattr(bedrock.client(), method)

    def finish(ctx: Context, answer: Any) -> Any:
        if ctx.attempt == 1:
            raise RuntimeError("after the call")
        return {name: value for name, value in answer.items() if name != "ResponseMetadata"}

    def work(item: Item, ctx: Context) -> Any:
        return finish(ctx, ctx.call("ask", function, **ASK))

    async def work_async(item: Item, ctx: Context) -> Any:
        return finish(ctx, await ctx.call("ask", function, **ASK))

    ran = run(one_stage(work_async if is_async else work), ["page"])
    assert ran.result("page", "work") == WHOLE
    assert bedrock.requests == 1
    [by_model] = ran.app.costs(["model"]).sums
    assert (by_model.model, by_model.costs, by_model.tokens_in) == (MODEL, Decimal("0.003"), 1000)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_the_body_of_a_model_that_is_invoked_is_the_answer(run: Bench, bedrock: Bedrock, is_async: bool) -> None:
    function = bedrock.client().invoke_model

    def work(item: Item, ctx: Context) -> Any:
        return ctx.call("ask", function, modelId=MODEL, body=b"{}")

    async def work_async(item: Item, ctx: Context) -> Any:
        return await ctx.call("ask", function, modelId=MODEL, body=b"{}")

    ran = run(one_stage(work_async if is_async else work), ["page"])
    assert ran.result("page", "work") == WHOLE
    assert ran.app.costs().total.costs == Decimal("0.003")


def test_events_of_a_model_that_is_invoked_are_those_of_its_provider(run: Bench, bedrock: Bedrock) -> None:
    message = {"id": "m", "type": "message", "role": "assistant", "model": MODEL, "content": [], "usage": {}}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "It is so."}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ]
    bedrock.streams([("chunk", {"bytes": base64.b64encode(json.dumps(one).encode()).decode()}) for one in events])
    function = bedrock.client().invoke_model_with_response_stream

    def work(item: Item, ctx: Context) -> Any:
        return ctx.call("ask", function, modelId=MODEL, body=b"{}")

    answer = run(one_stage(work), ["page"]).result("page", "work")
    assert (answer["content"], answer["stop_reason"]) == ([{"type": "text", "text": "It is so."}], "end_turn")


@pytest.mark.parametrize(
    ("events", "more", "says"),
    [
        (EVENTS[:6], (), "the stream ended before the answer was complete"),
        ([], (), "the stream ended before the answer was complete"),
        (
            EVENTS[:6],
            (frame({"message": "busy"}, exception_type="throttlingException", message_type="exception"),),
            "busy",
        ),
    ],
    ids=["ends early", "empty", "error"],
)
def test_a_stream_of_converse_that_does_not_end_well_is_in_doubt(
    run: Bench, bedrock: Bedrock, events: Any, more: Any, says: str
) -> None:
    bedrock.streams(events, *more)
    function = bedrock.client().converse_stream

    def work(item: Item, ctx: Context) -> Any:
        return ctx.call("ask", function, **ASK)

    ran = run(one_stage(work, max_attempts=1), ["page"])
    error = str(ran.stage("page", "work").error)
    assert error.startswith("InDoubt: ") and says in error
    assert ran.app.costs().total.in_doubt > 0
