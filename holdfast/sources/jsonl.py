"""Lines of JSON, each an object with a key, or a key alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from holdfast.sources import readers
from holdfast.sources.contract import Found, Reader
from holdfast.sources.lines import Lines
from holdfast.sources.rows import found_in


class Jsonl(Lines):
    """A file with one JSON value per line."""

    kind = "jsonl"
    options: ClassVar[Mapping[str, Reader]] = {"jsonl": readers.text, "key": readers.path, "mark": readers.path}

    def _item(self, line: bytes) -> Found | None:
        if not line:
            return None
        return found_in(msgspec.json.decode(line), self.settings.get("key", "key"), mark=self.settings.get("mark"))
