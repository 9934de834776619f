"""`holdfast crashtest`: what it prints, and how it exits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli import commands
from tests.support.processes import ROOT

STUCK_SECONDS = 120

JOB = """
pipelines:
  pages:
    stages:
      fetch: {handler: handlers.fetch}
"""
HANDLERS = """
def fetch(item, ctx):
    ctx.once("page", lambda: item.data["url"])
    return len(item.data["url"])
"""


def holdfast(folder: Path, *args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "HOLDFAST_URL"}
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "crashtest", *args],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=STUCK_SECONDS,
        check=False,
    )
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


@pytest.mark.req("D4", "J21")
def test_a_difference_is_printed_with_what_to_change_and_exits_with_1(tmp_path: Path):
    subject = str(Path(__file__).parent / "subjects" / "wrong.py")
    done = holdfast(tmp_path, subject, "--item", "v.epub", "--pipeline", "paying", "--at", "3", "--at", "4", code=1)
    lines = done.stdout.splitlines()
    assert lines[0] == "Undisturbed: 1 start of handlers, 1 paid call; tables of yours: none"
    assert lines[1].split() == ["#", "starts", "paid", "in", "doubt", "verdict", "killed"]
    assert lines[2].split()[:5] == ["3", "2", "1", "0", "same"]
    assert lines[3].split()[:5] == ["4", "2", "2", "0", "DIFFERS"]
    assert lines[4].strip() == "2 paid calls in paying/pays_outside_once, 1 undisturbed, and none was in doubt"
    assert lines[5].startswith("What to change: paying/pays_outside_once pays again")
    assert lines[6].startswith("2 kills in ")
    assert lines[6].endswith("1 the same, 1 different")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.req("J15", "J21")
def test_a_job_file_is_tested_with_the_data_that_is_given_and_answers_in_json(tmp_path: Path):
    (tmp_path / "holdfast.yaml").write_text(JOB)
    (tmp_path / "handlers.py").write_text(HANDLERS)
    item = ("holdfast.yaml", "--item", "home", "--data", '{"url": "http://127.0.0.1/"}')
    listed = holdfast(tmp_path, *item, "--list").stdout.splitlines()
    assert listed[0] == "   1  before the commit: claim pages/fetch"
    numbers = [line.split()[0] for line in listed if "once('page')" in line]
    told = json.loads(holdfast(tmp_path, *item, "--json", *(word for n in numbers for word in ("--at", n))).stdout)
    assert told["ok"] is True
    assert [(kill["where"], kill["verdict"], kill["starts"]) for kill in told["kills"]] == [
        ("before the commit: pages/fetch: once('page')", "same", 2),
        ("after the commit: pages/fetch: once('page')", "same", 2),
    ]


@pytest.mark.req("J21")
@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("missing.py", "--item", "v"), 4, "missing.py does not exist"),
        (("holdfast.yaml", "--item", "v"), 4, "holdfast.yaml:1:1: stages: the key 'stages' is unknown"),
        (("handlers.py", "--item", "v", "--data", "[]"), 2, "--data is not an object"),
        (("handlers.py", "--item", "v", "--store", "mysql://somewhere"), 2, "--store is neither sqlite: nor"),
        (("handlers.py", "--item", "v", "--template", "gone.db"), 2, "the template gone.db is not a file"),
    ],
    ids=["no file", "job file", "data", "store", "template"],
)
def test_wrong_usage_is_told_with_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], code: int, words: str
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_URL", raising=False)
    (tmp_path / "holdfast.yaml").write_text("stages: {}")
    done = CliRunner().invoke(commands, ["crashtest", *args], prog_name="holdfast")
    assert done.exit_code == code, done.output
    assert done.stdout == ""
    assert done.stderr.startswith(f"holdfast: {words}"), done.stderr
