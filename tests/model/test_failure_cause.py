"""What makes two failures alike: the class of the error, the place in the user's code, the message without what changes."""

from __future__ import annotations

import json
import string
import time
from collections.abc import Iterable
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
    assert one == other == Cause("ValueError", "test_failure_cause.py: fetch", "page <…> of '<…>' is torn")
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
            "[Errno <…>] No such file or directory: '<…>'",
        ),
        ("ValueError: job 4b7c2c5e-8a60-4b0d-9a4e-52d1f7c0e9aa is gone", "job <…> is gone"),
        ("ValueError: object at 0x7f3a2b10 broke", "object at <…> broke"),
        ("HTTPError: 503 after 1.25 s at 10:31:07", "<…> after <…> s at <…>"),
        ("KeyError: 'title'", "'title'"),
        ("ValueError: can't open 'x'", "can't open '<…>'"),
        ("ValueError: x is not a number", "<…> is not a number"),
        ("ValueError: 'x' is not a number", "'<…>' is not a number"),
        ("ValueError: first line\nsecond line", "first line"),
        ("the worker that ran attempt 3 died", "the worker that ran attempt <…> died"),
        ("", ""),
    ],
)
def test_what_is_different_each_time_is_left_out_of_the_message(said: str, message: str) -> None:
    assert cause_of(said, None, "x").message == message


KEYS = [
    "b1",
    "b12",
    "1",
    "7",
    "99",
    "404",
    "700",
    "12345678",
    "1-2",
    "1.5",
    "x",
    "I",
    "ä",
    "日本",
    "an",
    "it's",
    "#1",
    "a b",
]
KEYS += ["cafe1234", "0x1f", "4b7c2c5e-8a60-4b0d-9a4e-52d1f7c0e9aa", "A-1/2_c", "v.epub", "b" * 60, "c" * 1000, "d\ne"]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("chapter {key} has no title", "chapter <…> has no title"),
        ("chapter {key!r} has no title", "chapter '<…>' has no title"),
        ("page-{key}.json is torn", "page-<…>.json is torn"),
        ("no page_{key}.json", "no page_<…>.json"),
        ("{key}/3 took 0:12", "<…> took <…>"),
        ("'nothing like {key} is in the list'", "'nothing like <…> is in the list'"),
        ("cannot open '/books/{key}/1'", "cannot open '<…>'"),
        ("Error code: 404 - too many, 400 at most", "Error code: <…> - too many, <…> at most"),
        ("account 12345678 is closed", "account <…> is closed"),
        ("{key}", "<…>"),
    ],
)
def test_one_cause_reads_the_same_whatever_the_key(said: str, message: str) -> None:
    """Also if the key is a number, and a number of the provider's text, or short, or long."""
    causes = {cause_of(f"ValueError: {said.format(key=key)}", None, key) for key in KEYS}
    assert causes == {Cause("ValueError", "", message)}


def test_a_key_that_is_an_ordinary_word_makes_one_more_group_at_most_for_each_word_of_the_message() -> None:
    def groups(said: str, keys: Iterable[str]) -> int:
        return len({cause_of(f"ValueError: {said.format(key=key)}", None, key).group for key in keys})

    letters = string.ascii_letters
    assert groups("a chapter has no title", letters) == 1  # "a" is a word here, and "b" is none
    assert groups("chapter {key} is not a book", [*letters, "b1", "17"]) == 1
    words = [first + second for first in string.ascii_lowercase for second in string.ascii_lowercase]
    assert groups("chapter {key} is not in the list", words) == 3  # "is", "in", all others


def test_signs_that_are_a_key_are_left_alone_between_words() -> None:
    assert cause_of("ValueError: one - two", None, "-").message == "one - two"
    assert cause_of("KeyError: '-'", None, "-").message == "'<…>'"


@pytest.mark.parametrize("part", ["a1", "'/", "1-", "a a ", "<…>", "0x", "- ", "x", "k", "kk "])
@pytest.mark.parametrize("key", ["k", "k" * 500, "-", "a"])
def test_no_message_takes_long(part: str, key: str) -> None:
    took = []
    for _ in range(5):
        began = time.process_time()
        assert cause_of("ValueError: " + part * 50_000, None, key).group
        took.append(time.process_time() - began)
    assert min(took) < 0.05


def test_an_endless_message_is_compared_by_its_beginning_in_little_time() -> None:
    one = cause_of("ValueError: " + "a1" * 500_000, None, "k")
    assert len(one.message) <= MESSAGE_LENGTH
    assert one == cause_of("ValueError: " + "a2" * 500_000 + "b", None, "k")
