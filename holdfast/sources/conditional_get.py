"""Fetched documents, and what is remembered of them: an unchanged one is not read again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.model.found_items import short_hash
from holdfast.sources.contract import Source
from holdfast.sources.fetch import MAX_BYTES, Document, Policy, fetch


class Documents:
    """The documents of one look at a source with the address `home`."""

    def __init__(self, source: Source, memory: dict[str, Any], home: str, *, max_bytes: int = MAX_BYTES) -> None:
        self._source = source
        self._home = home
        self._policy = Policy.of(source.settings, max_bytes=max_bytes)
        known = memory.get("documents")
        self._known: dict[str, Any] = known if isinstance(known, dict) else {}
        self._used: dict[str, Any] = {}
        self._memory = memory

    def get(self, url: str, *, accept: str = "*/*", body: bytes | None = None) -> Document:
        """The document, whether it has changed or not."""
        document = fetch(url, self._policy, home=self._home, check=self._source.check, accept=accept, body=body)
        assert document is not None
        return document

    @contextmanager
    def changed(self, url: str, *, accept: str = "*/*", body: bytes | None = None) -> Iterator[Document | None]:
        """The document, or None if it is unchanged since it was last remembered."""
        name = short_hash(url)
        known = self._known.get(name) if isinstance(self._known.get(name), dict) else None
        document = fetch(
            url, self._policy, home=self._home, known=known, check=self._source.check, accept=accept, body=body
        )
        if document is None:
            yield None
            self._used[name] = known
            return
        with document:
            yield document
        # Only now: if the block fails, it must be read again.
        self._used[name] = document.notes

    def forget(self, url: str) -> None:
        """Read it again next time, even if it is unchanged."""
        self._used.pop(short_hash(url), None)

    def remember(self) -> None:
        """At the end of a look, and not before: remember the documents that were used, and no others.

        A look that is interrupted reads all of them again, so that it sees everything in them.
        """
        self._memory["documents"] = self._used
