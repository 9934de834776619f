"""Lines of JSON, each an object with a key, or a key alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import msgspec

from holdfast.sources import readers
from holdfast.sources.contract import Found, Kept, Reader, Source
from holdfast.sources.local import is_settled, lines, notes_of, opened
from holdfast.sources.rows import BadRow, found_in


class Jsonl(Source):
    """A file with one JSON value a line."""

    kind = "jsonl"
    options: ClassVar[Mapping[str, Reader]] = {"jsonl": readers.text, "key": readers.path, "mark": readers.path}

    def look(self, memory: dict[str, Any]) -> Iterator[Found | Kept]:
        key, mark = self.settings.get("key", "key"), self.settings.get("mark")
        with opened(self.folder / self.settings["jsonl"]) as file:
            before = notes_of(file)
            if memory.get("file") == before:
                yield Kept()
                return
            for number, line in lines(file, b"\n", lambda number: self.skip(f"line {number} is too long")):
                self.check()
                text = line.removeprefix(b"\xef\xbb\xbf").strip()
                if not text:
                    continue
                try:
                    found = found_in(msgspec.json.decode(text), key, mark=mark)
                except (BadRow, msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
                    self.skip(f"line {number}: {str(error)[:200]}")
                else:
                    yield found
            memory["file"] = before if is_settled(before) else None
