"""Lines of plain text, each a key: a file of addresses, names or numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from holdfast.sources import readers
from holdfast.sources.contract import Found, Kept, Reader, Source
from holdfast.sources.read_lines import is_settled, lines, notes_of, opened
from holdfast.sources.rows import BadRow


def key_in(line: bytes) -> str | None:
    """The text of a line; None if it is empty or a comment. UnicodeDecodeError if it cannot be decoded."""
    text = line.decode().strip()
    return None if not text or text.startswith("#") else text


class Lines(Source):
    """A text file with one key per line. Empty lines and those that begin with # are skipped."""

    kind = "lines"
    options: ClassVar[Mapping[str, Reader]] = {"lines": readers.text}

    def look(self, memory: dict[str, Any]) -> Iterator[Found | Kept]:
        with opened(self.folder / self.settings[self.kind]) as file:
            before = notes_of(file)
            if memory.get("file") == before:
                yield Kept()
                return
            for number, line in lines(file, b"\n", lambda number: self.skip(f"line {number} is too long")):
                self.check()
                try:
                    found = self._item(line.removeprefix(b"\xef\xbb\xbf").strip())
                except (BadRow, ValueError, RecursionError) as error:
                    self.skip(f"line {number}: {str(error)[:200]}")
                else:
                    if found is not None:
                        yield found
            memory["file"] = before if is_settled(before) else None

    def _item(self, line: bytes) -> Found | None:
        """The item of a line, if there is one; BadRow or ValueError if the line is bad."""
        key = key_in(line)
        return None if key is None else Found(key, {})
