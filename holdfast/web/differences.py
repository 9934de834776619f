"""What a rerun has changed in a result: the lines that went and the lines that came, with a few around them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import unified_diff
from itertools import islice
from typing import Any

from holdfast.web.values import as_shown

#: So many lines of each result are compared, and so many lines of differences are shown: comparing takes the product of both.
MOST_COMPARED = 1000
MOST_SHOWN = 200
MOST_CHARACTERS = 6_000
#: Longer lines are broken after each sentence, so that after a change lines are the same again; and sentences after so much.
WIDTH = 100
LONGEST = 1000

_SENTENCE = re.compile(r"(?<=[.!?;]) ")


def differences(before: Any, now: Any) -> list[tuple[str, str]]:
    """Lines, each with the class of its colour; those in both have none. No line at all if nothing differs."""
    lines = unified_diff(_lines(before), _lines(now), n=2, lineterm="")
    # Its first two lines name files.
    shown: list[tuple[str, str]] = []
    room = MOST_CHARACTERS
    for line in islice(lines, 2, 2 + MOST_SHOWN):
        shown.append((_CLASSES.get(line[:1], ""), line))
        room -= len(line)
        if room < 0:
            break
    return [*shown, ("", "… and more")] if next(lines, None) is not None else shown


_CLASSES = {"-": "failed", "+": "done"}


def _lines(value: Any) -> list[str]:
    return list(islice(_broken(as_shown(value)), MOST_COMPARED))


def _broken(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        if len(line) <= WIDTH:
            yield line
            continue
        for sentence in _SENTENCE.split(line[: LONGEST * MOST_COMPARED]):
            yield from (sentence[n : n + LONGEST] for n in range(0, len(sentence), LONGEST))
