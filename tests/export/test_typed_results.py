"""Results as values of the types that a program declares."""

from __future__ import annotations

import msgspec
import pytest

from holdfast import Context, Holdfast, Item, Pipeline
from holdfast.errors import ValueMismatch

pytestmark = pytest.mark.req("P13", "P14")


class Summary(msgspec.Struct):
    words: int


class Longer(msgspec.Struct):
    words: int
    language: str


def pipeline(url: str, kind: type) -> Pipeline:
    books = Pipeline("books", store=url)

    @books.stage(returns=kind)
    def summarise(item: Item, ctx: Context) -> dict[str, int]:
        return {"words": len(item.key)}

    @books.stage(after=summarise)
    def plain(item: Item, ctx: Context) -> dict[str, int]:
        return {"pages": 3}

    return books


def test_results_of_a_stage_with_a_type_are_instances_and_others_plain(url: str):
    books = pipeline(url, Summary)
    books.add(["walden", "emma"])
    books.run()
    assert sorted(one.result.words for one in books.results("summarise")) == [4, 6]
    assert [one.result for one in books.results("plain")] == [{"pages": 3}] * 2
    with Holdfast(url, [books.spec]) as app:
        assert {type(one.result) for one in app.results("books", "summarise")} == {Summary}
    with Holdfast(url) as app:
        assert [one.result for one in app.results("books", "summarise", key="emma")] == [{"words": 4}]


def test_a_result_that_does_not_fit_the_type_of_today_is_named(url: str):
    books = pipeline(url, Summary)
    books.add(["walden"])
    books.run()
    with pytest.raises(ValueMismatch, match=r"item 'walden', stage 'summarise': result\.language.*holdfast plan"):
        list(pipeline(url, Longer).results("summarise"))
