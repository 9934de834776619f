"""Alerts reach whom they are meant for, whatever the address does, and keep no work waiting."""

from __future__ import annotations

import base64
import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Item, Permanent, Pipeline
from holdfast.app import Holdfast
from holdfast.engine import alert_rules, reap, workers
from holdfast.engine.events import events
from holdfast.engine.workers import Identity
from holdfast.errors import DefinitionError, UsageError
from holdfast.model.alert import AlertRule
from holdfast.model.backoff import Backoff
from holdfast.model.log_lines import CleanRecords
from holdfast.model.redact import forget_secrets
from holdfast.program_file import load
from holdfast.runtime import process_identity as machine
from holdfast.runtime.services import ServiceThread
from holdfast.store import Store, open_store
from holdfast.store.sqlite_files import file_of
from holdfast.store.store import new_identity
from holdfast.worker.background import alerts as alerting
from holdfast.worker.background import delivery as telling
from holdfast.worker.background.alerts import Alerts
from tests.support.bench import Bench
from tests.support.hook_server import HookServer
from tests.support.mother import Forked
from tests.support.processes import wait_for
from tests.support.slowness import slowness

pytestmark = pytest.mark.req("D11")

SECRET = "T0P-S3CRET-PATH"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Short waits; and what one test must not show is not remembered by the next."""
    monkeypatch.setattr(alert_rules, "BACKOFF", Backoff(first_seconds=0.02, factor=1.5, most_seconds=0.2))
    monkeypatch.setattr(telling, "WEBHOOK_SECONDS", 0.5)
    monkeypatch.setattr(telling, "COMMAND_SECONDS", 1.0)
    monkeypatch.setattr(telling, "MARGIN_SECONDS", 0.5)
    yield
    forget_secrets()


@pytest.fixture
def hook() -> Iterator[HookServer]:
    with HookServer() as hook:
        yield hook


class Desk:
    """A store with one worker, and alerting that vouches with it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.store = open_store(url)
        self.store.upgrade()
        self._started: list[ServiceThread] = []
        self._stores: list[Store] = []
        self.who = self.join("desk")

    def join(self, name: str) -> Identity:
        who = Identity(new_identity(), name, machine.this_host(), machine.this_process(), 60_000_000)
        self.store.write(lambda tx: workers.join(tx, who, {}, {}))
        return who

    def start(self, *rules: AlertRule, who: Identity | None = None) -> ServiceThread:
        """As a worker runs it."""
        # From here on the rules count.
        self.store.write(lambda tx: alert_rules.watch_events(tx, rules))
        number = (who or self.who).id
        found = ServiceThread([Alerts(self.store.another(), rules, lambda: number, 0.02)])
        found.start()
        self._started.append(found)
        return found

    def idle(self, *rules: AlertRule, who: Identity | None = None) -> Alerts:
        """Not started: its passes are made by the test."""
        number = (who or self.who).id
        store = self.store.another()
        self._stores.append(store)
        return Alerts(store, rules, lambda: number)

    def happen(self, event: str = "worker_died", n: int = 1, **facts: Any) -> None:
        def record(tx: Any) -> None:
            for _ in range(n):
                tx.record(event, **facts)

        self.store.write(record)

    def events(self, event: str) -> list[dict[str, Any]]:
        return [one["data"] for one in self.store.read(lambda tx: events(tx, event=event, after=0, most=1000))]

    def deliveries(self) -> list[tuple[Any, ...]]:
        def read(tx: Any) -> list[tuple[Any, ...]]:
            text = "SELECT alert, attempts, worker, error FROM holdfast_deliveries ORDER BY id"
            return [tuple(row) for row in tx.store.driver.run(tx.store.driver.dialect.render(text, text), {})]

        return self.store.read(read)

    def close(self) -> None:
        for one in self._started:
            end(one)
        for store in self._stores:
            store.close()
        self.store.close()


def end(thread: ServiceThread) -> None:
    """As a worker whose work is over."""
    thread.finish()
    thread.join()


