"""The JSON Schema says of a file what the checker says, as far as a schema can."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.jobfile import schema
from holdfast.jobfile.keys import GUARDS, LIMITS
from holdfast.jobfile.problems import Problems
from holdfast.jobfile.reading import read
from holdfast.jobfile.schema import DRAFT
from holdfast.model import guard_conditions as guards
from holdfast.model import resource
from tests.jobfile.conftest import Folder
from tests.jobfile.test_building import FULL
from tests.jobfile.test_checking import WRONG, WRONG_STAGE

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
#: Every word of JSON Schema that is understood here.
WORDS = {
    "$schema",
    "title",
    "description",
    "examples",
    "type",
    "properties",
    "additionalProperties",
    "required",
    "items",
    "minProperties",
    "propertyNames",
    "minLength",
    "maxLength",
    "pattern",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "enum",
    "anyOf",
}


def fits(value: Any, wanted: dict[str, Any]) -> bool:
    """Whether a value is valid by a schema that uses no other words than these."""
    return not any(faults(value, wanted))


def faults(value: Any, wanted: dict[str, Any]) -> Iterator[str]:
    assert set(wanted) <= WORDS, set(wanted) - WORDS
    kinds = wanted.get("type", list(TYPES))
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not any(isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool)) for kind in kinds):
        yield f"{value!r} is not {kinds}"
    if "enum" in wanted and value not in wanted["enum"]:
        yield f"{value!r} is not one of {wanted['enum']}"
    if "anyOf" in wanted and not any(fits(value, one) for one in wanted["anyOf"]):
        yield f"{value!r} is none of {wanted['anyOf']}"
    if isinstance(value, str):
        if "pattern" in wanted and not re.search(wanted["pattern"], value):
            yield f"{value!r} is not like {wanted['pattern']}"
        if not wanted.get("minLength", 0) <= len(value) <= wanted.get("maxLength", len(value)):
            yield f"{value!r} is too short or too long"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not wanted.get("minimum", value) <= value <= wanted.get("maximum", value) or (
            "exclusiveMinimum" in wanted and value <= wanted["exclusiveMinimum"]
        ):
            yield f"{value!r} is out of range"
    if isinstance(value, list) and "items" in wanted:
        for one in value:
            yield from faults(one, wanted["items"])
    if isinstance(value, dict):
        yield from _faults_of_object(value, wanted)


def _faults_of_object(value: dict[str, Any], wanted: dict[str, Any]) -> Iterator[str]:
    if len(value) < wanted.get("minProperties", 0):
        yield "too few keys"
    yield from (f"{key} is missing" for key in wanted.get("required", ()) if key not in value)
    known = wanted.get("properties", {})
    rest = wanted.get("additionalProperties", {})
    for key, one in value.items():
        yield from faults(key, wanted.get("propertyNames", {}))
        if key in known:
            yield from faults(one, known[key])
        elif rest is False:
            yield f"{key} is unknown"
        else:
            yield from faults(one, rest)


def tree(text: str) -> Any:
    return read(text.encode(), Problems("x.yaml")).plain()


def test_it_is_of_the_draft_that_it_names() -> None:
    assert schema()["$schema"] == DRAFT == "https://json-schema.org/draft/2020-12/schema"


def test_a_file_that_says_everything_fits(folder: Folder) -> None:
    assert list(faults(tree(FULL), schema())) == []
    folder.load(FULL)


def test_the_job_file_of_the_guide_fits_and_is_in_order(folder: Folder) -> None:
    guide = Path(__file__).resolve().parents[2] / "docs" / "guide" / "job-file.md"
    text = re.findall(r"^```yaml\n(.*?)^```$", guide.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)[0]
    assert list(faults(tree(text), schema())) == []
    text = text.replace("books.extract", "shelf.extract").replace("books.chunk", "shelf.chunk")
    job = folder.load(text.replace("books.count", "shelf.count"), {"ALERT_URL": "https://alerts.example/x"})
    assert [stage.name for stage in job.pipelines[0].stages] == ["extract", "chunk"]


def test_a_variable_may_stand_wherever_a_value_may() -> None:
    text = (
        "pipelines: {a: {stages: {b: {handler: '${H}', max_attempts: '${N:-3}', timeout: '${T}', isolate: '${I}'}}}}\n"
    )
    text += "resources: {c: {rate: '${R}', adaptive: '${A}', breaker: '${B}', budget: '${M}'}}\nstore: '${S}'\n"
    assert list(faults(tree(text), schema())) == []


def test_the_limits_and_guards_are_those_of_the_model_and_its_examples_fit() -> None:
    """A key that the model learns, and the file does not, shows here."""
    assert set(LIMITS) == set(resource.KEYS)
    assert set(GUARDS.keys) == set(guards.KEYS)
    stages = {"extract": {"handler": "shelf.extract"}}
    tuning = {**resource.KEYS, "guards": {**guards.KEYS}, "stages": {"extract": {**resource.KEYS}}}
    whole = {"resources": {"gemini": {**resource.KEYS}}, "pipelines": {"books": {"stages": stages, "tuning": tuning}}}
    assert list(faults(whole, schema())) == []


def test_the_examples_of_the_model_are_in_order(folder: Folder) -> None:
    given = {**resource.KEYS, "guards": {**guards.KEYS, "handler": "shelf.quiet"}}
    stages = {"extract": {"handler": "shelf.extract"}}
    whole = {"resources": {"gemini": {**resource.KEYS}}, "pipelines": {"books": {"stages": stages, "tuning": given}}}
    assert folder.load(json.dumps(whole)).resources["gemini"] == resource.KEYS


#: What needs the rest of the file, the code, or a calendar to be seen.
BEYOND = {
    "a handler that is a call",
    "a handler with a relative path",
    "a resource that nothing defines",
    "an estimate of nothing",
    "an estimate that is neither",
    "a stage after itself",
    "a stage after one twice",
    "children of nobody",
    "no time at all",
    "a pipeline with a wrong name",
    "a stage with a wrong name",
    "a store of no known kind",
    "limits that do not go together",
    "a number that is too large",
    "a number that is no number any more",
    "reruns of a later stage",
}


@pytest.mark.parametrize("what", [*WRONG, *WRONG_STAGE])
def test_what_the_checker_refuses_the_schema_refuses_unless_it_cannot_know(what: str) -> None:
    text = WRONG[what][0] if what in WRONG else None
    if text is None:
        settings = WRONG_STAGE[what][0]
        written = "shelf.extract" if settings is None else f"{{{settings}}}"
        text = f"pipelines: {{books: {{stages: {{extract: {written}}}}}}}"
    elif "pipelines" not in text and what != "no pipelines":
        text += "\npipelines: {books: {stages: {extract: {handler: shelf.extract}}}}\n"
    assert fits(tree(text), schema()) == (what in BEYOND)


def test_every_key_is_described() -> None:
    def described(one: dict[str, Any], path: str) -> None:
        for key, inner in one.get("properties", {}).items():
            assert inner.get("description"), f"{path}.{key}"
            described(inner, f"{path}.{key}")
        for inner in [*one.get("anyOf", []), one.get("additionalProperties"), one.get("items")]:
            if isinstance(inner, dict):
                described(inner, path)

    described(schema(), "")
