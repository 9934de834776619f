"""Files: a value of an item, and content that handlers have kept. Both are saved by the browser, never shown by it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from holdfast.app import Holdfast
from holdfast.blobs import Blob
from holdfast.errors import BlobMissing, QuestionTimeout
from holdfast.model.log_lines import logger
from holdfast.web.bulk_actions import Face
from holdfast.web.filters import Filter, Query, WrongQuery, read_query
from holdfast.web.json_and_csv import readable
from holdfast.web.shared_answers import GaveUp
from holdfast.web.values import WHICH_VALUE, blobs_in, item_of, names_item, value_of

log = logger("holdfast.web")

T = TypeVar("T")

#: Threads that read. A client that is slow to take a part keeps none of them busy.
_reading = ThreadPoolExecutor(4, thread_name_prefix="holdfast-web-download")

CHUNK = 1 << 18
#: A part that is not read, or not taken by the client, within this ends the download.
CHUNK_SECONDS = 30.0
SHA256 = Filter("sha256", "SHA-256")


class Downloads:
    def __init__(self, dashboard: Face) -> None:
        self._dashboard = dashboard

    def routes(self) -> list[Route]:
        return [
            Route("/download/value", self.value, methods=["GET"]),
            Route("/download/blob", self.blob, methods=["GET"]),
        ]

    async def value(self, request: Request) -> Response:
        """A value as the page of it shows it, with secrets masked: text as text, all else as JSON."""
        query = _which(request)
        answered = await self._dashboard.questions.ask(f"download {query.text}", lambda app: _named_value(app, query))
        key, value = answered.value
        text, end = (value, "txt") if isinstance(value, str) else (readable(value, indent=2) + "\n", "json")
        name = f"{key[:80]}.{query['part']}.{end}"
        return Response(text.encode("utf-8", "replace"), headers=_saved_as(name), media_type="application/octet-stream")

    async def blob(self, request: Request) -> Response:
        """Kept content, if the value refers to it."""
        query = _which(request, SHA256)

        def opened() -> tuple[Blob, BinaryIO]:
            with self._dashboard.open() as app, app.answer_within(self._dashboard.questions.limit_seconds):
                found = _referred_to(app, query)
                return found, found.open()

        try:
            found, file = await _in_time(opened)
        except BlobMissing as error:
            raise HTTPException(404, str(error)) from None
        except (QuestionTimeout, TimeoutError):
            raise GaveUp("the store did not answer in time") from None
        headers = {**_saved_as(found.name or f"{found.sha256[:16]}.bin"), "content-length": str(found.size)}
        return Download(file, headers)


async def _in_time(work: Callable[[], T]) -> T:
    """Run what may block in a thread, which is left to itself if it takes too long."""
    return await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(_reading, work), CHUNK_SECONDS)


class Download(Response):
    """The content of a file, a part at a time, which it closes at the end."""

    media_type = "application/octet-stream"

    def __init__(self, file: BinaryIO, headers: Mapping[str, str]) -> None:
        super().__init__(headers=headers)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._send_all(send)
        except (TimeoutError, OSError) as error:
            # It has begun: that it ends too early is all that a client can be told.
            log.warning("a download was ended: %s", str(error) or f"no part of it went on for {CHUNK_SECONDS:g} s")
        finally:
            # What still reads from the file would keep the loop waiting.
            threading.Thread(target=self._file.close, name="holdfast-web-close", daemon=True).start()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        while chunk := await _in_time(partial(self._file.read, CHUNK)):
            part: Message = {"type": "http.response.body", "body": chunk, "more_body": True}
            await asyncio.wait_for(send(part), CHUNK_SECONDS)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _which(request: Request, *more: Filter) -> Query:
    query = read_query("download", (*WHICH_VALUE, *more), request.query_params.multi_items())
    if not names_item(query):
        raise WrongQuery("key is missing: open this from the page of an item")
    return query


def _named_value(app: Holdfast, query: Query) -> tuple[str, Any]:
    """The key of the item, and the value as its page shows it."""
    item = item_of(app, query)
    return item.key, value_of(item.without_secrets(), query)


def _referred_to(app: Holdfast, query: Query) -> Blob:
    for one in blobs_in(value_of(item_of(app, query), query)):
        if one.sha256 == query["sha256"]:
            return app.blob(one)
    raise HTTPException(404, "This value does not refer to such content any more.")


def _saved_as(name: str) -> dict[str, str]:
    """The header that makes a browser save it. No character of a name can end the header or leave the folder."""
    plain = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in name)
    full = quote(name.replace("/", "_").replace("\\", "_"), safe="", errors="replace")
    return {"content-disposition": f"attachment; filename=\"{plain.lstrip('.') or 'value'}\"; filename*=UTF-8''{full}"}
