"""Files: a value of an item, and content that handlers have kept. Both are saved by the browser, never shown by it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from holdfast.app import Holdfast
from holdfast.blobs import Blob
from holdfast.errors import BlobMissing
from holdfast.web.bulk_actions import Face
from holdfast.web.filters import Filter, Query, WrongQuery, read_query
from holdfast.web.json_and_csv import readable
from holdfast.web.values import WHICH_VALUE, blobs_in, item_of, names_item, value_of

CHUNK = 1 << 18
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
            with self._dashboard.open() as app:
                found = _referred_to(app, query)
                return found, found.open()

        try:
            found, file = await run_in_threadpool(opened)
        except BlobMissing as error:
            raise HTTPException(404, str(error)) from None
        headers = {**_saved_as(found.name or f"{found.sha256[:16]}.bin"), "content-length": str(found.size)}
        return StreamingResponse(_chunks(file), headers=headers, media_type="application/octet-stream")


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


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while chunk := file.read(CHUNK):
            yield chunk


def _saved_as(name: str) -> dict[str, str]:
    """The header that makes a browser save it. No character of a name can end the header or leave the folder."""
    plain = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "_" for char in name)
    full = quote(name.replace("/", "_").replace("\\", "_"), safe="", errors="replace")
    return {"content-disposition": f"attachment; filename=\"{plain.lstrip('.') or 'value'}\"; filename*=UTF-8''{full}"}
