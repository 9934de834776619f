"""`holdfast run` serves its numbers while it works."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Commands
from tests.support.scrapes import check_with_promtool, fetch, free_port, value
from tests.support.waiting import wait_for

pytestmark = pytest.mark.req("P18")

PROGRAM = """
import time
from pathlib import Path
from holdfast import Pipeline

books = Pipeline("books")

@books.stage()
def extract(item, ctx):
    while item.key == "slow" and not Path("gate").exists():
        time.sleep(0.01)
"""


def test_a_run_serves_its_numbers_while_it_works(
    cli: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("books.py").write_text(PROGRAM)
    cli("add", "books.py", "quick", "slow")
    port = free_port()
    run = cli.start("run", "books.py", f"--metrics-port={port}", "-q")

    def done() -> float | None:
        return value(fetch(port)[1], "holdfast_attempts_total", pipeline="books", stage="extract", outcome="done")

    wait_for(lambda: done() == 1, 120)
    check_with_promtool(fetch(port)[1])
    assert fetch(port, "/livez")[0] == 404  # nobody has asked for it
    Path("gate").touch()
    assert run.wait(60) == 0
    assert fetch(port)[0] == 0