@pytest.fixture
def desk(url: str) -> Iterator[Desk]:
    desk = Desk(url)
    yield desk
    desk.close()


def rule(name: str = "a", **given: Any) -> AlertRule:
    return AlertRule.read(name, {"event": "worker_died", "every": "1h", **given})


def told(desk: Desk, n: int = 1) -> Callable[[], bool]:
    return lambda: len(desk.events("alert_told")) == n


# A call to an address -------------------------------------------------------------------------------------------------


def test_an_alert_is_sent_once_with_what_happened(desk: Desk, hook: HookServer):
    desk.start(rule(webhook=f"{hook.url}/hook", headers={"X-Key": "abc"}, count=2))
    desk.happen(n=2, why="its heartbeat stopped")
    wait_for(told(desk))
    [call] = hook.calls
    assert call.path == "/hook"
    assert (call.headers["Content-Type"], call.headers["X-Key"]) == ("application/json", "abc")
    assert (call.body["alert"], call.body["event"], call.body["count"]) == ("a", "worker_died", 2)
    assert call.body["examples"][0]["error"] == "its heartbeat stopped"
    assert "2 × worker_died" in call.body["text"]
    assert desk.deliveries() == []
    desk.happen(n=5)
    desk.happen("something_else")
    time.sleep(0.2)
    assert len(hook.calls) == 1


def test_an_address_that_fails_at_first_is_told_in_the_end_and_can_tell_that_it_is_the_same(
    desk: Desk, hook: HookServer
):
    hook.answers = [500, 503, 404, 200]
    desk.start(rule(webhook=hook.url))
    desk.happen()
    wait_for(told(desk))
    assert [call.answer for call in hook.calls] == [500, 503, 404, 200]
    assert len({call.headers["Idempotency-Key"] for call in hook.calls}) == 1
    assert {call.body["delivery"] for call in hook.calls} == {hook.calls[0].body["delivery"]}
    assert [one["attempt"] for one in desk.events("alert_told")] == [4]
    assert desk.deliveries() == []


def test_an_address_that_never_answers_well_is_given_up_and_an_event_says_so(desk: Desk, hook: HookServer):
    desk.start(rule(webhook=f"{hook.url}/{SECRET}/500"))
    desk.happen()
    wait_for(lambda: desk.events("alert_given_up"))
    [event] = desk.events("alert_given_up")
    assert (event["attempts"], event["error"], event["by"]) == (10, "the address answered 500", "webhook")
    assert len(hook.calls) == 10
    assert desk.deliveries() == []


def test_an_address_that_hangs_keeps_nobody_waiting_and_is_tried_again(desk: Desk, hook: HookServer):
    hook.answers = ["hang", "hang", 200]
    desk.start(rule("slow", webhook=f"{hook.url}/x"), rule("quick", webhook=f"{hook.url}/200"))
    desk.happen()
    wait_for(lambda: hook.to("/x") and hook.to("/200"))
    wait_for(lambda: [one["alert"] for one in desk.events("alert_told")][:1] == ["quick"])
    wait_for(told(desk, 2))
    assert [call.answer for call in hook.to("/x")] == ["hang", "hang", 200]


def test_an_answer_that_trickles_in_for_ever_comes_to_an_end(desk: Desk, hook: HookServer):
    desk.start(rule(webhook=f"{hook.url}/trickle"))
    desk.happen()
    wait_for(lambda: any(error for *_, error in desk.deliveries()))
    assert hook.calls


def test_a_pass_returns_at_once_whatever_the_address_does(desk: Desk, hook: HookServer):
    mine = desk.idle(rule(webhook=f"{hook.url}/hang"), rule("b", webhook=f"{hook.url}/trickle"))
    mine.one_pass()
    desk.happen()
    began = time.monotonic()
    mine.one_pass()
    mine.one_pass()
    assert time.monotonic() - began < 0.4 * slowness()
    wait_for(lambda: mine.one_pass() or any(error for *_, error in desk.deliveries()))


