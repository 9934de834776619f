"""A command that acts on many items is killed or interrupted in the middle: nothing is lost, and nothing is repeated."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.mother import Piped
from tests.support.processes import Crew, wait_for
from tests.web.conftest import hidden_fields

pytestmark = pytest.mark.req("J7")

ITEMS, CHUNK = 40, 7


def command(crew: Crew, folder: Path, *args: str, **order: Any) -> Piped:
    environment = {**os.environ, "HOLDFAST_URL": crew.url}
    return Piped(
        "tests.support.acting_main", [json.dumps({"args": args, "chunk": CHUNK, **order})], environment, folder=folder
    )


def sent_back(crew: Crew) -> Counter[str]:
    return Counter(event.item for event in crew.app.events(event="retried", most=10_000))


@pytest.fixture
def cancelled(crew: Crew) -> Crew:
    crew.add(f"book-{n:02}" for n in range(ITEMS))
    assert crew.app.cancel() == {"pending": ITEMS}
    return crew


@pytest.mark.fault(1)
@pytest.mark.parametrize("at", ["store.reopen:3", "store.save_action:3", "commit.before:4", "commit.after:4"])
def test_a_worker_finishes_what_a_killed_command_has_begun_and_each_item_is_acted_on_once(
    cancelled: Crew, tmp_path: Path, at: str
):
    killed = command(cancelled, tmp_path, "retry", "--all", at=at)
    killed.communicate(timeout=30)
    assert killed.returncode == -signal.SIGKILL
    [left] = cancelled.app.actions(only_open=True)
    assert 0 < sum(sent_back(cancelled).values()) < ITEMS
    assert sum(left.counts.values()) == sum(sent_back(cancelled).values())

    cancelled.start(lease=1.0)
    wait_for(lambda: not cancelled.app.actions(only_open=True))
    cancelled.wait_until_done()
    cancelled.stop()
    assert sent_back(cancelled) == {f"book-{n:02}": 1 for n in range(ITEMS)}
    assert cancelled.app.action(left.id).counts == {"cancelled": ITEMS}
    assert set(cancelled.states().values()) == {"done"}
    cancelled.judge()


@pytest.mark.fault(1)
def test_two_processes_that_go_on_with_the_same_action_take_turns(cancelled: Crew, tmp_path: Path):
    command(cancelled, tmp_path, "retry", "--all", at="commit.after:1").communicate(timeout=30)
    [left] = cancelled.app.actions(only_open=True)
    both = [command(cancelled, tmp_path, "actions", str(left.id), "--continue", "--json", chunk=1) for _ in range(2)]
    told = [json.loads(one.communicate(timeout=60)[0]) for one in both]
    assert [one["counts"] for one in told] == [{"cancelled": ITEMS}] * 2
    assert sent_back(cancelled) == {f"book-{n:02}": 1 for n in range(ITEMS)}
    assert cancelled.app.check() == []


def test_an_interrupted_command_says_that_its_action_stays_open_and_how_to_go_on(cancelled: Crew, tmp_path: Path):
    stopped = command(cancelled, tmp_path, "retry", "--all", at="store.save_action:3", signal=signal.SIGINT)
    _, said = stopped.communicate(timeout=30)
    [left] = cancelled.app.actions(only_open=True)
    assert stopped.returncode == 130
    assert f"action {left.id} stays open" in said
    assert f"holdfast actions {left.id} --continue" in said
    assert f"holdfast actions {left.id} --stop" in said
    assert cancelled.app.continue_action(left.id) == {"cancelled": ITEMS}


# By the dashboard --------------------------------------------------------------------------------------------------------


class Served:
    """A dashboard as a process of its own, and a browser of it."""

    def __init__(self, process: Piped, stack: ExitStack) -> None:
        self.process = process
        stack.callback(process.close)
        stack.callback(process.kill)
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://"), address
        self.browser = stack.enter_context(
            httpx.Client(base_url=address, headers={"origin": address.rstrip("/")}, timeout=60)
        )

    def form(self) -> dict[str, str]:
        """The confirmation of a retry of all that is cancelled."""
        page = self.browser.get("/act/retry?state=cancelled")
        assert f"<strong>{ITEMS}</strong> stages of items" in page.text, page.text
        return {**hidden_fields(page.text), "reason": "from the dashboard"}

    def token(self) -> dict[str, str]:
        return {"form_token": hidden_fields(self.browser.get("/act/delete").text)["form_token"]}

    def confirm(self, form: dict[str, str]) -> str | None:
        """Where it leads to; None if the server died before it answered."""
        try:
            answer = self.browser.post("/act/retry", data=form)
        except httpx.TransportError:
            return None
        assert answer.status_code == 303, answer.text
        return answer.headers["location"]


@pytest.fixture
def serve(cancelled: Crew, tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Starts dashboards that do actions in small chunks, and perhaps die at a point."""
    with ExitStack() as stack:
        args = ("ui", "--store", cancelled.url, "--port", "0", "--no-token")
        yield lambda **order: Served(command(cancelled, tmp_path, *args, **order), stack)


@pytest.mark.fault(1)
@pytest.mark.req("P17")
@pytest.mark.parametrize("at", ["store.reopen:3", "store.save_action:2", "store.save_action:4"])
def test_a_worker_finishes_what_a_killed_dashboard_has_begun_and_each_item_is_acted_on_once(
    cancelled: Crew, serve: Callable[..., Served], at: str
):
    killed = serve(at=at)
    killed.confirm(killed.form())
    assert killed.process.wait(60) == -signal.SIGKILL
    [left] = cancelled.app.actions(only_open=True)
    assert 0 < sum(sent_back(cancelled).values()) == sum(left.counts.values()) < ITEMS

    cancelled.start(lease=1.0)
    wait_for(lambda: not cancelled.app.actions(only_open=True))
    cancelled.wait_until_done()
    cancelled.stop()
    assert sent_back(cancelled) == {f"book-{n:02}": 1 for n in range(ITEMS)}
    done = cancelled.app.action(left.id)
    assert (done.counts, done.changed, done.reason) == ({"cancelled": ITEMS}, 0, "from the dashboard")
    assert set(cancelled.states().values()) == {"done"}
    cancelled.judge()


@pytest.mark.fault(1)
@pytest.mark.req("P17")
@pytest.mark.parametrize(("at", "chunks"), [("store.save_action:1", 0), ("store.save_action:3", 2)])
def test_a_form_that_is_sent_again_after_its_server_was_killed_acts_once(
    cancelled: Crew, serve: Callable[..., Served], at: str, chunks: int
):
    """Whether the action was begun, which whoever sent the form cannot know, or was not."""
    killed = serve(at=at)
    form = killed.form()
    killed.confirm(form)
    assert killed.process.wait(60) == -signal.SIGKILL
    assert sum(sent_back(cancelled).values()) == chunks * CHUNK
    again = serve()
    assert again.confirm({**form, **again.token()}) is not None
    wait_for(lambda: not cancelled.app.actions(only_open=True))
    [done] = [one for one in cancelled.app.actions() if one.kind == "retry"]
    assert done.counts == {"cancelled": ITEMS}
    assert sent_back(cancelled) == {f"book-{n:02}": 1 for n in range(ITEMS)}
    assert cancelled.app.check() == []
