"""The checklist: whether a loop is fit for several processes, point by point, in Python and on the command line."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from holdfast.adopt import Loop, TableMapping, with_session
from holdfast.adopt.loop.checklist import Point, checklist
from holdfast.cli.check import check
from tests.adopt.tables import EVERY, Jobs
from tests.adopt.test_sessions import Base, Task

POINTS = ["locking", "transitions", "failure status", "transactions", "batch size", "instances", "logging"]


def nothing(job: Any) -> None:
    """A handler."""


def of(loop: Loop) -> dict[str, Point]:
    return {point.name: point for point in checklist(loop)}


@pytest.mark.req("S1", "S2", "S3", "S4", "S5", "S7")
def test_a_loop_whose_table_has_every_column_is_in_order(jobs: Jobs):
    points = of(Loop(jobs.engine, jobs.mapping, nothing, name="pages", max_instances=3))
    assert list(points) == POINTS and all(point.ok for point in points.values())
    lock = "FOR UPDATE SKIP LOCKED" if jobs.engine.dialect.name == "postgresql" else "one writer at a time"
    assert lock in points["locking"].how
    assert points["transitions"].how.startswith("queued → processing → completed or failed; back to queued after 2 m")
    assert points["failure status"].how == "failed after 5 attempts, with the error in error"
    assert points["batch size"].how == "10 rows per claim, 1 at a time"
    assert points["instances"].how == "3 at a time"
    assert points["logging"].how == "as 'pages', counters every 1 m"


@pytest.mark.req("S1", "S2", "S3", "S4", "S5", "S7")
@pytest.mark.parametrize(
    ("columns", "settings", "missing"),
    [
        (
            (),
            {},
            {
                "locking": "map a holder",
                "transitions": "stay processing forever: map a heartbeat",
                "failure status": "map an error",
                "logging": "map a created",
            },
        ),
        (EVERY, {"guarded": False}, {"locking": "leave it out"}),
        (EVERY, {"stale_after": None}, {"transitions": "leave out stale_after=None"}),
        (("holder", "error", "attempts", "started", "created"), {}, {"transitions": "longer than 30 m is run twice"}),
        (("holder", "error", "heartbeat", "created"), {}, {"failure status": "map an attempts"}),
        (("holder", "error", "created", "heartbeat"), {"retry": "1m"}, {"failure status": "is retried forever"}),
        (
            ("holder", "error", "attempts", "started", "created"),
            {"batch": 100, "concurrency": 2},
            {"transitions": "is run twice", "batch size": "less than 36 s: take a smaller batch"},
        ),
        (
            ("version", "error", "created"),
            {"max_instances": 2},
            {"transitions": "forever", "instances": "counts rows.*never free again"},
        ),
        (("holder", "error", "attempts", "heartbeat"), {}, {"logging": "how long rows wait is not known"}),
    ],
)
def test_what_is_missing_is_said_with_its_remedy(
    engine: Engine, columns: tuple[str, ...], settings: dict[str, Any], missing: dict[str, str]
):
    jobs = Jobs(engine, columns)
    points = of(Loop(engine, jobs.mapping, nothing, **settings))
    lacking = {name: "; ".join(point.missing) for name, point in points.items() if not point.ok}
    assert lacking.keys() == missing.keys()
    for name, said in missing.items():
        assert re.search(said, lacking[name]), lacking[name]


@pytest.mark.req("S3")
def test_where_the_model_counts_the_version_a_handler_with_a_session_needs_a_holder(engine: Engine):
    Base.metadata.create_all(engine)

    def curate(key: int, session: Session) -> None: ...

    columns = {"status": "state", "version": "version", "started": "started", "heartbeat": "beat"}
    loop = Loop(engine, TableMapping(Task, **columns), with_session(curate))
    assert "loses the row" in of(loop)["transactions"].missing[0]
    assert "the session commits first" in of(loop)["transactions"].how
    held = Loop(engine, TableMapping(Task, **columns, holder="who"), with_session(curate))
    assert of(held)["transactions"].ok


# On the command line --------------------------------------------------------------------------------------------------

PROGRAM = """
from holdfast import Pipeline
from holdfast.adopt import Loop
from tests.adopt.places import engine_on
from tests.adopt.tables import Jobs

