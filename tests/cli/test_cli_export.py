"""`holdfast export`: files, cursors, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.store import Store
from holdfast.testing import ManualClock
from tests.support.harness import App
from tests.support.waiting import wait_for

pytestmark = pytest.mark.req("P14")


@pytest.fixture
def filled(store: Store, clock: ManualClock) -> App:
    made = App(store, clock)
    made.pipeline({"a": [], "b": ["a"]})
    made.add([{"key": f"k{number}", "n": number} for number in range(3)])
    for lease in made.claim(most=100, stage="a"):
        if lease.key == "k2":
            made.permanent(lease, "no page")
        else:
            made.complete(lease, {"n": int(lease.key[1:])})
    return made


def test_rows_go_to_standard_output_and_the_cursor_to_the_other_one(cli: Any, filled: App) -> None:
    done = cli("export", "p", "--columns", "key,data.n,result")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"key": "k0", "data.n": 0, "result": {"n": 0}},
        {"key": "k1", "data.n": 1, "result": {"n": 1}},
    ]
    assert done.stderr.startswith("2 rows. --since hf1-")
    cursor = done.stderr.split()[3]
    filled.add(["new"])
    filled.run_through("late")
    rows = cli("export", "p", "--columns", "key,stage", "--since", cursor).stdout
    assert {"key": "new", "stage": "a"} in [json.loads(line) for line in rows.splitlines()]


def test_the_name_of_a_file_says_its_format_and_the_answer_is_json(cli: Any, filled: App, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    done = json.loads(cli("export", "p", "--columns", "key,cost", "-o", str(out), "--json").stdout)
    assert done == {"rows": 2, "cursor": done["cursor"], "everything_again": False, "failed": 0}
    assert out.read_bytes() == b"key,cost\r\nk0,0\r\nk1,0\r\n"
    # What is exported to standard output has it for itself.
    done = cli("export", "p", "--json")
    assert len(done.stdout.splitlines()) == 2 and json.loads(done.stderr)["rows"] == 2


def test_a_file_of_its_own_keeps_the_cursor_from_run_to_run(cli: Any, filled: App, tmp_path: Path) -> None:
    at = ("export", "p", "--columns", "key,stage", "--cursor-file", str(tmp_path / "cursor"))
    assert len(cli(*at).stdout.splitlines()) == 2
    before = (tmp_path / "cursor").read_text()
    filled.run_through("late")
    rows = [json.loads(line) for line in cli(*at).stdout.splitlines()]
    assert {"key": "k1", "stage": "b"} in rows
    assert (tmp_path / "cursor").read_text() != before
    # An export that fails leaves the cursor alone.
    kept = (tmp_path / "cursor").read_text()
    cli(*at, "-o", str(tmp_path / "no" / "such" / "folder.csv"), code=2)
    assert (tmp_path / "cursor").read_text() == kept
    assert "not both" in cli(*at, "--since", kept.strip(), code=2).stderr


def test_a_script_can_ask_whether_anything_has_failed(cli: Any, filled: App) -> None:
    done = cli("export", "p", "--fail-if-failed", code=3)
    assert len(done.stdout.splitlines()) == 2 and "1 stages of items have failed." in done.stderr
    cli("export", "p", "--stage", "b", "--fail-if-failed")


def test_filters_are_those_of_a_list_of_items(cli: Any, filled: App) -> None:
    def found(*filters: str) -> list[str]:
        return [json.loads(line)["key"] for line in cli("export", "p", *filters).stdout.splitlines()]

    assert found("--key", "k1") == ["k1"]
    assert found("--state", "failed") == found("--error", "page") == ["k2"]
    assert found("--stage", "b") == []
    [group] = cli.json("errors")
    assert found("--group", group["group"]) == ["k2"]


def test_what_cannot_be_done_is_said_in_a_line(cli: Any, filled: App) -> None:
    for asked, said in (
        (["q"], "there is no pipeline 'q'"),
        (["p", "--columns", "kee"], "there is no column 'kee'"),
        (["p", "--since", "yesterday"], "'yesterday' is not a cursor"),
        (["p", "--state", "pending"], "'pending' is not one of"),
        (["p", "-o", "out.xlsx"], "there is no format 'xlsx'"),
    ):
        assert said in cli("export", *asked, code=2).stderr


@pytest.mark.parametrize("database", ["sqlite"])
def test_an_export_that_is_killed_leaves_the_file_before_it(cli: Any, filled: App, tmp_path: Path) -> None:
    """It is stopped in the middle of a row's way, when the file beside it is open."""
    out = tmp_path / "out.jsonl"
    out.write_text("the one before\n")
    program = (
        "import sys, time\n"
        "from holdfast.export import text_files\n"
        "def stuck(self, row):\n"
        "    self._out.write(b'half a ro'); self._out.flush()\n"
        "    time.sleep(600)\n"
        "text_files.JsonLines.write = stuck\n"
        "from holdfast.cli import main\n"
        "main()\n"
    )
    given = [sys.executable, "-c", program, "export", "p", "--store", cli.url, "-o", str(out)]
    process = subprocess.Popen(given, env={**os.environ})
    try:
        wait_for(lambda: [file for file in tmp_path.glob(".out.jsonl.*.part") if file.read_bytes() == b"half a ro"])
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert out.read_text() == "the one before\n"
