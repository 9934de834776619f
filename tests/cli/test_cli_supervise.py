"""A parent of worker processes: with children and a clock set by hand, and with real ones."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.worker.supervise import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    MOST_DEATHS,
    SETTLED_SECONDS,
    Supervisor,
)
from tests.support import waiting
from tests.support.together import wait_for


class Kid:
    """A child that does as the test says."""

    def __init__(self, place: int, pid: int) -> None:
        self.place = place
        self.pid = pid
        self.code: int | None = None
        self.working = False
        self.heard: list[int] = []

    def ready(self) -> bool:
        return self.working

    def ended(self) -> int | None:
        return self.code

    def signal(self, number: int) -> None:
        self.heard.append(number)
        if number == signal.SIGKILL:
            self.code = -signal.SIGKILL


class Family:
    """A supervisor, the children it has had, and the time."""

    def __init__(self, processes: int) -> None:
        self.kids: list[Kid] = []
        self.now = 1000.0
        self.parent = Supervisor(
            self._spawn, processes, patience_seconds=30.0, monotonic=lambda: self.now, jitter=lambda low, high: high
        )

    def _spawn(self, place: int) -> Kid:
        self.kids.append(Kid(place, 100 + len(self.kids)))
        return self.kids[-1]

    def look(self, after: float = 0.0) -> int | None:
        self.now += after
        return self.parent.one_pass()

    def settle(self) -> None:
        """Let all be started and work long enough to count as such."""
        while True:
            before = len(self.kids)
            for kid in self.living:
                kid.working = True
            assert self.look(LONGEST_PAUSE_SECONDS + SETTLED_SECONDS) is None
            if len(self.kids) == before and all(kid.working for kid in self.living):
                break
        self.look(SETTLED_SECONDS)

    @property
    def living(self) -> list[Kid]:
        return [kid for kid in self.kids if kid.code is None]


def test_the_others_start_once_the_first_works() -> None:
    """A file that does not import is complained about once, not once per process."""
    family = Family(3)
    family.look()
    family.look(60)
    assert [kid.place for kid in family.kids] == [0]
    family.kids[0].working = True
    family.look()
    assert [kid.place for kid in family.kids] == [0, 1, 2]


@pytest.mark.parametrize("code", [2, 4, 5])
def test_what_is_hopeless_from_the_start_ends_the_parent_with_the_same_code(code: int) -> None:
    family = Family(3)
    family.look()
    family.kids[0].code = code
    assert family.look() == code
    assert len(family.kids) == 1


@pytest.mark.req("V7")
@pytest.mark.parametrize("code", [-signal.SIGKILL, -signal.SIGSEGV, 0, 1, 5, 4])
def test_a_child_that_dies_is_replaced(code: int) -> None:
    family = Family(2)
    family.settle()
    family.kids[0].code = code
    family.look()
    assert len(family.living) == 1
    family.look(FIRST_PAUSE_SECONDS)
    assert [kid.place for kid in family.living] == [1, 0]


def test_pauses_grow_while_deaths_follow_each_other_and_begin_anew_after_a_life() -> None:
    family = Family(1)
    pauses = []
    for _ in range(MOST_DEATHS - 1):
        family.look()
        family.living[0].code = -11
        died = family.now
        family.look()
        while not family.living:
            family.look(0.1)
        pauses.append(family.now - died)
    expected = [min(FIRST_PAUSE_SECONDS * 2**n, LONGEST_PAUSE_SECONDS) for n in range(MOST_DEATHS - 1)]
    assert pauses == pytest.approx(expected, abs=0.2)
    family.settle()
    family.living[0].code = -11
    family.look()
    family.look(FIRST_PAUSE_SECONDS)
    assert len(family.living) == 1


@pytest.mark.req("V7")
@pytest.mark.parametrize(("code", "said"), [(-signal.SIGSEGV, 128 + signal.SIGSEGV), (1, 1), (0, 1)])
def test_children_that_keep_dying_end_the_parent_with_an_honest_code(code: int, said: int) -> None:
    family = Family(1)
    answer = None
    for _ in range(MOST_DEATHS):
        assert answer is None
        family.look(LONGEST_PAUSE_SECONDS)
        family.living[0].code = code
        answer = family.look()
    assert answer == said
    assert len(family.kids) == MOST_DEATHS


def test_work_that_goes_well_is_not_given_up_for_a_place_that_keeps_dying() -> None:
    family = Family(2)
    family.settle()
    for _ in range(3 * MOST_DEATHS):
        next(kid for kid in family.living if kid.place == 1).code = 4
        assert family.look() is None
        assert family.look(LONGEST_PAUSE_SECONDS) is None
    assert family.kids[0].heard == []


def test_a_long_import_that_ends_in_death_counts_as_a_death() -> None:
    """Only time at work shows that a child is well, not time spent on starting."""
    family = Family(1)
    answer = None
    for _ in range(MOST_DEATHS):
        family.look(LONGEST_PAUSE_SECONDS)
        family.look(10 * SETTLED_SECONDS)
        family.living[0].code = 1
        answer = family.look()
    assert answer == 1


def test_a_parent_that_gives_up_stops_the_others_first() -> None:
    family = Family(2)
    family.look()
    family.kids[0].working = True
    family.look()
    other = family.kids[1]
    for _ in range(MOST_DEATHS):
        next(kid for kid in family.living if kid.place == 0).code = 7
        assert family.look() is None
        if other.heard:
            break
        family.look(LONGEST_PAUSE_SECONDS)
    assert other.heard == [signal.SIGTERM]
    other.code = 0
    assert family.look() == 7


@pytest.mark.fault(9, 10)
def test_signals_are_passed_on_as_often_as_they_come() -> None:
    family = Family(2)
    family.settle()
    family.parent.stop(signal.SIGINT)
    assert family.look() is None
    family.parent.stop(signal.SIGTERM)
    assert family.look() is None
    assert [kid.heard for kid in family.kids] == [[signal.SIGINT, signal.SIGTERM]] * 2
    for kid in family.kids:
        kid.code = 0
    assert family.look() == 0


def test_nothing_is_started_once_a_stop_was_asked_for() -> None:
    family = Family(2)
    family.settle()
    family.kids[0].code = -9
    family.look()
    family.parent.stop()
    family.look(LONGEST_PAUSE_SECONDS - 1)
    assert len(family.kids) == 2
    family.kids[1].code = 0
    assert family.look() == 0


@pytest.mark.parametrize("code", [0, -signal.SIGTERM, -signal.SIGINT, 130, 143])
def test_a_stop_that_was_asked_for_ends_with_0(code: int) -> None:
    """Also if a child was stopped before it could listen."""
    family = Family(1)
    family.look()
    family.parent.stop()
    family.look()
    family.kids[0].code = code
    assert family.look() == 0


@pytest.mark.parametrize(("code", "said"), [(5, 5), (-signal.SIGSEGV, 139), (1, 1)])
def test_a_stop_in_which_a_child_failed_does_not_end_with_0(code: int, said: int) -> None:
    family = Family(2)
    family.settle()
    family.parent.stop()
    family.look()
    family.kids[0].code = code
    family.kids[1].code = 0
    assert family.look() == said


def test_children_that_do_not_stop_are_killed_in_the_end() -> None:
    family = Family(2)
    family.settle()
    family.parent.stop()
    family.look()
    family.kids[0].code = 0
    assert family.look(29) is None
    assert family.kids[1].heard == [signal.SIGTERM]
    assert family.look(2) is None
    assert family.look() == 1
    assert family.kids[1].heard == [signal.SIGTERM, signal.SIGKILL]


def test_a_process_that_cannot_be_started_is_tried_again() -> None:
    tried: list[int] = []

    def spawn(place: int) -> Any:
        tried.append(place)
        raise OSError("no more processes")

    now = [0.0]
    parent = Supervisor(spawn, 1, monotonic=lambda: now[0], jitter=lambda low, high: high)
    code = None
    while code is None:
        code = parent.one_pass()
        now[0] += LONGEST_PAUSE_SECONDS
    assert (code, len(tried)) == (1, MOST_DEATHS)


def test_there_must_be_a_process() -> None:
    with pytest.raises(UsageError, match="at least one"):
        Family(0)


# Real processes -----------------------------------------------------------------------------------------------------


def living(cli: Any, name: str) -> dict[str, int]:
    """The living workers of this name, and their processes."""
    try:
        workers = cli.json("status")["workers"]
    except AssertionError:  # no tables yet
        return {}
    return {one["name"]: int(one["process"]) for one in workers if one["alive"] and one["name"].startswith(name)}


@pytest.mark.req("V7")
def test_killed_children_are_replaced_and_a_stop_ends_them_all(cli: Any, books: str) -> None:
    parent = cli.start("worker", books, "--processes", "2", "--name", "kid", "--lease", "1s")
    wait_for(lambda: sorted(living(cli, "kid")) == ["kid-1", "kid-2"])
    killed = living(cli, "kid")["kid-2"]
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: living(cli, "kid").get("kid-2", killed) != killed)
    cli("add", books, "a", "b")
    wait_for(lambda: cli.states().get("chunk") == {"done": 2})
    pids = list(living(cli, "kid").values())
    parent.send_signal(signal.SIGTERM)
    _, said = parent.communicate(timeout=30)
    assert parent.returncode == 0
    assert f"({killed}) ended with signal 9 (SIGKILL)" in said
    assert all(is_gone(pid) for pid in pids)
    assert living(cli, "kid") == {}


def test_children_stop_when_their_parent_is_gone(lite: Any, books: str) -> None:
    parent = lite.start("worker", books, "--processes", "1", "--name", "orphan")
    wait_for(lambda: living(lite, "orphan"))
    [pid] = living(lite, "orphan").values()
    parent.kill()
    wait_for(lambda: is_gone(pid))
    assert living(lite, "orphan") == {}


def test_a_file_that_does_not_import_ends_the_parent_with_4_and_one_line(
    lite: Any, write: Callable[[str, str], str], tmp_path: Path
) -> None:
    done = lite.process("worker", write("wrong.py", "1 / 0"), "--processes", "3")
    assert done.returncode == 4
    assert done.stderr.count("wrong.py, line 1: ZeroDivisionError") == 1
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("store.db*"))


def test_the_address_of_the_store_is_not_shown_to_other_users(lite: Any, books: str) -> None:
    """It may have a password in it; the arguments of a process can be read by everybody. It still counts more than the
    store that the file names."""
    named = Path(books).read_text().replace('Pipeline("books")', 'Pipeline("books", store="sqlite:///other.db")')
    Path(books).write_text(named)
    parent = lite.start("worker", books, "--processes", "1", "--name", "quiet", "--store", lite.url)
    wait_for(lambda: living(lite, "quiet"))
    [pid] = living(lite, "quiet").values()
    command = Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    assert "--name=quiet-1" in command
    assert "store.db" not in command
    assert not Path("other.db").exists()
    parent.send_signal(signal.SIGINT)
    parent.communicate(timeout=30)
    assert parent.returncode == 0


CLOSER = """
import os
from pathlib import Path
from holdfast import Pipeline

