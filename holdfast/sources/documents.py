"""Documents that are fetched, and what is remembered of them: one that has not changed is not read again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.model.found import short_hash
from holdfast.sources.contract import Source
from holdfast.sources.fetch import MAX_BYTES, Document, Policy, fetch


class Documents:
    """The documents of one look, at a source whose author wrote the address `home`."""

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
        """The document, or None if it has not changed since it was last remembered."""
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
        # Only now: if the block breaks off, it must be read again.
        self._used[name] = document.notes

    def forget(self, url: str) -> None:
        """Read it again next time, whatever it looks like."""
        self._used.pop(short_hash(url), None)

    def remember(self) -> None:
        """At the end of a look, and not before: what is known of the documents that were used, and of no others.

        A look that breaks off reads all of them again, and so sees what is in them and what is not.
        """
        self._memory["documents"] = self._used