engine = engine_on({url!r})
pages = Loop(engine, Jobs(engine).mapping, lambda job: None, name="pages")
"""
LACKING = """
links = Loop(engine, Jobs(engine, ("holder",), name="links").mapping, lambda job: None, name="links")
both = [pages, links]
"""
PIPELINE = """
books = Pipeline("books")

@books.stage
def read(item, ctx):
    return 1
"""


@pytest.fixture
def program(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "service.py"
    file.write_text(PROGRAM.format(url=url))
    return file


def run(*arguments: str) -> Result:
    return CliRunner().invoke(check, arguments, catch_exceptions=False)


@pytest.mark.req("S1", "S7")
def test_a_module_whose_loops_are_in_order_is_said_to_be(program: Path):
    done = run(str(program))
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{program} is in order.\n  pages: in order\n    ok       locking  ")
    assert done.stdout.count("    ok       ") == len(POINTS)


@pytest.mark.req("S1", "S7")
@pytest.mark.parametrize("what", ["", ":both", ":links"])
def test_for_every_loop_it_says_what_is_missing(program: Path, what: str):
    with program.open("a") as more:
        more.write(LACKING)
    done = run(f"{program}{what}")
    assert done.exit_code == 4
    assert "not in order, 1 of" in done.stdout and "  links: not in order\n" in done.stdout
    assert ("  pages: in order\n" in done.stdout) == (what != ":links")
    assert "    missing  failure status  failed at the first error\n" in done.stdout
    assert "why a row failed is only in the log: map an error column\n" in done.stdout
    answer = json.loads(run(f"{program}{what}", "--json").stdout)
    assert (answer["ok"], answer["errors"], answer["pipelines"]) == (False, [], [])
    [links] = [one for one in answer["loops"] if one["name"] == "links"]
    assert (links["table"], links["ok"], [point["name"] for point in links["points"]]) == ("links", False, POINTS)
    lacking = {point["name"]: point["missing"] for point in links["points"] if not point["ok"]}
    assert lacking.keys() == {"transitions", "failure status", "logging"} and all(lacking.values())


@pytest.mark.req("S1", "J15")
def test_a_module_may_have_pipelines_as_well(program: Path):
    with program.open("a") as more:
        more.write(PIPELINE)
    done = run(str(program), "--json")
    answer = json.loads(done.stdout)
    assert (done.exit_code, answer["ok"]) == (0, True)
    assert (answer["pipelines"], len(answer["loops"])) == ([{"name": "books", "stages": ["read"]}], 1)


@pytest.mark.req("S1")
def test_a_module_with_neither_is_refused_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "empty.py").write_text("x = 1\n")
    done = run(str(tmp_path / "empty.py"))
    assert (done.exit_code, "has no pipeline" in done.stdout) == (4, True)


@pytest.mark.req("S1", "S7")
def test_the_five_loops_of_the_example_are_checked_without_a_database(monkeypatch: pytest.MonkeyPatch, url: str):
    monkeypatch.setenv("CURATION_DATABASE", url)
    answer = json.loads(run("examples.curation.service:loops", "--json").stdout)
    found = {one["name"].rpartition(" ")[0]: one for one in answer["loops"]}
    assert len(found) == 5 and found["deep scan"]["ok"]
    service = {point["name"]: point["missing"] for point in found["page service"]["points"]}
    assert "map a heartbeat column" in service["transitions"][0]


@pytest.mark.req("S1")
def test_the_guide_lists_the_points():
    page = (Path(__file__).parents[2] / "docs" / "guide" / "own-tables.md").read_text(encoding="utf-8")
    section = page.partition("### The checklist\n")[2].partition("\n## ")[0].partition("\n### ")[0]
    assert re.findall(r"^\| \*\*(.+?)\*\* \|", section, re.MULTILINE) == POINTS
