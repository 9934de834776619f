"""Items of a JSON API: one page or many, everything or only what is new since the last look.

Progress is remembered page by page, so that an interrupted look continues there. If the server inserts, deletes or renumbers
items in the meantime, one may be found twice, which counts once, or be missed until the next look.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlencode, urljoin

import msgspec

from holdfast.errors import UsageError
from holdfast.model import urls
from holdfast.model.found_items import short_hash
from holdfast.sources import fetch, readers
from holdfast.sources.conditional_get import Documents
from holdfast.sources.contract import Found, Kept, Reader, Source, SourceFailed
from holdfast.sources.fetch import Document
from holdfast.sources.moments import earlier, later
from holdfast.sources.rows import BadRow, at, found_in, is_missing, put

PAGES = 1000
#: A page is held in memory while it is read.
MAX_BYTES = 20 * 1000 * 1000
LINK = "@link"
_NEXT_LINK = re.compile(r"<([^<>]*)>\s*;[^,<]*\brel\s*=\s*\"?next\b", re.IGNORECASE)


def _next(value: Any, what: str) -> str:
    return LINK if value == LINK else readers.path(value, what)


def _from_the_page(value: Any, what: str) -> dict[str, str]:
    """A query parameter, and the path of its value."""
    if not isinstance(value, Mapping) or set(value) != {"param", "at"}:
        raise UsageError(f"{what}: {value!r}: write it like {{'param': 'cursor', 'at': 'paging.cursor'}}")
    return {"param": readers.text(value["param"], f"{what}: param"), "at": readers.path(value["at"], f"{what}: at")}


def _cursor(value: Any, what: str) -> dict[str, str]:
    """The same, with an optional path at which the page says whether there are more."""
    if not isinstance(value, Mapping) or "more" not in value:
        return _from_the_page(value, what)
    rest = {name: one for name, one in value.items() if name != "more"}
    return {**_from_the_page(rest, what), "more": readers.path(value["more"], f"{what}: more")}


def _method(value: Any, what: str) -> str:
    if value not in ("GET", "POST"):
        raise UsageError(f"{what}: {value!r} is neither GET nor POST")
    return str(value)


def _body(value: Any, what: str) -> dict[str, Any]:
    """The body of a POST. It may hold secrets and is never shown."""
    if not isinstance(value, Mapping):
        raise UsageError(f"{what}: give a mapping, which is sent as JSON")
    return readers.json_mapping(value, what)


def _counted(value: Any, what: str) -> dict[str, Any]:
    """A query parameter that numbers the pages."""
    start = value.get("start", 1) if isinstance(value, Mapping) else None
    if start is None or not {"param"} <= set(value) <= {"param", "start"}:
        raise UsageError(f"{what}: {value!r}: write it like {{'param': 'page', 'start': 1}}")
    if isinstance(start, bool) or not isinstance(start, int) or start < 0:
        raise UsageError(f"{what}: start: {start!r} is not a whole number")
    return {"param": readers.text(value["param"], f"{what}: param"), "start": start}


class HttpJson(Source):
    """An API that answers with lists."""

    kind = "http_json"
    templates = ("http_json", "body")
    options: ClassVar[Mapping[str, Reader]] = {
        "http_json": urls.read_url,
        **fetch.OPTIONS,
        "method": _method,
        "body": _body,
        "items": readers.path,
        "key": readers.path,
        "mark": readers.path,
        "next": _next,
        "cursor": _cursor,
        "page": _counted,
        "since": _from_the_page,
        "lag": readers.length,
        "pages": readers.whole_number,
    }

    @classmethod
    def agree(cls, settings: Mapping[str, Any], where: str, folder: Any) -> None:
        ways = [name for name in ("next", "cursor", "page") if name in settings]
        if len(ways) > 1:
            raise UsageError(f"{where}: {ways[0]} and {ways[1]} are two ways to the next page; choose one")
        if "lag" in settings and "since" not in settings:
            raise UsageError(f"{where}: lag needs since")
        if "body" in settings and settings.get("method") == "GET":
            raise UsageError(f"{where}: method: a body is sent with POST, not with GET")
        for way in ("cursor", "page", "since"):
            try:
                put(settings.get("body", {}), settings.get(way, {}).get("param", way), "")
            except BadRow as error:
                raise UsageError(f"{where}: {way}: in the body, {error}") from None

    def look(self, memory: dict[str, Any]) -> Iterator[Found | Kept]:
        documents = Documents(self, memory, self.settings["http_json"], max_bytes=MAX_BYTES)
        if not any(name in self.settings for name in ("next", "cursor", "page", "since")):
            yield from self._single(documents)
            return
        position, count = self._begin(memory)
        seen: set[str] = set()
        while True:
            self._go_on(position, count, seen, memory)
            try:
                url, sent = self._request(position)
                with documents.get(url, accept="application/json, */*", body=sent) as document:
                    body = self._decode(document)
                rows = self._rows(body, document.url)
            except SourceFailed as error:
                if (
                    len(seen) == 1
                    and error.status is not None
                    and error.status < 500
                    and error.status not in (408, 429)
                ):
                    # The remembered position is no longer valid: the next look starts at the beginning.
                    memory.pop("at", None)
                raise
            yield from self._items(rows, position)
            ahead = self._ahead(position, body, rows, document)
            if ahead is None:
                break
            position, count = ahead, count + 1
            memory["at"] = {"position": dict(position), "count": count}
        memory.pop("at", None)
        if position.get("newest") is not None:
            memory["newest"] = position["newest"]

    def _single(self, documents: Documents) -> Iterator[Found | Kept]:
        url, sent = self._request({})
        with documents.changed(url, accept="application/json, */*", body=sent) as document:
            if document is None:
                yield Kept()
                return
            yield from self._items(self._rows(self._decode(document), document.url), {})
        documents.remember()

    # From page to page ------------------------------------------------------------------------------------------------

    def _begin(self, memory: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """Where to start: at the beginning, or where the last look was interrupted."""
        there = memory.get("at")
        if isinstance(there, dict) and isinstance(there.get("position"), dict) and isinstance(there.get("count"), int):
            position, count = dict(there["position"]), there["count"]
        else:
            newest = memory.get("newest") if "since" in self.settings else None
            position, count = {"newest": newest}, 0
            if newest is not None:
                position["since"] = earlier(newest, self.settings.get("lag", 0.0))
        if position.get("since") is not None:
            self.missed = True
        return position, count

    def _go_on(self, position: dict[str, Any], count: int, seen: set[str], memory: dict[str, Any]) -> None:
        """Refuse pages that repeat."""
        where, most = urls.shown(self.settings["http_json"]), self.settings.get("pages", PAGES)
        self.check()
        if count >= most:
            memory.pop("at", None)
            raise SourceFailed(f"{where} has more than {most} pages; if that is right, set pages")
        if _name(position) in seen:
            memory.pop("at", None)
            raise SourceFailed(f"{where} leads back to a page that was read already, after {count} pages")
        seen.add(_name(position))

    def _request(self, position: Mapping[str, Any]) -> tuple[str, bytes | None]:
        """The address and the body. Parameters go into the body if there is one, else into the address."""
        added, body = self._parameters(position), self.settings.get("body")
        url = str(position.get("next", self.settings["http_json"]))
        if body is None:
            url = url if "next" in position else _with_parameters(url, added)
            return url, b"" if self.settings.get("method") == "POST" else None
        for param, value in added.items():
            body = put(body, param, value)
        return url, msgspec.json.encode(body)

    def _parameters(self, position: Mapping[str, Any]) -> dict[str, Any]:
        added: dict[str, Any] = {}
        if position.get("since") is not None:
            added[self.settings["since"]["param"]] = position["since"]
        if "page" in self.settings:
            added[self.settings["page"]["param"]] = position.get("page", self.settings["page"]["start"])
        if "cursor" in position:
            added[self.settings["cursor"]["param"]] = position["cursor"]
        return added

    def _ahead(self, position: dict[str, Any], body: Any, rows: list[Any], document: Document) -> dict[str, Any] | None:
        """The position of the next page; None if this was the last one."""
        if "page" in self.settings:
            number = position.get("page", self.settings["page"]["start"])
            return {**position, "page": number + 1} if rows else None
        if "cursor" in self.settings:
            value = at(body, self.settings["cursor"]["at"])
            if "more" in self.settings["cursor"] and at(body, self.settings["cursor"]["more"]) is False:
                return None
            if is_missing(value) or value in (None, "", False):
                return None
            if isinstance(value, bool) or not isinstance(value, (str, int)):
                raise SourceFailed(f"{urls.shown(document.url)}: its cursor is neither a text nor a number")
            return {**position, "cursor": value}
        if "next" not in self.settings:
            return None
        if self.settings["next"] == LINK:
            found = _NEXT_LINK.search(document.links)
            value = found[1] if found else None
        else:
            value = at(body, self.settings["next"])
        if is_missing(value) or value in (None, "", False):
            return None
        try:
            if not isinstance(value, str):
                raise ValueError("it is no text")
            target = urljoin(document.url, value)
            urls.split(target)
        except ValueError as error:
            raise SourceFailed(f"{urls.shown(document.url)}: its next page is not an address: {error}") from None
        return {**position, "next": target}

    # A page -----------------------------------------------------------------------------------------------------------

    def _decode(self, document: Document) -> Any:
        try:
            return msgspec.json.decode(document.file.read())
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SourceFailed(f"{urls.shown(document.url)} is not JSON: {str(error)[:200]}", status=200) from None
        except RecursionError:
            raise SourceFailed(f"{urls.shown(document.url)} is nested too deeply", status=200) from None

    def _rows(self, body: Any, url: str) -> list[Any]:
        path = self.settings.get("items")
        rows = at(body, path) if path else body
        errors = at(body, "errors")
        if (is_missing(rows) or rows is None) and isinstance(errors, list) and errors:
            # GraphQL answers 200 even for errors.
            first = errors[0].get("message") if isinstance(errors[0], dict) else errors[0]
            raise SourceFailed(f"{urls.shown(url)} answered with an error: {str(first)[:200]}", status=200)
        if is_missing(rows):
            raise SourceFailed(f"{urls.shown(url)} has nothing at {path!r}", status=200)
        if rows is None:
            return []
        if not isinstance(rows, list):
            place = f"at {path!r}" if path else "at its top: say where the list is with items"
            raise SourceFailed(f"{urls.shown(url)} has no list {place}", status=200)
        return rows

    def _items(self, rows: list[Any], position: dict[str, Any]) -> Iterator[Found]:
        key, mark = self.settings.get("key", "id"), self.settings.get("mark")
        for number, row in enumerate(rows, start=1):
            try:
                found = found_in(row, key, mark=mark)
            except BadRow as error:
                self.skip(f"item {number} of a page: {error}")
                continue
            yield found
            if "since" in self.settings:
                position["newest"] = later(position.get("newest"), at(row, self.settings["since"]["at"]))


def _name(position: Mapping[str, Any]) -> str:
    """The name of a page, from its position without the newest time found so far."""
    return short_hash(repr(sorted((name, value) for name, value in position.items() if name != "newest")))


def _with_parameters(url: str, added: Mapping[str, Any]) -> str:
    parts = urls.split(url)
    kept = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if name not in added]
    return parts._replace(query=urlencode([*kept, *added.items()])).geturl()