def test_a_call_is_not_sent_on_to_another_address(desk: Desk, hook: HookServer):
    """It would arrive there as a call without a body, and be lost."""
    desk.start(rule(webhook=f"{hook.url}/302"))
    desk.happen()
    wait_for(lambda: any(error == "the address answered 302" for *_, error in desk.deliveries()))
    assert hook.to("/elsewhere") == []


def test_nobody_listens(desk: Desk):
    with HookServer() as gone:
        address = gone.url
    desk.start(rule(webhook=f"{address}/{SECRET}"))
    desk.happen()
    wait_for(lambda: any(error for *_, error in desk.deliveries()))
    [(*_, error)] = desk.deliveries()
    assert error == "the address cannot be reached: Connection refused"


def test_a_name_and_a_password_in_the_address_are_sent_as_they_should_be(desk: Desk, hook: HookServer):
    desk.start(rule(webhook=hook.url.replace("//", "//me:hunter%2022@") + "/x"))
    desk.happen()
    wait_for(told(desk))
    assert base64.b64decode(hook.calls[0].headers["Authorization"].partition(" ")[2]) == b"me:hunter 22"


@pytest.mark.fault(82)
def test_addresses_and_headers_are_in_no_event_no_table_and_no_log(desk: Desk, hook: HookServer, caplog: Any):
    caplog.handler.addFilter(found := CleanRecords())
    caplog.set_level(logging.DEBUG)
    headers = {"Authorization": f"Bearer {SECRET}-2"}
    with HookServer() as gone:
        address = gone.url
    try:
        desk.start(
            rule("refused", webhook=f"{address}/{SECRET}"),
            rule("fails", webhook=f"{hook.url}/{SECRET}/500", headers=headers),
            rule("shouts", command=["sh", "-c", f"echo {hook.url}/{SECRET}/500 >&2; exit 3"]),
        )
        desk.happen()
        wait_for(lambda: len(desk.events("alert_given_up")) == 3)
    finally:
        caplog.handler.removeFilter(found)
    with Holdfast(desk.url) as app:
        kept = json.dumps(app.events(most=1000).json())
    assert SECRET not in kept + caplog.text
    assert "exit code 3: ***" in kept


# A command, a line in the log -----------------------------------------------------------------------------------------


def test_a_command_gets_the_body_on_stdin(desk: Desk, tmp_path: Path):
    desk.start(rule(command=["sh", "-c", f"cat > {tmp_path}/told"]))
    desk.happen(why="so")
    wait_for(told(desk))
    assert json.loads((tmp_path / "told").read_text())["examples"][0]["error"] == "so"


def test_a_command_that_fails_says_why_and_is_tried_again(desk: Desk, tmp_path: Path):
    desk.start(rule(command=["sh", "-c", f"test -e {tmp_path}/ready || {{ echo no such list >&2; exit 4; }}"]))
    desk.happen()
    wait_for(lambda: any("exit code 4: no such list" in (error or "") for *_, error in desk.deliveries()))
    (tmp_path / "ready").touch()
    wait_for(told(desk))


def test_a_command_that_does_not_exist_is_told_as_that(desk: Desk):
    desk.start(rule(command=["no-such-command-anywhere"]))
    desk.happen()
    wait_for(lambda: any("No such file" in (error or "") for *_, error in desk.deliveries()))


def test_a_command_that_hangs_is_killed_with_all_that_it_started(desk: Desk, tmp_path: Path):
    script = f"sleep 300 & echo $! >> {tmp_path}/pids; echo $$ >> {tmp_path}/pids; wait"
    desk.start(rule(command=["sh", "-c", script]))
    desk.happen()
    wait_for(lambda: any("did not end within" in (error or "") for *_, error in desk.deliveries()))
    first = [int(line) for line in (tmp_path / "pids").read_text().split()[:2]]
    wait_for(lambda: not any(map(is_running, first)))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_command_that_reads_nothing_is_as_good_as_any(desk: Desk):
    desk.start(rule(command=["true"]))
    desk.happen(why="x" * 400)
    wait_for(told(desk))


