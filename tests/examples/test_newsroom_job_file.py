"""The job file itself: in order as it is shipped, and told with line and column where somebody gets it wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from examples.newsroom.guards import no_embargo
from holdfast.cli import commands
from holdfast.jobs import load_job
from tests.examples.newsroom_scene import EXAMPLE, STAGES

SHIPPED = (EXAMPLE / "holdfast.yaml").read_text()


@pytest.fixture(autouse=True)
def nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOLDFAST_URL", "NEWSROOM_SITE", "NEWSROOM_EMBARGO"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))


def check(file: Path, code: int = 0, *words: str) -> Result:
    result = CliRunner().invoke(commands, ["check", str(file), *words], prog_name="holdfast")
    assert result.exit_code == code, result.output
    return result


@pytest.mark.req("J15", "J17")
def test_the_job_file_is_in_order_as_it_is_shipped():
    assert "newsroom: fetch, extract, analyse, index" in check(EXAMPLE / "holdfast.yaml").stdout
    job = load_job(EXAMPLE / "holdfast.yaml")
    [spec] = job.pipelines
    assert [stage.name for stage in spec.stages] == list(STAGES)
    assert all(stage.handler.__module__ == "examples.newsroom.stages" for stage in spec.stages)
    assert {one.kind for one in job.sources["newsroom"]} == {"sitemap", "feed", "http_json", "list", "files"}
    # What it is, and how fast it may go, are two values.
    assert job.tunings["newsroom"].guards["disk_free"] == "100MB" and job.resources["site"]["rate"] == "60/s"
    again = load_job(EXAMPLE / "holdfast.yaml")
    assert [stage.handler for stage in again.pipelines[0].stages] == [stage.handler for stage in spec.stages]


@pytest.mark.req("J15")
@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ("newsroom.stages.fetch", "newsroom.stages.fetsh", "has no 'fetsh', did you mean 'fetch'?"),
        ("examples.newsroom.stages.index", "examples.newsrom.stages.index", "there is no module 'examples.newsrom'"),
        ("newsroom.guards.no_embargo", "newsroom.guards.no_embrago", "did you mean 'no_embargo'?"),
        ("holdfast.merge_provenance", "holdfast.merge_provenence", "has no 'merge_provenence'"),
        ("rate: 60/s", "rate: 60/sek", "is not a rate"),
        ("after: fetch", "after: fetched", "fetched"),
        ("event: budget_reached", "event: budget_reachd", "did you mean 'budget_reached'?"),
        ("state: exhausted", "state: exausted", "did you mean 'exhausted'?"),
    ],
    ids=["a handler", "a module", "a guard", "a merger", "a rate", "a stage", "an event", "a state"],
)
def test_what_is_misspelt_is_told_with_file_line_and_column_before_anything_starts(
    tmp_path: Path, right: str, wrong: str, says: str
):
    assert SHIPPED.count(right) == 1
    file = tmp_path / "holdfast.yaml"
    file.write_text(SHIPPED.replace(right, wrong))
    line = 1 + SHIPPED[: SHIPPED.index(right)].count("\n")
    told = json.loads(check(file, 4, "--json").stdout)
    [problem] = told["errors"]
    assert (problem["file"], problem["line"]) == (str(file), line) and problem["column"] > 0
    assert says in problem["what"]
    # No store is made for a file that is wrong.
    result = CliRunner().invoke(commands, ["run", str(file), "--store", f"sqlite:///{tmp_path / 'store.db'}"])
    assert result.exit_code == 4 and f"{file}:{line}:" in result.output
    assert not (tmp_path / "store.db").exists()


@pytest.mark.req("J18")
def test_the_embargo_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert no_embargo() is True
    (tmp_path / "embargo").touch()
    assert "until somebody removes embargo" in str(no_embargo())
    (tmp_path / "embargo").write_text("noon\n")
    assert no_embargo() == "there is an embargo: noon"
