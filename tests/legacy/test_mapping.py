"""A mapping says where an old database keeps what: it is checked when it is read, and finds what is there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import UNSET

from holdfast.errors import UsageError
from holdfast.legacy.mapping import Cells, Mapped
from holdfast.legacy.shapes import SHAPES
from holdfast.legacy.stages_of_old_item import OldRecord, Stages, StagesReader
from holdfast.model.states import State

pytestmark = pytest.mark.req("J8")

AFTER = {"fetch": [], "extract": ["fetch"]}
DEEP = {
    "table": "t",
    "key": "id",
    "stages": {"state": "meta.steps.{stage}.state", "result": "meta.steps.{stage}.output"},
}


def record(given: dict[str, Any], **columns: Any) -> OldRecord:
    raw = {name: (value if isinstance(value, str) else json.dumps(value)).encode() for name, value in columns.items()}
    return Mapped.read(given).for_stages(AFTER).to_record(Cells(raw, []), {})


def read(given: dict[str, Any], **columns: Any) -> Stages:
    return StagesReader(AFTER, Mapped.read(given).states).read(record(given, **columns))


def test_the_mapping_of_the_guide_can_be_read():
    text = (Path(__file__).parents[2] / "docs" / "guide" / "import.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```yaml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    mapped = Mapped.read(yaml.safe_load(block))
    assert mapped.largest_first and mapped.states["ok"] is State.DONE
    assert {*mapped.side_tables} == {"results", "costs", "events"}
    assert ("payments", "paid_at") in mapped.own and ("work_items", "item_key") not in mapped.own


def test_the_shapes_are_mappings_like_any_other():
    for shape in SHAPES:
        alone = Mapped.read(dict(SHAPES[shape]))
        assert Mapped.read({"shape": shape}) == Mapped(*(getattr(alone, name) for name in alone.__slots__[:-1]))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "table is missing"),
        ({"table": "t"}, "key is missing"),
        ({"shape": "stages-jsn"}, 'shape "stages-jsn" is unknown; there are: stages-json, job-metadata'),
        ({"shape": "stages-json", "kye": "x"}, "'kye' is unknown"),
        ({"shape": "stages-json", "key": 7}, "key: 7 is not a text"),
        ({"shape": "stages-json", "key": "a..b"}, "is not a path"),
        ({"shape": "stages-json", "stages": {"stat": "x"}}, "stages: 'stat' is unknown"),
        ({"shape": "stages-json", "stages": "stages"}, 'stages: "stages" is not a mapping'),
        ({"shape": "stages-json", "states": {"ok": "finished"}}, 'ok: "finished" is not a state'),
        ({"shape": "stages-json", "costs": {"amount": "usd"}}, "costs: say in which table"),
        ({"shape": "job-metadata", "stages": {"words": {"extract": "extracting"}}}, "write two words"),
    ],
)
def test_a_mapping_that_cannot_be_meant_is_refused_with_the_key_that_is_wrong(given: dict[str, Any], said: str):
    with pytest.raises(UsageError, match=re.escape(said)):
        Mapped.read(given)


def test_paths_lead_as_deep_as_they_like_and_what_they_pass_by_is_told():
    steps = {"fetch": {"state": "done", "output": 1, "host": "a"}, "ocr": {"state": "done"}}
    found = read(DEEP, id="x", meta={"steps": steps, "lang": "en"})
    assert {stage: str(entry.state) for stage, entry in found.begun.items()} == {"fetch": "done", "extract": "pending"}
    assert found.begun["fetch"].result == "1"
    told = {(problem.kind, problem.found) for problem in found.problems}
    assert told >= {
        ("stage_unknown", '{"state": "done"}'),
        ("entry_unknown", 'meta.lang: "en"'),
        ("entry_unknown", 'meta.steps.fetch.host: "a"'),
    }


def test_data_may_be_a_column_a_part_of_one_or_several():
    row = {"id": "x", "meta": {"title": "T", "n": 1}, "words": "12"}
    assert record({**DEEP, "data": "meta"}, **row).data == json.dumps(row["meta"]).encode()
    assert record({**DEEP, "data": "meta.title"}, **row).data == "T"
    assert record({**DEEP, "data": {"t": "meta.title", "w": "words", "none": "gone"}}, **row).data == {
        "t": "T",
        "w": 12,
    }
    assert record(DEEP, **row).data is UNSET


def test_a_result_that_is_null_is_none_where_it_is_cached_and_one_where_it_is_a_row():
    steps = {"steps": {"fetch": {"state": "done", "output": None}}}
    assert read(DEEP, id="x", meta=steps).again == ["fetch"]
    mapped = Mapped.read({**DEEP, "results": {"table": "r", "key": "id", "stage": "stage", "result": "value"}})
    row = Cells({"stage": b"fetch", "value": b"null"}, [])
    said = mapped.for_stages(AFTER).to_record(
        Cells({"id": b"x", "meta": json.dumps(steps).encode()}, []), {"results": [row]}
    )
    assert StagesReader(AFTER).read(said).again == []


def test_what_was_made_from_a_missing_result_is_made_again():
    steps = {"fetch": {"state": "done"}, "extract": {"state": "done", "output": 2}}
    assert read(DEEP, id="x", meta={"steps": steps}).again == []
    after = {**AFTER, "index": ["fetch", "extract"]}
    said = Mapped.read(DEEP).for_stages(after).to_record(Cells({"meta": json.dumps({"steps": steps}).encode()}, []), {})
    found = StagesReader(after).read(said)
    assert (found.again, [*found.begun]) == (["fetch", "extract"], ["fetch"])
    told = [problem.kind for problem in found.problems if problem.kind.startswith("result")]
    assert told == ["result_missing", "result_outdated"]
