"""A connection is not shared with a forked child: the child's copy refuses, and the parent goes on (fault 22)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from holdfast.errors import StoreError
from holdfast.store import open_store
from tests.support.forking import in_a_child
from tests.support.together import STUCK_SECONDS

pytestmark = pytest.mark.fault(22)


def refused(use):
    try:
        use()
    except StoreError as error:
        return str(error)
    return "not refused"


def promptly(work):
    """Run the work; whoever waits for a lock that nobody will give up fails, and does not hang."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(work()), daemon=True)
    thread.start()
    thread.join(STUCK_SECONDS)
    assert answers, "still waiting for a lock that a child of the dead process holds"


def test_a_child_that_uses_the_parents_store_is_refused_and_the_parent_goes_on(app):
    app.pipeline({"a": []})
    app.add(["x"])
    rule = repr("a forked process must open a store of its own")
    assert in_a_child(lambda: refused(lambda: app.add(["y"]))) == rule
    assert in_a_child(lambda: refused(lambda: app.states("x"))) == rule
    assert in_a_child(lambda: refused(app.store.schema_version)) == rule
    assert app.states("x") == {"a": "pending"}
    assert app.run_through() == 1


def test_a_child_forked_in_the_middle_of_a_write_harms_nothing_by_its_end(app):
    """Its copies of the connection and of the lock are cut off: closing them says nothing to anybody."""
    app.pipeline({"a": []})

    def work(tx):
        tx.run("add_pipeline", name="q", now=0)
        assert in_a_child(lambda: app.store.close()) == "None"
        tx.run("add_pipeline", name="r", now=0)

    app.store.write(work)
    assert [row[0] for row in app.query("SELECT name FROM holdfast_pipelines ORDER BY name")] == ["p", "q", "r"]


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_on_postgresql_a_child_may_open_a_store_of_its_own(app, url):
    app.pipeline({"a": []})

    def work():
        store = open_store(url)
        store.write(lambda tx: tx.run("add_pipeline", name="of the child", now=0))
        store.close()

    assert in_a_child(work) == "None"
    assert len(app.query("SELECT name FROM holdfast_pipelines")) == 2


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_on_sqlite_a_child_that_opens_the_same_file_is_refused_or_loses_nothing(app, url):
    """SQLite keeps its locks by process: a child that inherits a connection believes to hold what only the parent holds."""
    app.pipeline({"a": []})
    to_parent, from_child = os.pipe()
    to_child, from_parent = os.pipe()
    child = os.fork()
    if child == 0:
        said = b"refused"
        try:
            store = open_store(url)
            store.write(lambda tx: tx.run("add_pipeline", name="before the parent closed", now=0))
            os.write(from_child, b".")
            os.read(to_child, 1)
            store.write(lambda tx: tx.run("add_pipeline", name="after the parent closed", now=0))
            said = b"written"
        except StoreError:
            os.write(from_child, b".")
        os.write(from_child, said)
        os._exit(0)
    os.read(to_parent, 1)
    app.store.close()
    os.write(from_parent, b".")
    said = os.read(to_parent, 100)
    os.waitpid(child, 0)
    store = open_store(url)
    there = [row[1] for row in store.read(lambda tx: tx.run("read_pipelines"))]
    store.close()
    if said == b"written":
        assert there == ["after the parent closed", "before the parent closed", "p"]
    else:
        assert there == ["p"]


PARENT = """
import os, signal, sys
from holdfast.store import open_store
store = open_store(sys.argv[1])
store.upgrade()
def work(tx):
    tx.run("add_pipeline", name="never committed", now=0)
    child = os.fork()
    if child == 0:
        signal.pause()
    print(child, flush=True)
    signal.pause()
store.write(work, exclusive=True)
"""


def test_a_forked_child_that_outlives_its_parent_holds_no_lock(url):
    """The parent is killed inside a write; its child lives on with copies of its descriptors."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, url], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    try:
        parent.kill()
        parent.wait()
        os.kill(child, 0)
        store = open_store(url, create=False)
        promptly(lambda: store.write(lambda tx: tx.run("add_pipeline", name="p", now=0), exclusive=True))
        assert [row[1] for row in store.read(lambda tx: tx.run("read_pipelines"))] == ["p"]
        store.close()
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


SUBPROCESS_PARENT = """
import subprocess, sys, time
from holdfast.store import open_store
store = open_store(sys.argv[1])
store.upgrade()
def work(tx):
    tx.run("add_pipeline", name="never committed", now=0)
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    print(child.pid, flush=True)
    time.sleep(60)
store.write(work, exclusive=True)
"""


def test_a_program_started_by_a_handler_that_outlives_the_worker_holds_no_lock(url):
    parent = subprocess.Popen([sys.executable, "-c", SUBPROCESS_PARENT, url], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    try:
        parent.kill()
        parent.wait()
        store = open_store(url, create=False)
        promptly(lambda: store.write(lambda tx: tx.run("add_pipeline", name="p", now=0), exclusive=True))
        store.close()
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "handlers.md"


@pytest.mark.req("P10")
@pytest.mark.parametrize("how", ["spawn", "forkserver", "fork"])
def test_processes_that_a_handler_starts_may_use_the_store_as_the_guide_says(bare_url, database, tmp_path, how):
    [block] = [one for one in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "mp_context" in one]
    head = "import os\nfrom holdfast import Holdfast, Pipeline\nbooks = Pipeline('books')\n"
    (tmp_path / "drawn_books.py").write_text(
        head + block.replace("spawn", how).replace("stage()", "stage(max_attempts=1)")
    )
    (tmp_path / "items.jsonl").write_text('{"key": "one", "pages": [1, 2, 3]}\n')

    def command(*words):
        return subprocess.run(
            [sys.executable, "-m", "holdfast", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "HOLDFAST_URL": bare_url, "PYTHONPATH": f"{GUIDE.parents[2]}:{tmp_path}"},
        )

    assert command("add", "drawn_books.py", "--from", "items.jsonl").returncode == 0
    done = command("run", "drawn_books.py")
    drawn = json.loads(command("events", "--event", "user.page_drawn", "--json").stdout)
    if (how, database) == ("fork", "sqlite"):
        assert (
            "was open in the process this one was forked from: start a process of its own" in done.stdout + done.stderr
        )
        assert drawn == []
    else:
        assert done.returncode == 0, done.stderr
        assert sorted(one["data"]["page"] for one in drawn) == [1, 2, 3]