def test_a_line_in_the_log(desk: Desk, caplog: pytest.LogCaptureFixture):
    desk.start(rule("deaths", log=True))
    desk.happen(why="its heartbeat stopped")
    wait_for(told(desk))
    assert "alert deaths: worker_died: its heartbeat stopped" in caplog.text


def test_each_way_is_told_once(desk: Desk, hook: HookServer, caplog: pytest.LogCaptureFixture):
    desk.start(rule(webhook=f"{hook.url}/x", command=["true"], log=True))
    desk.happen()
    wait_for(told(desk, 3))
    assert sorted(one["by"] for one in desk.events("alert_told")) == ["command", "log", "webhook"]
    assert len(hook.calls) == 1


# Beside the work ------------------------------------------------------------------------------------------------------


def test_work_goes_on_while_every_address_hangs(run: Bench, desk: Desk, hook: HookServer):
    pipeline = Pipeline("p")

    @pipeline.stage(max_attempts=1)
    def work(item: Item, ctx: Context) -> Any:
        if item.key == "bad":
            raise ValueError("boom")
        return {}

    desk.start(*(rule(f"r{n}", event="exhausted", webhook=f"{hook.url}/hang") for n in range(10)))
    ran = run(pipeline, ["bad", *(f"k{n}" for n in range(200))])
    assert ran.states("work") == {"done": 200, "exhausted": 1}
    wait_for(lambda: hook.calls)


def test_more_alerts_than_can_be_told_at_a_time_are_all_told(desk: Desk, hook: HookServer, monkeypatch: Any):
    monkeypatch.setattr(alerting, "MOST_AT_ONCE", 3)
    desk.start(*(rule(f"r{n}", webhook=f"{hook.url}/{'hang' if n < 2 else 'x'}") for n in range(12)))
    desk.happen()
    wait_for(lambda: len(hook.to("/x")) == 10)
    assert {call.body["alert"] for call in hook.to("/x")} == {f"r{n}" for n in range(2, 12)}


def test_a_stop_waits_for_an_address_as_long_as_a_request_may_take_and_no_longer(
    desk: Desk, hook: HookServer, monkeypatch: Any
):
    monkeypatch.setattr(alerting, "LAST_PASS_SECONDS", 0.1)
    end(desk_with_a_call_that_hangs(desk, hook))
    [(_, attempts, worker, error)] = desk.deliveries()
    assert (attempts, worker, error) == (1, None, "no answer within 0 s")


def test_a_second_stop_waits_for_no_address(desk: Desk, hook: HookServer, monkeypatch: Any):
    monkeypatch.setattr(telling, "WEBHOOK_SECONDS", 600.0)
    mine = desk_with_a_call_that_hangs(desk, hook)
    stops = iter([False, False])
    mine.finish()
    mine.join(lambda: next(stops, True))
    # And not, after ten minutes, that there was no answer.
    [(_, attempts, worker, error)] = desk.deliveries()
    assert (attempts, worker, error) == (1, None, "its worker ended before it was delivered")


def desk_with_a_call_that_hangs(desk: Desk, hook: HookServer) -> ServiceThread:
    mine = desk.start(rule(webhook=f"{hook.url}/hang"))
    desk.happen()
    wait_for(lambda: hook.calls)
    return mine


def test_who_stops_in_a_hurry_starts_no_delivery(desk: Desk, hook: HookServer):
    mine = desk.idle(rule(webhook=f"{hook.url}/x"))
    mine.one_pass()
    desk.happen()
    mine.hurry()
    mine.last_pass()
    assert hook.calls == desk.events("alert_told") == []


def test_an_address_that_is_slower_than_the_end_of_a_run_is_told_once_over_all_runs(
    desk: Desk, hook: HookServer, monkeypatch: Any
):
    monkeypatch.setattr(telling, "WEBHOOK_SECONDS", 600.0)
    monkeypatch.setattr(alerting, "LAST_PASS_SECONDS", 0.1)
    hook.answers = ["slow"]
    for _ in range(3):
        mine = desk.start(rule(webhook=f"{hook.url}/x"))
        desk.happen()
        end(mine)
    assert len(hook.calls) == len(desk.events("alert_told")) == 1
    assert desk.deliveries() == []


