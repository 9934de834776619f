"""Keys from bytes: a terminal sends several bytes for an arrow or for a letter beyond ASCII, perhaps not at once."""

from __future__ import annotations

import codecs
import re

#: A key that sends more than one byte ends within this time, also over a slow line.
REST_SECONDS = 0.1

_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?<]*[ -/]*[@-~]|O[@-~])")
_BEGUN = re.compile(r"\x1b(?:\[[0-9;?<]*[ -/]*|O)?\Z")
_NAMES = {
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
    "\x15": "clear",
    "\x0c": "redraw",
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
}


class Keyboard:
    """Letters as they are, other keys by name; what has no name here is left out."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._rest = ""

    @property
    def waits_for_rest(self) -> bool:
        """Whether a key may be only half there."""
        return bool(self._rest)

    def read(self, data: bytes) -> list[str]:
        """The keys that are complete with these bytes. No bytes say that the rest of a key has not come in time."""
        text = self._rest + self._decoder.decode(data)
        self._rest = ""
        keys = []
        while text:
            if data and _BEGUN.match(text):
                self._rest = text
                break
            found = _SEQUENCE.match(text)
            one = found[0] if found else text[0]
            text = text[len(one) :]
            if one in _NAMES:
                keys.append(_NAMES[one])
            elif one.isprintable():
                keys.append(one)
        return keys
