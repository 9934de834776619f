"""docs/reference/json.md, read, and what the classes of answers say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from holdfast import answers
from holdfast.answers.json_of import json_names

PAGE = Path("docs/reference/json.md")
_WORDS = {
    str: "text",
    int: "number",
    float: "number",
    bool: "boolean",
    datetime: "instant",
    date: "day",
    timedelta: "seconds",
    Decimal: "amount",
    Any: "any value",
}

Rows = dict[str, str]


def classes() -> dict[str, type]:
    """Every class of answers that has fields, by name."""
    return {name: one for name, one in vars(answers).items() if is_answer(one)}


def is_answer(one: Any) -> bool:
    return isinstance(one, type) and issubclass(one, msgspec.Struct) and bool(one.__struct_fields__)


def written() -> dict[str, Rows]:
    """By class: the names and kinds of its parts, as the page has them."""
    found: dict[str, Rows] = {}
    for heading, text in re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", PAGE.read_text(), re.M | re.S):
        found[heading] = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", text, re.M))
    return found


def expected(one: type) -> Rows:
    """The same, as the class has them."""
    hints, names = get_type_hints(one), json_names(one)
    return {name: kind(hints[part]) for part, name in names.items()}


def kind(hint: Any) -> str:
    """What a type is called on the page."""
    if isinstance(hint, UnionType):
        return " or ".join(sorted((kind(part) for part in get_args(hint)), key=lambda word: word == "null"))
    if hint is NoneType:
        return "null"
    if get_origin(hint) is tuple:
        return f"list of {kind(get_args(hint)[0])}"
    if get_origin(hint) is not None and issubclass(get_origin(hint), Mapping):
        return f"object of {kind(get_args(hint)[1])}"
    if isinstance(hint, type) and issubclass(hint, answers.Answers):
        return f"list of {kind(hint._kind)}"
    return f"`{hint.__name__}`" if is_answer(hint) else _WORDS[hint]
