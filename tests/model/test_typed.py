"""Types: what fits is read as an instance, what does not is refused with its path, and a fingerprint tells types apart."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import os
import subprocess
import sys
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import attrs
import msgspec
import numpy
import pydantic
import pytest

from holdfast import Context, Item, Permanent, RetryLater, Skip
from holdfast.errors import DefinitionError, ValueMismatch
from holdfast.model import codec
from holdfast.model.stage import PipelineSpec, Stage, StageSpec
from holdfast.model.typed import declared_type, known_type

pytestmark = pytest.mark.req("P13")


class Model(pydantic.BaseModel):
    pages: int
    title: str = "untitled"


class Struct(msgspec.Struct):
    pages: int
    title: str = "untitled"


@dataclasses.dataclass
class Data:
    pages: int
    title: str = "untitled"


class Dict(TypedDict):
    pages: int
    title: NotRequired[str]


@attrs.define
class Attrs:
    pages: int
    title: str = "untitled"


class Colour(StrEnum):
    RED = "red"


@dataclasses.dataclass
class Wide:
    at: datetime.datetime
    price: Decimal
    file: Path
    tags: set[str]
    colour: Colour
    raw: bytes
    by_year: dict[int, Model]


class Aliased(pydantic.BaseModel):
    pages: int = pydantic.Field(validation_alias="numberOfPages")
    title: str = pydantic.Field("x", alias="theTitle")

    @pydantic.computed_field
    def double(self) -> int:
        return self.pages * 2

    model_config = pydantic.ConfigDict(extra="forbid")


KINDS = [Model, Struct, Data, Dict, Attrs]


def type_of(declared: Any) -> Any:
    return declared_type(declared, "here")


def stage(handler: Any, **more: Any) -> StageSpec:
    return StageSpec(name="extract", handler=handler, **more)


@pytest.mark.parametrize("kind", KINDS)
def test_plain_data_that_fits_is_read_as_an_instance_with_defaults_filled_in(kind: Any) -> None:
    form = type_of(kind).form({"pages": 3, "unknown": 1}, "data")
    assert form == ({"pages": 3} if kind is Dict else {"pages": 3, "title": "untitled"})
    value = type_of(kind).value(form, "data")
    assert value == kind(**form)
    assert type_of(kind).form(value, "data") == form


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pages": [1]}, r"data\.pages: expected (int, got array|a valid integer)"),
        ({"title": "x"}, r"data\.pages: it is missing"),
        ({"pages": 1, "title": 3}, r"data\.title: expected (str, got int|a valid string)"),
        (None, r"data: expected"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_path(kind: Any, given: Any, said: str) -> None:
    with pytest.raises(ValueMismatch, match=f"^{said}"):
        type_of(kind).form(given, "data")
    assert not type_of(kind).fits(given)


def test_an_instance_with_a_field_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(ValueMismatch, match=r"^result\.pages: expected int, got str"):
        type_of(Data).form(Data("many"), "result")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_lists_and_optional_values_take_instances_and_plain_data_and_their_paths_have_positions(kind: Any) -> None:
    several = type_of(list[kind])
    made = kind(pages=1)
    assert several.value(several.form([made, {"pages": 2}], "result"), "result") == [made, kind(pages=2)]
    with pytest.raises(ValueMismatch, match=r"^result\[1\]\.pages: it is missing"):
        several.form([made, {}], "result")
    perhaps = type_of(kind | None)
    assert perhaps.value(None, "result") is None
    assert perhaps.value({"pages": 1}, "result") == made
    with pytest.raises(ValueMismatch):
        type_of(kind).value(None, "result")


def test_everything_that_a_field_may_be_comes_back_as_it_was() -> None:
    wide = Wide(
        datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        Decimal("1.10"),
        Path("/a/b"),
        {"x"},
        Colour.RED,
        b"\x00",
        {2026: Model(pages=1)},
    )
    text = codec.encode(type_of(Wide).form(wide, "result"))
    assert type_of(Wide).value(codec.decode(text), "result") == wide


def test_a_model_with_aliases_and_computed_fields_reads_its_own_form() -> None:
    form = type_of(Aliased).form({"numberOfPages": 3, "theTitle": "y"}, "data")
    assert form == {"pages": 3, "theTitle": "y"}
    assert type_of(Aliased).value(form, "data").title == "y"


def test_a_value_whose_own_form_cannot_be_read_back_is_refused_at_once() -> None:
    class Forgetful(pydantic.BaseModel):
        secret: str = pydantic.Field(exclude=True)

    with pytest.raises(ValueMismatch, match=r"^result\.secret: it is missing"):
        type_of(Forgetful).form({"secret": "x"}, "result")


def test_unions_of_models_are_read_as_the_first_that_fits_and_one_that_could_be_confused_is_refused() -> None:
    class Other(pydantic.BaseModel):
        pages: int

    class Words(pydantic.BaseModel):
        words: int

    either = type_of(Model | Words)
    assert either.value(either.form(Words(words=3), "result"), "result") == Words(words=3)
    with pytest.raises(ValueMismatch, match=r"^result: it fits none of Model \| Words; result\.pages: it is missing"):
        either.form({}, "result")
    with pytest.raises(ValueMismatch, match="a Other would be read as Model"):
        type_of(Model | Other).form(Other(pages=1), "result")
    assert type_of(Other | Model).value({"pages": 1}, "result") == Other(pages=1)


def test_a_value_is_not_shown_in_the_message_that_refuses_it() -> None:
    for kind in KINDS:
        with pytest.raises(ValueMismatch) as refused:
            type_of(kind).form({"pages": "hunter2"}, "data")
        assert "hunter2" not in str(refused.value)


# Fingerprints ---------------------------------------------------------------------------------------------------------


def variants() -> dict[str, Any]:
    class Book(pydantic.BaseModel):
        """A book."""

        title: str
        description: int = 1

    first = Book

    class Book(pydantic.BaseModel):  # type: ignore[no-redef]
        """The same, described in other words."""

        title: str = pydantic.Field(title="its name", description="how it is called")
        description: int = 1

    same = Book

    class Book(pydantic.BaseModel):  # type: ignore[no-redef]
        """A book."""

        title: str
        description: str = ""

    return {"first": first, "same": same, "other": Book}


def test_the_fingerprint_changes_with_the_fields_and_not_with_their_descriptions() -> None:
    prints = {name: type_of(kind).fingerprint for name, kind in variants().items()}
    assert prints["first"] == prints["same"] != prints["other"]
    assert known_type(prints["other"]) is not None
    assert known_type("") is known_type(None) is None


def test_fingerprints_are_the_same_in_every_process() -> None:
    program = (
        "from tests.model import test_typed as t\n"
        "print(*(t.type_of(one).fingerprint for one in (*t.KINDS, t.Wide, t.Aliased, list[t.Data], t.Model | t.Data)))"
    )
    ran = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    here = " ".join(type_of(one).fingerprint for one in (*KINDS, Wide, Aliased, list[Data], Model | Data))
    assert ran == [f"{here}\n"] * 2


# What a stage says ----------------------------------------------------------------------------------------------------


def summed(item: Item[Model], ctx: Context) -> Struct | Skip | None: ...


def batch(items: list[Item[Model]], ctx: Any) -> list[Data | RetryLater]: ...


async def listed(item: Item, ctx: Any) -> list[Struct]: ...


def annotated(item: Item[Any], ctx: Any) -> Annotated[Model, "a note"]: ...


def test_the_annotations_of_a_handler_name_the_types() -> None:
    assert [one and one.declared for one in (stage(summed).item_type, stage(summed).result_type)] == [
        Model,
        Struct | None,
    ]
    several = stage(batch, batch=3)
    assert [one and one.declared for one in (several.item_type, several.result_type)] == [Model, Data]
    assert (result := stage(listed).result_type) is not None and result.declared == list[Struct]
    assert stage(listed).item_type is None
    assert stage(annotated).result_type is not None


def plain(item: Item, ctx: Context) -> dict[str, Any]: ...


def anything(item: Any, ctx: Any) -> Any: ...


def nothing(item: Any, ctx: Any) -> None: ...


def outcome(item: Any, ctx: Any) -> Permanent | Skip: ...


def unresolved(item: Item[Missing], ctx: Any) -> Missing: ...  # type: ignore[name-defined]  # noqa: F821


def numbers(item: Any, ctx: Any) -> list[int]: ...


@dataclasses.dataclass
class Unreadable:
    what: object = None
    lock: subprocess.Popen[bytes] | None = None


def unreadable(item: Any, ctx: Any) -> Unreadable: ...


@pytest.mark.parametrize(
    "handler", [plain, anything, nothing, outcome, unresolved, numbers, unreadable, lambda i, c: 1]
)
def test_annotations_that_name_no_model_change_nothing(handler: Any) -> None:
    assert (stage(handler).item_type, stage(handler).result_type, stage(handler).type) == (None, None, None)


def test_an_annotation_that_cannot_be_resolved_does_not_hide_the_other() -> None:
    def handler(item: Item[Missing], ctx: Missing) -> Model: ...  # type: ignore[name-defined]  # noqa: F821

    assert stage(handler).result_type is not None


def test_what_is_declared_comes_before_what_is_annotated() -> None:
    assert (made := stage(summed, returns=Data).result_type) is not None and made.declared is Data


def test_a_class_that_is_local_to_a_function_is_found_if_the_handler_uses_it() -> None:
    class Local(msgspec.Struct):
        n: int

    def handler(item: Any, ctx: Any) -> Local:
        return Local(1)

    assert (made := stage(handler).result_type) is not None and made.declared is Local


class Callable:
    def __call__(self, item: Item[Model], ctx: Any) -> Struct: ...

    def method(self, item: Item[Model], ctx: Any) -> Struct: ...


def beside(extra: int, item: Item[Model], ctx: Any) -> Struct: ...


@pytest.mark.parametrize("handler", [Callable(), Callable().method, functools.partial(beside, 1)])
def test_methods_objects_and_partials_name_their_types_too(handler: Any) -> None:
    found = stage(handler)
    assert [one and one.declared for one in (found.item_type, found.result_type)] == [Model, Struct]


def test_texts_and_numbers_of_other_libraries_fit() -> None:
    class Text(str):
        __slots__ = ()

    assert type_of(Model).form({"pages": numpy.int64(3), "title": Text("x")}, "result") == {"pages": 3, "title": "x"}
    assert type_of(Data).form(Data(numpy.int64(3), Text("x")), "result") == {"pages": 3, "title": "x"}  # type: ignore[arg-type]


def test_a_stage_turns_stored_json_into_its_value() -> None:
    spec = stage(summed)
    one: Stage[Any, Any] = Stage(summed, spec)
    assert one.value_of('{"pages": 3, "title": "x"}') == Struct(3, "x")
    assert one.value_of("null") is None
    assert one.value_of(None) is None
    assert stage(plain).value_of('{"a": 1}') == {"a": 1}
    with pytest.raises(ValueMismatch, match=r"^result\.pages: it is missing"):
        one.value_of("{}")


@pytest.mark.parametrize("declared", [object, print, 3, "Model", list[object], Unreadable])
def test_what_is_declared_and_cannot_be_read_from_json_is_refused(declared: Any) -> None:
    with pytest.raises(DefinitionError, match=r"stage 'extract': returns: .* is no type that can be read from JSON"):
        stage(plain, returns=declared)


@pytest.mark.parametrize("declared", [int, list[Model], dict, Model | None])
def test_the_data_of_an_item_is_an_object(declared: Any) -> None:
    with pytest.raises(DefinitionError, match=r"pipeline 'books': data: .* is not a type of objects"):
        PipelineSpec.build("books", [stage(plain)], data=declared)


def test_a_handler_that_takes_other_data_than_its_pipeline_has_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"its handler takes an Item\[Model\], but the data .* is of type Data"):
        stage(summed, data=Data)

    class More(Model):
        more: int = 1

    assert (made := stage(summed, data=More).item_type) is not None and made.declared is More
