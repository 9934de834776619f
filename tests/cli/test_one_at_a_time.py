"""`holdfast run --one-at-a-time --quiet`: for cron. The lock goes with its process, and the exit code says what happened."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import wait_for

Write = Callable[[str, str], str]

#: Each handler leaves a process behind that outlives its worker and keeps its files open, except the pipes to the test.
HELD = """
import os
import time
from pathlib import Path
from holdfast import Permanent, Pipeline

NAME = Pipeline("NAME")


@NAME.stage(name="hold-NAME")
def hold(item, ctx):
    child = os.fork()
    if child == 0:
        os.close(1), os.close(2)
        give_up_at = time.monotonic() + 60
        while not Path("go-child").exists() and time.monotonic() < give_up_at:
            time.sleep(0.05)
        os._exit(0)
    Path(f"started-NAME-{os.getpid()}").touch()
    while not Path("go").exists():
        time.sleep(0.02)
    if item.key == "bad":
        raise Permanent("no pages")
"""


@pytest.fixture
def held(write: Write) -> str:
    return write("held.py", HELD.replace("NAME", "held"))


@pytest.fixture(autouse=True)
def let_children_end() -> Any:
    yield
    Path("go-child").touch()


def started(name: str = "held") -> list[Path]:
    return list(Path(".").glob(f"started-{name}-*"))


def all_started(runs: Sequence[Any], *names: str) -> bool:
    """Whether each of these runs is at a handler, one for each name; none of them has ended meanwhile."""
    ended = {one.returncode for one in runs if one.poll() is not None}
    assert not ended, f"a run ended with {ended}"
    return all(len(started(name)) == names.count(name) for name in names)


ALONE = ("--one-at-a-time", "--lease", "1s")


@pytest.mark.req("P16")
def test_a_second_run_ends_with_7_and_does_nothing(cli: Any, held: str) -> None:
    cli("add", held, "a", "b")
    first = cli.start("run", held, *ALONE, "--concurrency", "1")
    wait_for(started)
    second = cli.process("run", held, *ALONE)
    assert (second.returncode, second.stdout) == (7, "")
    assert second.stderr == "holdfast: another run of the pipeline 'held' is at work: this one does nothing\n"
    assert len(started()) == 1
    Path("go").touch()
    first.communicate(timeout=30)
    assert first.returncode == 0
    assert cli.process("run", held, *ALONE).returncode == 0, "the lock was released"


@pytest.mark.req("P16")
@pytest.mark.fault(1)
def test_a_killed_run_leaves_no_lock_behind(cli: Any, held: str) -> None:
    """Not even if processes that it has forked live on with every file that was open."""
    cli("add", held, "a")
    first = cli.start("run", held, *ALONE)
    wait_for(started)
    first.send_signal(signal.SIGKILL)
    # Not by its pipes, which its children have, too.
    assert first.wait(timeout=30) == -signal.SIGKILL
    Path("go").touch()
    assert cli.process("run", held, *ALONE).returncode == 0
    assert cli.states() == {"hold-held": {"done": 1}}
    assert cli.json("show", "a")["stages"][0]["attempts"] == 2


@pytest.mark.req("P16")
def test_runs_that_do_not_ask_for_it_share_the_work_with_one_that_does(cli: Any, held: str) -> None:
    cli("add", held, "a", "b")
    first = cli.start("run", held, *ALONE, "--concurrency", "1")
    wait_for(started)
    second = cli.start("run", held, "--concurrency", "1")
    wait_for(lambda: all_started([first, second], "held", "held"))
    Path("go").touch()
    for one in (first, second):
        one.communicate(timeout=30)
        assert one.returncode == 0


@pytest.mark.req("P16")
def test_other_pipelines_of_the_store_have_locks_of_their_own(cli: Any, held: str, write: Write) -> None:
    other = write("other.py", HELD.replace("NAME", "other"))
    cli("add", held, "a")
    cli("add", other, "x")
    running = [cli.start("run", file, *ALONE) for file in (held, other)]
    wait_for(lambda: all_started(running, "held", "other"))
    Path("go").touch()
    for one in running:
        one.communicate(timeout=30)
        assert one.returncode == 0


@pytest.mark.req("P16")
def test_a_quiet_run_says_something_only_if_something_went_wrong(cli: Any, held: str) -> None:
    cli("add", held, "a")
    first = cli.start("run", held, *ALONE, "--quiet", "--progress-seconds", "0.01")
    wait_for(started)
    second = cli.process("run", held, *ALONE, "--quiet")
    assert (second.returncode, second.stdout, second.stderr) == (7, "", "")
    Path("go").touch()
    assert first.communicate(timeout=30) == ("", "")
    assert first.returncode == 0
    cli("add", held, "bad")
    failed = cli.process("run", held, *ALONE, "--quiet")
    assert failed.returncode == 3
    assert "no pages" in failed.stdout
