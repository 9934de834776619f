"""Notebooks: cells are run again, progress is one display, and an interrupt ends in order. With a real kernel."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import KernelManager, start_new_kernel
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from holdfast import Holdfast
from tests.support.mother import ROOT
from tests.support.waiting import wait_for

#: No cell takes this long.
STUCK_SECONDS = 120

DEFINE = """
from holdfast import Pipeline
books = Pipeline("books", store=URL)
"""
STAGE = """
@books.stage(max_attempts=1)
def work(item, ctx):
    return "RESULT"
"""


class Kernel:
    """A kernel, as a notebook uses it."""

    def __init__(self, manager: KernelManager, client: Any) -> None:
        self.manager = manager
        self._client = client

    def begin(self, code: str) -> str:
        return str(self._client.execute(code))

    def end(self, cell: str) -> tuple[str, list[dict[str, Any]]]:
        """How a cell ended, and what it has put out."""
        outputs: list[dict[str, Any]] = []
        while True:
            message = self._client.get_iopub_msg(timeout=STUCK_SECONDS)
            if message["parent_header"].get("msg_id") != cell:
                continue
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
            outputs.append({"kind": message["msg_type"], **message["content"]})
        while True:
            reply = self._client.get_shell_msg(timeout=STUCK_SECONDS)
            if reply["parent_header"].get("msg_id") == cell:
                return reply["content"]["status"], outputs

    def __call__(self, code: str) -> list[dict[str, Any]]:
        status, outputs = self.end(self.begin(code))
        assert status == "ok", outputs
        return outputs


@pytest.fixture
def kernel(url: str, tmp_path: Path) -> Iterator[Kernel]:
    manager, client = start_new_kernel(
        startup_timeout=STUCK_SECONDS, env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=str(tmp_path)
    )
    try:
        kernel = Kernel(manager, client)
        kernel(f"URL = {url!r}")
        kernel(DEFINE)
        yield kernel
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def result(url: str, key: str) -> Any:
    with Holdfast(url) as app:
        return app.show(key).stage("work").result


@pytest.mark.req("P16")
def test_a_cell_that_is_run_again_replaces_its_stage(kernel: Kernel, url: str):
    kernel(STAGE.replace("RESULT", "first"))
    kernel(STAGE.replace("RESULT", "second"))
    kernel("books.add(['a']); books.run()")
    assert result(url, "a") == "second"
    # From the top again, as people do.
    kernel(DEFINE)
    kernel(STAGE.replace("RESULT", "third"))
    kernel("books.add(['b']); books.run()")
    assert result(url, "b") == "third"


@pytest.mark.req("P16")
def test_two_stages_of_one_name_in_one_cell_are_a_mistake(kernel: Kernel):
    status, outputs = kernel.end(kernel.begin(STAGE + STAGE))
    assert status == "error"
    assert outputs[-1]["ename"] == "DefinitionError"
    assert "two stages named 'work'" in outputs[-1]["evalue"]


@pytest.mark.req("P16")
@pytest.mark.parametrize("run", ["books.run()", "await books.run_async()"])
def test_progress_is_one_display_that_changes_and_the_cell_ends_with_the_summary(kernel: Kernel, run: str):
    kernel(STAGE)
    outputs = kernel(f"books.add([f'page-{{n}}' for n in range(30)])\n{run}")
    kinds = [one["kind"] for one in outputs if one["kind"] not in ("status", "execute_input")]
    assert kinds.count("display_data") == 1
    assert kinds[-1] == "execute_result"
    assert set(kinds) == {"display_data", "update_display_data", "execute_result"}, "no line is printed"
    shown = {one["transient"]["display_id"] for one in outputs if one.get("transient")}
    assert len(shown) == 1
    last = [one for one in outputs if one["kind"] == "update_display_data"][-1]["data"]["text/html"]
    assert "30 done" in last and 'value="30" max="30"' in last
    assert "<table>" in outputs[-1]["data"]["text/html"] and "30" in outputs[-1]["data"]["text/html"]
    assert "<table>" in kernel("from holdfast import Holdfast\nHoldfast(URL).status()")[-1]["data"]["text/html"]


WAITING_STAGE = """
import asyncio
import threading
from pathlib import Path
@books.stage(max_attempts=1)
HANDLER
books.add(["a"])
"""
#: They wait until they are let go; a sync one leaves the kernel's event loop with nothing to do.
HANDLERS = {
    "sync": """
def work(item, ctx):
    Path("begun").touch()
    if not Path("go").exists():
        threading.Event().wait()
    return "done"
""",
    "async": """
async def work(item, ctx):
    Path("begun").touch()
    if not Path("go").exists():
        await asyncio.Event().wait()
    return "done"
""",
}


@pytest.mark.req("P16")
@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("run", ["books.run", "await books.run_async"])
def test_an_interrupt_hands_work_back_and_the_next_run_goes_on(
    kernel: Kernel, url: str, tmp_path: Path, run: str, handler: str
):
    """Of a cell that awaits, the kernel cancels the task, as that of any other async cell."""
    kernel(WAITING_STAGE.replace("HANDLER", HANDLERS[handler]))
    cell = kernel.begin(f"{run}(grace=0)")
    wait_for((tmp_path / "begun").exists, STUCK_SECONDS)
    kernel.manager.interrupt_kernel()
    status, outputs = kernel.end(cell)
    if run == "books.run":
        assert status == "ok", outputs
        assert "(interrupted)" in outputs[-1]["data"]["text/plain"]
    else:
        assert (status, outputs[-1]["ename"]) == ("error", "CancelledError")
    with Holdfast(url) as app:
        assert not app.workers()
        stage = app.show("a").stage("work")
        assert (stage.state, stage.attempts) == ("pending", 0)
    (tmp_path / "go").touch()
    kernel(f"{run}()")
    assert result(url, "a") == "done"


@pytest.mark.req("P16")
def test_a_notebook_file_is_executed_from_the_top(url: str, tmp_path: Path):
    cells = [f"URL = {url!r}", DEFINE, STAGE, "books.add(['a', 'b'])", "books.run()"]
    book = new_notebook(cells=[new_code_cell(one) for one in cells])
    NotebookClient(
        book, timeout=STUCK_SECONDS, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute(env={**os.environ, "PYTHONPATH": str(ROOT)})
    nbformat.validate(book)
    assert "2 done" in book.cells[-1].outputs[-1]["data"]["text/plain"]
    assert result(url, "a") == "RESULT"


def test_a_program_that_names_two_stages_alike_is_refused():
    from holdfast import DefinitionError, Pipeline

    books = Pipeline("books")
    books.stage(name="work")(lambda item, ctx: None)
    with pytest.raises(DefinitionError, match="two stages named 'work'"):
        books.stage(name="work")(lambda item, ctx: None)
