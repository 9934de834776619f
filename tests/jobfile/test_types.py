"""`data:` and `returns:` name types by dotted path, as `Pipeline(data=…)` and `stage(returns=…)` do in Python."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from holdfast.jobfile import schema
from tests.jobfile.conftest import MODULE, Folder

pytestmark = pytest.mark.req("P13", "J15")

TYPES = """
import dataclasses
from holdfast import Item, Pipeline


@dataclasses.dataclass
class Book:
    pages: int


@dataclasses.dataclass
class Summary:
    words: int
    language: str = "en"


Summaries = list[Summary]
Perhaps = Summary | None
LIMIT = 3


def summarise(item, ctx):
    return {"words": item.data.pages * 300}


def of_summary(item: Item[Summary], ctx): ...


def annotated(item, ctx) -> Summary: ...


@Pipeline("other").stage(returns=Summary)
def decorated(item, ctx): ...
"""


@pytest.fixture
def types(folder: Folder) -> Folder:
    (folder.path / "kinds.py").write_text(TYPES)
    return folder


def text(stage: str, pipeline: str = "") -> str:
    return f"pipelines:\n  books:\n{pipeline}    stages:\n      summarise: {{{stage}}}\n"


DATA = "    data: kinds.Book\n"


def test_data_and_results_of_a_job_have_the_types_that_it_names(types: Folder, url: str) -> None:
    job = types.load(text("handler: kinds.summarise, returns: kinds.Summary", DATA))
    with Holdfast(url, job.pipelines) as app:
        app.add("books", [{"key": "a", "pages": 2}])
        app.run()
        assert app.show("a").stage("summarise").result == {"words": 600, "language": "en"}
        with pytest.raises(Exception, match=r"^books: item 'b': data\.pages: expected int, got str$"):
            app.add("books", [{"key": "b", "pages": "x"}])


@pytest.mark.parametrize("path", ["kinds.Summary", "kinds:Summary", "kinds.Summaries", "kinds.Perhaps"])
def test_a_type_may_be_a_class_or_a_list_or_union_with_a_name(types: Folder, path: str) -> None:
    [stage] = types.load(text(f"handler: kinds.summarise, returns: '{path}'")).pipelines[0].stages
    assert stage.result_type is not None


@pytest.mark.parametrize("handler", ["annotated", "decorated"])
def test_the_type_of_a_handler_counts_if_the_file_names_none(types: Folder, handler: str) -> None:
    [stage] = types.load(text(f"handler: kinds.{handler}")).pipelines[0].stages
    assert stage.result_type is not None and stage.result_type.name == "Summary"


@pytest.mark.parametrize(
    ("stage", "pipeline", "said"),
    [
        (
            "handler: kinds.summarise, returns: kinds.Sumary",
            "",
            "4:54: pipelines.books.stages.summarise.returns: 'kinds' (of {folder}/kinds.py) has no 'Sumary', did you mean",
        ),
        (
            "handler: kinds.summarise, returns: kinds.zzzzzz",
            "",
            "4:54: pipelines.books.stages.summarise.returns: 'kinds' (of {folder}/kinds.py) has no 'zzzzzz', expected the name",
        ),
        (
            "handler: kinds.summarise, returns: kinds.LIMIT",
            "",
            "4:54: pipelines.books.stages.summarise.returns: 3 is no type that can be read from JSON",
        ),
        (
            "handler: kinds.summarise",
            "    data: kinds.Summaries\n",
            "3:11: pipelines.books.data: list[kinds.Summary] is not a type of objects",
        ),
        (
            "handler: kinds.of_summary",
            DATA,
            "5:28: pipelines.books.stages.summarise.handler: its handler takes an Item[Summary], but the data of this pipeline",
        ),
        (
            "handler: kinds.summarise, returns: Summary",
            "",
            "4:54: pipelines.books.stages.summarise.returns: 'Summary' is not a full dotted path",
        ),
        (
            "handler: kinds.summarise",
            "    data: 3\n",
            "3:11: pipelines.books.data: 3 is given, expected the full dotted",
        ),
        ("handler: kinds.summarise", "    data: nowhere.Book\n", "3:11: pipelines.books.data: there is no module"),
    ],
)
def test_what_is_wrong_with_a_type_is_said_with_its_line(types: Folder, stage: str, pipeline: str, said: str) -> None:
    [wrong] = types.wrong(text(stage, pipeline))
    assert wrong.startswith(said.format(folder=types.path))


def test_nothing_is_imported_before_the_whole_file_is_in_order(types: Folder) -> None:
    (types.path / "shelf.py").write_text(MODULE)
    types.wrong(text("handler: shelf.extract, returns: kinds.Summary, batch: none", DATA))
    assert types.imports == 0


def test_the_schema_of_job_files_knows_both_keys() -> None:
    pipeline = schema()["properties"]["pipelines"]["additionalProperties"]
    assert pipeline["properties"]["data"]["type"] == "string"
    assert pipeline["properties"]["stages"]["additionalProperties"]["properties"]["returns"]["type"] == "string"
