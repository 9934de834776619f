"""Functions that find items, for sources that name them."""

from __future__ import annotations

import sys


def keys():
    yield "a"
    yield {"key": "b", "n": 1}
    yield {"no": "key"}
    yield 5
    yield {"key": "c"}


def listed():
    return ["a", "b"]


def counting(memory, step=1):
    memory["n"] = memory.get("n", 0) + step
    yield f"item {memory['n']}"


def breaking():
    yield "a"
    raise ValueError("no more\nof that")


def raising():
    raise OSError("not now")


def leaving():
    yield "a"
    sys.exit(3)


def nothing():
    return None


def a_text():
    return "abc"


async def later():
    return ["a"]


async def streaming():
    yield "a"


def remembering_nonsense(memory):
    memory["set"] = {1, 2}
    yield "a"


def endless():
    n = 0
    while True:
        n += 1
        yield f"k{n}"


def keep_old(old, new):
    return {**new, **old}


def picky(old, new):
    if new.get("n") == 2:
        raise ValueError("not this one")
    return {**old, **new}


NOT_A_FUNCTION = 5