closer = Pipeline("closer")


@closer.stage()
{kind} work(item, ctx):
    if item.key == "bad" and not Path("closed").exists():
        Path("closed").touch()
        os.closerange(3, 1024)
"""


@pytest.mark.req("V7")
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_worker_whose_descriptors_a_handler_has_closed_ends_and_says_why(
    lite: Any, write: Callable[[str, str], str], kind: str
) -> None:
    closer = write("closer.py", CLOSER.format(kind=kind))
    lite("add", closer, "bad", "good")
    ended = lite.process("worker", closer, anew=True)
    assert ended.returncode == 5
    said = ended.stderr.splitlines()
    assert "lock file" in said[-1] and "closed files" in said[-1]
    assert len(said) <= 4, said


@pytest.mark.req("V7")
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_work_goes_on_in_another_process_after_a_handler_has_closed_all_descriptors(
    cli: Any, write: Callable[[str, str], str], kind: str
) -> None:
    closer = write("closer.py", CLOSER.format(kind=kind))
    cli("add", closer, "bad", *(f"good-{n}" for n in range(20)))
    parent = cli.start("worker", closer, "--processes", "1", "--lease", "1s", anew=True)
    waiting.wait_for(lambda: cli.states() == {"work": {"done": 21}}, every=0.1)
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(20) == 0


def is_gone(pid: int) -> bool:
    """No process of this number, or only its remains."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