def test_a_delivery_that_ends_after_the_last_look_counts_as_it_ended(desk: Desk, hook: HookServer, monkeypatch: Any):
    monkeypatch.setattr(alerting, "LAST_PASS_SECONDS", 0.0)
    mine = desk.idle(rule(log=True))
    mine.one_pass()
    desk.happen()
    look = mine._last_look

    def look_and_linger(**given: Any) -> None:
        look(**given)
        wait_for(lambda: all(one._ended.is_set() for one in mine._under_way))

    monkeypatch.setattr(mine, "_last_look", look_and_linger)
    mine.last_pass()
    assert len(desk.events("alert_told")) == 1
    assert desk.deliveries() == []


def test_what_happens_last_is_told_and_written_down_before_a_worker_ends(desk: Desk, hook: HookServer):
    mine = desk.start(rule(webhook=f"{hook.url}/x"))
    mine._stopped.set()
    desk.happen()
    end(mine)
    assert len(hook.calls) == 1
    assert len(desk.events("alert_told")) == 1
    assert desk.deliveries() == []


def test_a_worker_whose_work_is_over_before_its_first_pass_tells_all_the_same(desk: Desk, hook: HookServer):
    mine = rule(webhook=f"{hook.url}/x")
    desk.idle(mine).one_pass()
    desk.happen()
    end(desk.start(mine))
    assert len(desk.events("alert_told")) == 1


def test_run_after_run_an_alert_is_told_once_in_its_period(desk: Desk, hook: HookServer):
    for _ in range(5):
        mine = desk.start(rule(webhook=f"{hook.url}/x"))
        desk.happen()
        end(mine)
    assert len(hook.calls) == len(desk.events("alert_told")) == 1


def test_what_could_not_be_told_before_the_end_has_failed_and_comes_again_with_the_same_number(
    desk: Desk, hook: HookServer, monkeypatch: Any
):
    monkeypatch.setattr(telling, "WEBHOOK_SECONDS", 600.0)
    hook.answers = ["hang", 200]
    mine = desk.start(rule(webhook=f"{hook.url}/x"))
    desk.happen()
    wait_for(lambda: hook.calls)
    mine.finish()
    mine.join(lambda: True)
    [(_, attempts, worker, error)] = desk.deliveries()
    assert (attempts, worker, error) == (1, None, "its worker ended before it was delivered")
    desk.start(rule(webhook=f"{hook.url}/x"))
    wait_for(told(desk))
    first, second = hook.calls
    assert first.body["delivery"] == second.body["delivery"]


