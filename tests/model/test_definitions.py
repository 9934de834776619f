"""Stages and pipelines are checked when they are built; what is wrong is named, with what to write instead."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import DefinitionError
from holdfast.model.stage import PipelineSpec, StageSpec

#: On a busy machine a single example may take long; that says nothing about the code.
at_leisure = settings(deadline=None)


def handler(item, ctx): ...


def build(shape, name="p"):
    return PipelineSpec.build(name, [StageSpec(stage, handler, after=tuple(after)) for stage, after in shape.items()])


# Stages --------------------------------------------------------------------------------------------------------------


class Callable:
    def __call__(self, item, ctx): ...


class AsyncCallable:
    async def __call__(self, item, ctx): ...


async def async_handler(item, ctx): ...


def with_more(item, ctx, extra=1, *, option=None): ...


def starred(*args): ...


@pytest.mark.parametrize(
    "good",
    [
        handler,
        async_handler,
        with_more,
        starred,
        Callable(),
        AsyncCallable(),
        functools.partial(with_more, extra=2),
        lambda item, ctx: None,
    ],
)
def test_a_handler_is_anything_that_takes_item_and_context(good):
    StageSpec("a", good)


def test_an_async_handler_is_known_as_one():
    assert StageSpec("a", async_handler).is_async
    assert StageSpec("a", AsyncCallable()).is_async
    assert StageSpec("a", functools.partial(async_handler)).is_async
    assert not StageSpec("a", handler).is_async
    assert not StageSpec("a", Callable()).is_async


def nothing(): ...


def one(item): ...


def three(item, ctx, more): ...


def keyword(item, ctx, *, needed): ...


@pytest.mark.parametrize("bad", [nothing, one, three, keyword])
def test_a_handler_with_another_signature_is_named_with_it(bad):
    with pytest.raises(DefinitionError, match=rf"stage 'a': {bad.__name__}\(.*\) cannot be called as .*\(item, ctx\)"):
        StageSpec("a", bad)


def generator(item, ctx):
    yield 1


async def async_generator(item, ctx):
    yield 1


class GeneratorCallable:
    def __call__(self, item, ctx):
        yield 1


@pytest.mark.parametrize("bad", [generator, async_generator, GeneratorCallable(), functools.partial(generator)])
def test_a_handler_that_yields_is_refused(bad):
    with pytest.raises(DefinitionError, match="yields; a handler returns its result"):
        StageSpec("a", bad)


@pytest.mark.parametrize("bad", [None, "handler", 7])
def test_a_handler_is_a_function(bad):
    with pytest.raises(DefinitionError, match="is not a function"):
        StageSpec("a", bad)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"version": 2}, 'version 2 is not a text; write version="2"'),
        ({"version": ""}, "version '' is not a text"),
        ({"version": None}, "version None"),
        ({"max_attempts": 0}, "max_attempts 0 is not a whole number of 1 or more"),
        ({"max_attempts": 2.5}, "max_attempts 2.5"),
        ({"max_attempts": True}, "max_attempts True"),
        ({"max_attempts": "3"}, "max_attempts '3'"),
        ({"batch": 0}, "batch 0 is not a whole number of 1 or more"),
        ({"batch": 1.0}, "batch 1.0"),
        ({"timeout_seconds": 0}, "timeout must be longer than zero"),
        ({"timeout_seconds": -1}, "timeout must be longer than zero"),
        ({"isolate": "thread"}, "isolate='thread' is unknown; the only way is isolate=\"process\""),
        ({"isolate": True}, "isolate=True is unknown"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_the_stage_it_is_of(settings, says):
    with pytest.raises(DefinitionError) as caught:
        StageSpec("fetch", handler, **settings)
    assert str(caught.value).startswith("stage 'fetch': ")
    assert says in str(caught.value)


@pytest.mark.parametrize("name", ["a", "fetch_page", "fetch-page", "v1.2", "Ünïcode", "_x", "a" * 100])
def test_a_name_starts_with_a_letter_and_goes_on_plainly(name):
    assert StageSpec(name, handler).name == name
    assert build({name: []}, name=name).name == name


@pytest.mark.parametrize(
    "name", ["", "1a", "a b", "a/b", "a\0", "a\n", "-a", "a" * 101, "a'", 'a"', None, 7, b"a", ".a"]
)
def test_any_other_name_is_refused(name):
    with pytest.raises(DefinitionError, match="stage name"):
        StageSpec(name, handler)
    with pytest.raises(DefinitionError, match="pipeline name"):
        PipelineSpec.build(name, [StageSpec("a", handler)])


# Pipelines -----------------------------------------------------------------------------------------------------------


def test_stages_come_in_an_order_that_respects_what_comes_before_what():
    spec = build({"end": ["b", "c"], "c": ["a"], "b": ["a"], "a": []})
    assert [stage.name for stage in spec.stages] == ["a", "c", "b", "end"]
    assert spec.stage("c").after == ("a",)
    with pytest.raises(DefinitionError, match="no stage 'x'"):
        spec.stage("x")


def test_a_pipeline_has_stages():
    with pytest.raises(DefinitionError, match=r"has no stages: decorate a function with @p\.stage\(\)"):
        build({})


def test_two_stages_of_one_name_are_refused():
    stages = [StageSpec("a", handler), StageSpec("b", handler), StageSpec("a", handler)]
    with pytest.raises(DefinitionError, match="two stages named 'a': rename one"):
        PipelineSpec.build("p", stages)


def test_a_stage_after_one_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(
        DefinitionError, match="stage 'b' comes after 'fetsch', which does not exist; there are: b, fetch"
    ):
        build({"fetch": [], "b": ["fetsch"]})


@pytest.mark.parametrize(
    ("shape", "circle"),
    [
        ({"a": ["a"]}, "a → a"),
        ({"a": ["b"], "b": ["a"]}, "a → b → a|b → a → b"),
        ({"ok": [], "a": ["ok", "c"], "b": ["a"], "c": ["b"]}, "a → b → c → a|b → c → a → b|c → a → b → c"),
        ({"a": ["b"], "b": ["c"], "c": ["b"]}, "b → c → b|c → b → c"),
    ],
)
def test_a_circle_is_refused_and_drawn(shape, circle):
    with pytest.raises(DefinitionError, match=rf"the stages ({circle}) wait for each other in a cycle"):
        build(shape)


def test_a_stage_that_names_one_before_it_twice_is_refused_or_means_it_once():
    """Counted twice it would wait for ever: two are needed, and only one can pass."""
    try:
        spec = build({"a": [], "b": ["a", "a"]})
    except DefinitionError:
        return
    assert spec.stage("b").after == ("a",)


@at_leisure
@given(st.data())
def test_any_pipeline_without_a_circle_is_put_into_an_order(data):
    names = [f"s{n}" for n in range(data.draw(st.integers(1, 12)))]
    shape = {
        name: data.draw(st.lists(st.sampled_from(names[:place]), unique=True)) if place else []
        for place, name in enumerate(names)
    }
    written = data.draw(st.permutations(list(shape)))
    order = [stage.name for stage in build({name: shape[name] for name in written}).stages]
    assert sorted(order) == sorted(names)
    for name, before in shape.items():
        assert all(order.index(one) < order.index(name) for one in before)


@at_leisure
@given(st.integers(2, 8), st.randoms())
def test_any_circle_is_found_wherever_it_lies(length, rng):
    circle = [f"c{n}" for n in range(length)]
    shape = {name: [circle[place - 1]] for place, name in enumerate(circle)}
    shape |= {"start": [], "side": ["start"], "behind": [rng.choice(circle), "side"]}
    names = list(shape)
    rng.shuffle(names)
    with pytest.raises(DefinitionError, match="in a cycle") as caught:
        build({name: shape[name] for name in names})
    assert "start" not in str(caught.value)
