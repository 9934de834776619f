"""The command line of examples.fiction, as its README shows it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from examples.fiction.__main__ import main
from examples.fiction.fakes.fake_storyteller import FakeStoryteller
from examples.fiction.scheduler import Scheduler
from examples.fiction.settings import VARIABLES, Settings
from examples.fiction.weaver import Weaver
from tests.support.mother import Forked
from tests.support.processes import ROOT, STUCK_SECONDS, wait_for
from tests.support.schemas import bare_schema

README = (ROOT / "examples" / "fiction" / "README.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def quick(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[None]:
    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path / 'fiction.db'}"
        if database == "postgres":
            url = stack.enter_context(bare_schema(request.getfixturevalue("postgres")))
        for variable, value in {
            "FICTION_URL": url,
            "FICTION_PACE": "0",
            "FICTION_RETRY": "0",
            "FICTION_POLL": "0.01",
            "FICTION_FAIL_ONE_IN": "0",
        }.items():
            monkeypatch.setenv(variable, value)
        yield


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(main, list(words))
    assert done.exit_code == code, done.output
    return str(done.stdout)


@contextmanager
def role(*words: str, said: Path) -> Iterator[Forked]:
    """A process of its own, killed at the end of the block."""
    with said.open("wb") as file:
        process = Forked("examples.fiction.__main__", list(words), os.environ, stdout=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait(STUCK_SECONDS)


def test_a_plan_is_set_up_worked_off_and_shown():
    assert json.loads(run("plan", "The Lamp Road", "--chapters", "1", "--scenes", "1", "--json")) == {"plan": 1}
    assert "4 Pending" in run("show")
    with subprocess.Popen(
        [sys.executable, "-m", "examples.fiction", "scheduler", "--drain", "--json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as scheduler:
        woven = json.loads(run("weaver", "--drain", "--json"))
        said, _ = scheduler.communicate(timeout=60)
    assert woven["woven"] == 4
    assert (json.loads(said)["won"], json.loads(said)["enqueued"]) == (4, 4)
    assert json.loads(run("resumer", "--drain", "--json"))["resumed"] == 0
    explained = json.loads(run("fulfiller", "--drain", "--json"))
    found = json.loads(run("show", "--json"))
    [plan] = found["plans"]
    assert {item["status"] for item in plan["items"]} == {"Complete"}
    assert [item["backlog_id"] for item in plan["items"]] == ["vision", "outline", "scroll-1", "scene-1-1"]
    assert plan["lore"] == {"Complete": explained["completed"]}
    assert found["world_bible_entries"] > 0
    assert "4 Complete" in run("show")
    assert "The Lamp Road, chapter 1, scene 1" in run("story", "1")
    assert "is not Failed" in CliRunner().invoke(main, ["again", "1"]).output


@pytest.mark.req("F3")
def test_an_item_that_failed_is_sent_back_and_written_with_all_that_waited_for_it(tmp_path: Path):
    run("plan", "The Lamp Road", "--chapters", "1", "--scenes", "1")
    database = Settings.read().open()
    for _ in range(5):
        Scheduler(database).one_pass()
        Weaver(database, FakeStoryteller(0, 1), retry=0).one_pass()
    assert "1 Failed" in run("show")
    # Those that start from it wait, but there is nothing to be done for them.
    assert json.loads(run("weaver", "--drain", "--json"))["woven"] == 0
    assert "item 1 is Pending" in run("again", "1")
    assert "is not Failed" in CliRunner().invoke(main, ["again", "1"]).output
    database.close()
    with role("scheduler", "--drain", said=tmp_path / "said") as scheduler:
        assert json.loads(run("weaver", "--drain", "--json"))["woven"] == 4
        assert scheduler.wait(STUCK_SECONDS) == 0
    [plan] = json.loads(run("show", "--json"))["plans"]
    assert [(item["status"], item["attempts"], item["error"]) for item in plan["items"]] == [("Complete", 1, None)] * 4
    assert "The Lamp Road, chapter 1, scene 1" in run("story", "1")


@pytest.mark.req("F8")
def test_what_a_killed_process_has_counted_is_still_known_and_the_next_one_adds_to_it(tmp_path: Path):
    def counted() -> dict[str, dict[str, int]]:
        return json.loads(run("show", "--json"))["counters"]

    small = ("--chapters", "1", "--scenes", "1")
    run("plan", "The Lamp Road", *small)
    assert counted() == {}
    with (
        role("scheduler", said=tmp_path / "1"),
        role("weaver", said=tmp_path / "2"),
        role("fulfiller", said=tmp_path / "3"),
    ):
        wait_for(lambda: (found := counted()).get("weaver", {}).get("woven") == 4 and "fulfiller" in found)
        wait_for(lambda: counted()["scheduler"].get("enqueued") == 4)
    # All three were killed.
    run("plan", "The Salt Road", *small)
    with role("scheduler", "--drain", said=tmp_path / "4") as scheduler:
        assert json.loads(run("weaver", "--drain", "--json"))["woven"] == 4
        assert scheduler.wait(STUCK_SECONDS) == 0
    found = counted()
    assert (found["weaver"], found["scheduler"]["enqueued"]) == ({"woven": 8}, 8)
    assert "weavers so far: woven 8\n" in run("show")


def test_every_command_is_in_the_readme_and_exists_there_with_its_options():
    found = set()
    for line in re.findall(r"python -m examples\.fiction ([a-z][^`\n]*)", README):
        name, *words = shlex.split(line.partition("&")[0], comments=True)
        command = main.get_command(click.Context(main), name)
        assert command is not None, line
        command.make_parser(click.Context(command)).parse_args(words)
        found.add(name)
    assert found == set(main.commands)


def test_every_variable_is_in_the_readme():
    listed = set(re.findall(r"^\| `(FICTION_[A-Z_]+)`", README, re.MULTILINE))
    assert listed == set(VARIABLES.values())