def test_a_stop_ends_a_command_that_is_running(desk: Desk, tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr(telling, "COMMAND_SECONDS", 60.0)
    monkeypatch.setattr(alerting, "LAST_PASS_SECONDS", 0.2)
    script = f"cd {tmp_path}; echo $$ > new; mv new pid; sleep 300"
    mine = desk.start(rule(command=["sh", "-c", script]))
    desk.happen()
    wait_for(lambda: (tmp_path / "pid").exists())
    end(mine)
    wait_for(lambda: not is_running(int((tmp_path / "pid").read_text())))


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_store_that_is_away_for_a_while_loses_no_alert(desk: Desk, hook: HookServer, caplog: Any, monkeypatch: Any):
    monkeypatch.setattr(alerting, "PATIENCE_SECONDS", 0.2)
    desk.start(rule(webhook=f"{hook.url}/x"))
    desk.happen()
    with open(f"{file_of(desk.url)}-writer", "rb+") as queue:
        fcntl.flock(queue, fcntl.LOCK_EX)
        time.sleep(0.5)
    wait_for(told(desk))
    assert len(hook.calls) >= 1
    assert "stumbled" not in caplog.text


# Several workers ------------------------------------------------------------------------------------------------------


def test_several_workers_tell_each_alert_once(desk: Desk, hook: HookServer):
    mine = rule(webhook=f"{hook.url}/x", every="0.3s", count=3)
    for name in ("one", "two", "three"):
        desk.start(mine, who=desk.join(name))
    desk.happen(n=3)
    wait_for(told(desk))
    time.sleep(0.3)
    desk.happen(n=4)
    wait_for(told(desk, 2))
    assert [call.body["count"] for call in hook.calls] == [3, 4]


def test_what_a_killed_worker_was_telling_is_told_by_another(desk: Desk, hook: HookServer):
    hook.answers = ["hang", 200]
    given = {"event": "worker_died", "webhook": f"{hook.url}/x", "every": "1h"}
    mine = rule(webhook=f"{hook.url}/x")
    desk.idle(mine).one_pass()
    desk.happen()
    process = Forked("tests.support.alerting_main", [desk.url, "dies", json.dumps(given)], os.environ)
    try:
        wait_for(lambda: hook.calls)
        other = desk.idle(mine)
        other.one_pass()
        assert len(hook.calls) == 1 and other._under_way == []
    finally:
        process.kill()
        process.wait(20)
    desk.store.write(lambda tx: reap.remove_ended(tx, machine.this_host(), desk.who.id, machine.is_alive))
    desk.start(mine)
    wait_for(told(desk))
    assert [(call.answer, call.body["delivery"]) for call in hook.calls] == [
        ("hang", hook.calls[0].body["delivery"]),
        (200, hook.calls[0].body["delivery"]),
    ]


# Declared in Python -------------------------------------------------------------------------------------------------------


def failing(url: str, hook: HookServer) -> Pipeline:
    pipeline = Pipeline(
        "p", store=url, alerts={"failures": {"event": "failed", "webhook": f"{hook.url}/p", "every": "1h"}}
    )

    @pipeline.stage()
    def work(item: Item, ctx: Context) -> None:
        raise Permanent("no")

    return pipeline


def test_a_pipeline_notifies_by_its_own_rules(url: str, hook: HookServer):
    pipeline = failing(url, hook)
    pipeline.add(["x"])
    pipeline.run()
    assert [(call.path, call.body["alert"]) for call in hook.calls] == [("/p", "failures")]


def test_an_app_notifies_for_all_its_pipelines_and_a_later_rule_replaces_one_of_the_same_name(
    url: str, hook: HookServer
):
    pipeline = failing(url, hook)
    with Holdfast(url, [pipeline.spec], alerts=pipeline.alerts) as app:
        app.alerts({"failures": {"event": "failed", "webhook": f"{hook.url}/app"}})
        app.add("p", ["x"])
        app.run()
    assert [call.path for call in hook.calls] == ["/app"]


def test_pipelines_of_a_file_share_their_rules_and_may_not_contradict_each_other(
    url: str, hook: HookServer, tmp_path: Path
):
    file = tmp_path / "two.py"
    text = """from holdfast import Pipeline
one = Pipeline("one", alerts={"a": {"event": "failed", "log": True}})
two = Pipeline("two", alerts={"a": {"event": "failed", "log": True}, "b": {"event": "worker_died", "log": True}})
for pipeline in (one, two):
    pipeline.stage(name="work")(lambda item, ctx: None)
"""
    file.write_text(text)
    assert [rule.name for rule in load(str(file), url).alerts] == ["a", "b"]
    other = tmp_path / "three.py"
    other.write_text(text.replace('"failed", "log": True}})', '"exhausted", "log": True}})'))
    with pytest.raises(DefinitionError, match=r"three.py give alert 'a' different rules: choose one"):
        load(str(other), url)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], r"pipeline 'p': alerts: it is not a mapping of names to rules"),
        (
            {"a": {"event": "faild", "log": True}},
            r"alerts: a: event: 'faild' is unknown; .* \(did you mean 'failed'\?\)",
        ),
        ({"a": {"event": "failed"}}, r"pipeline 'p': alerts: a: it notifies nobody"),
    ],
)
def test_a_rule_that_cannot_work_is_refused_where_it_is_written(given: Any, said: str):
    with pytest.raises(UsageError, match=said):
        Pipeline("p", alerts=given)
