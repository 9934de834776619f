"""What makes two failures alike: the class of the error, the place in the user's code, the message without what changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.model.error_fingerprint import MESSAGE_LENGTH, Cause, cause_of, describe

pytestmark = pytest.mark.req("V14", "P15")


def cause(error: BaseException, key: str = "book-1") -> Cause:
    """Of an error that was raised, as a worker records it."""
    return cause_of(*describe(error), key)


def raised(function: Any, *args: Any) -> BaseException:
    try:
        function(*args)
    except BaseException as error:
        return error
    raise AssertionError("it was to raise")


def fetch(key: str, n: int) -> None:
    raise ValueError(f"page {n} of {key!r} is torn")


def fetch_otherwise(key: str, n: int) -> None:
    raise ValueError(f"page {n} of {key!r} is torn")


def parse(text: str) -> Any:
    return json.loads(text)


def parse_or_give_up(text: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise RuntimeError("no answer") from error


def test_the_same_failure_of_other_items_is_alike_whatever_their_keys_and_numbers() -> None:
    one, other = cause(raised(fetch, "book-1", 7)), cause(raised(fetch, "a b/c.pdf", 12_345), key="a b/c.pdf")
    assert one == other == Cause("ValueError", "test_failure_cause.py: fetch", "page <n> of '<key>' is torn")
    assert one.group == other.group


@pytest.mark.parametrize(
    "other",
    [
        raised(fetch_otherwise, "book-1", 7),  # another place
        KeyError("page 7 of 'book-1' is torn"),  # another class
        raised(fetch, "book-1", "seven"),  # another message
    ],
)
def test_another_place_class_or_message_is_another_cause(other: BaseException) -> None:
    assert cause(other).group != cause(raised(fetch, "book-1", 7)).group


def test_the_place_is_in_the_code_of_the_user_not_in_a_library() -> None:
    assert cause(raised(parse, "{")).place == "test_failure_cause.py: parse"
    assert cause(raised(parse_or_give_up, "{")).place == "test_failure_cause.py: parse_or_give_up"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            "OSError: [Errno 2] No such file or directory: '/books/v-17.epub'",
            "[Errno <n>] No such file or directory: '…'",
        ),
        ("ValueError: job 4b7c2c5e-8a60-4b0d-9a4e-52d1f7c0e9aa is gone", "job <id> is gone"),
        ("ValueError: object at 0x7f3a2b10 broke", "object at <id> broke"),
        ("HTTPError: 503 after 1.25 s at 10:31:07", "<n> after <n> s at <n>"),
        ("KeyError: 'title'", "'title'"),
        ("ValueError: x is not a number", "x is not a number"),
        ("ValueError: 'x' is not a number", "'<key>' is not a number"),
        ("ValueError: first line\nsecond line", "first line"),
        ("the worker that ran attempt 3 died", "the worker that ran attempt <n> died"),
        ("", ""),
    ],
)
def test_what_is_different_each_time_is_left_out_of_the_message(said: str, message: str) -> None:
    assert cause_of(said, None, "x").message == message


def test_an_endless_message_is_compared_by_its_beginning_in_little_time() -> None:
    one = cause_of("ValueError: " + "a1" * 500_000, None, "k")
    assert len(one.message) <= MESSAGE_LENGTH
    assert one == cause_of("ValueError: " + "a2" * 500_000 + "b", None, "k")
