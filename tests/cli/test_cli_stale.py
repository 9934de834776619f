"""plan, reprocess and accept: what is stale, what it would take, what they change and refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.program_file import load

Write = Callable[[str, str], str]

#: The version of `read` comes from outside; what it returns never changes.
PRESS = """
import os
from holdfast import Pipeline

press = Pipeline("press")


@press.stage(version=os.environ.get("READ_VERSION", "1"))
def read(item, ctx):
    ctx.cost(len(item.key) / 10)
    return {"key": item.key}


@press.stage(after="read")
def bind(item, ctx):
    ctx.cost(2)
    return {"bound": ctx.result("read")}
"""

TWO = (
    PRESS
    + """
post = Pipeline("post")


@post.stage(version=os.environ.get("READ_VERSION", "1"))
def send(item, ctx):
    return {}
"""
)


class Press:
    """A pipeline in a file, whose items have been through it once."""

    def __init__(self, cli: Any, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cli = cli
        self.file = file
        self.set_version = lambda version: monkeypatch.setenv("READ_VERSION", version)

    def run(self) -> None:
        with Holdfast(self.cli.url, load(self.file, None).specs) as app:
            app.run()

    def __call__(self, command: str, *args: str, code: int = 0) -> Any:
        return self.cli(command, self.file, *args, code=code)

    def json(self, command: str, *args: str) -> Any:
        return self.cli.json(command, self.file, *args)

    def spent(self) -> str:
        amount: str = self.cli.json("costs")["total"]["costs"]
        return amount


@pytest.fixture
def press(cli: Any, write: Write, monkeypatch: pytest.MonkeyPatch) -> Press:
    press = Press(cli, write("press.py", PRESS), monkeypatch)
    press("add", "a", "bb", "ccc")
    press.run()
    return press


@pytest.mark.req("J13")
def test_a_plan_says_why_how_many_and_what_it_would_cost(press: Press) -> None:
    """Three items cost 0.1, 0.2 and 0.3: 0.6 in all, give or take what single ones differ."""
    press.set_version("2")
    name, head, read, bind, total = press("plan").stdout.splitlines()
    assert name == "press"
    assert head.split() == ["stage", "why", "run", "perhaps", "cost", "perhaps", "more", "handler", "time"]
    assert read.split()[:8] == ["read", "3", "version", "3", "0", "0.60", "±", "0.14"]
    assert bind.split() == ["bind", "3", "upstream", "0", "3", "0.00", "6.00", "-"]
    assert total.startswith("total: 3 to run, perhaps 3 more; cost 0.60 ± 0.14, perhaps 6.00 more; handler time ")


@pytest.mark.req("J7", "J13")
def test_only_what_is_fast_is_planned_and_run_and_the_rest_is_told_with_the_reason(
    cli: Any, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PRESS.replace("len(item.key) / 10", "0").replace("ctx.cost(2)", "ctx.cost(2 if item.key == 'a' else 0)")
    press = Press(cli, write("fast.py", text), monkeypatch)
    press("add", "a", "bb", "ccc")
    press.run()
    press.set_version("2")
    told = press("plan", "--fast").stdout
    assert "left out: 1 at read, which may cost 2.00 in all, with what follows" in told
    assert "total: 2 to run, perhaps 2 more; cost 0.00" in told
    [pipeline] = press.json("plan", "--fast")["pipelines"]
    assert (pipeline["stages"][0]["left_out"], pipeline["stages"][0]["left_out_cost"]) == ({"cost": 1}, "2")
    assert press.json("reprocess", "--fast", "--dry-run")["left_out"] == {"press/read": {"cost": 1}}
    told = press("reprocess", "--fast").stdout
    assert "2" in told and "left out: 1 at press/read, which may cost 2.00 in all" in told
    press.run()
    assert "Nothing is stale and is fast." in press("reprocess", "--fast").stdout
    assert "1 press/read" in press("reprocess", "--stale").stdout


@pytest.mark.req("J13")
def test_a_plan_in_json_has_no_float_of_money(press: Press) -> None:
    press.set_version("2")
    answer = press.json("plan")
    [pipeline] = answer["pipelines"]
    read, bind = pipeline["stages"]
    assert (pipeline["name"], read["stage"]) == ("press", "read")
    assert (read["why"], read["sure"], read["perhaps"]) == ({"version": 3}, 3, 0)
    assert (read["cost"], read["spread"]) == ("0.6", "0.141421")
    assert (bind["why"], bind["sure"], bind["perhaps"]) == ({"upstream": 3}, 0, 3)
    assert bind["perhaps_cost"] == "6"
    assert read["handler_time_seconds"] > 0
    assert (answer["total"]["cost"], answer["total"]["perhaps_cost"]) == ("0.6", "6")


def test_a_plan_says_when_nothing_is_stale(press: Press) -> None:
    assert press("plan").stdout == "Nothing is stale.\n"
    assert press.json("plan")["pipelines"] == [{"name": "press", "stages": []}]
    assert press("reprocess", "--stale").stdout == "Nothing is stale.\n"
    assert press("accept").stdout == "Nothing is stale.\n"


def test_data_that_changed_makes_its_item_stale(press: Press, write: Write) -> None:
    press("add", "--from", write("items.jsonl", '{"key": "bb", "n": 1}'))
    [read, bind] = press.json("plan")["pipelines"][0]["stages"]
    assert (read["why"], bind["why"]) == ({"input changed": 1}, {"input changed": 1})
    assert "1 input changed" in press("plan").stdout


@pytest.mark.req("J13")
def test_a_plan_is_of_the_items_and_stages_that_are_chosen(press: Press) -> None:
    press.set_version("2")
    assert press.json("plan", "--key", "?")["total"]["cost"] == "0.1"
    assert press.json("plan", "--stage", "bind")["total"]["sure"] == 0
    assert press.json("plan", "--pipeline", "press", "--stage", "read")["total"]["sure"] == 3


@pytest.mark.req("J13")
def test_reprocess_runs_again_what_is_stale_and_an_equal_result_stops_there(press: Press) -> None:
    press.set_version("2")
    assert press.spent() == "6.6"
    assert (
        press("reprocess", "--stale", "--reason", "better eyes").stdout == "sent back by action 1: 3 (3 press/read)\n"
    )
    assert press.cli.states()["read"] == {"pending": 3}
    [one] = press.cli.json("events", "--event", "reprocessed", "--key", "a")
    assert (one["data"]["why"], one["data"]["reason"]) == ("version", "better eyes")
    press.run()
    assert press.spent() == "7.2", "reading was paid for again, binding was not"
    assert press("plan").stdout == "Nothing is stale.\n"


def test_a_dry_run_only_counts(press: Press) -> None:
    press.set_version("2")
    assert press("reprocess", "--stale", "--dry-run").stdout == "would be sent back: 3 (3 press/read)\n"
    answer = press.json("reprocess", "--key", "*", "--dry-run")
    assert answer == {"dry_run": True, "total": 3, "counts": {"press/read": 3}, "actions": [], "outdated_workers": {}}
    assert press.cli.states()["read"] == {"done": 3}


@pytest.mark.parametrize(
    ("limits", "total"),
    [
        (["--budget", "0.3"], 2),
        (["--budget", "0.299999"], 1),
        (["--budget", "0.05"], 0),
        (["--limit", "2"], 2),
        (["--limit", "1", "--budget", "100"], 1),
        (["--key", "c*"], 1),
    ],
)
def test_reprocess_keeps_within_budget_and_limit(press: Press, limits: list[str], total: int) -> None:
    press.set_version("2")
    assert press.json("reprocess", "--stale", *limits)["total"] == total
    assert press.cli.states()["read"].get("pending", 0) == total
    if not total:
        said = press("reprocess", "--stale", *limits).stdout
        assert said == "Nothing is stale, or the first item does not fit the budget.\n"


def test_with_all_what_is_not_stale_runs_again_too(press: Press) -> None:
    assert press("reprocess", "--all", "--stage", "bind").stdout == "sent back by action 1: 3 (3 press/bind)\n"
    assert press.cli.states() == {"read": {"done": 3}, "bind": {"pending": 3}}
    assert press("reprocess", "--all", "--key", "nobody").stdout == "Nothing matches.\n"


@pytest.mark.req("J13")
def test_accepted_results_count_as_todays(press: Press) -> None:
    press.set_version("2")
    assert (
        press("accept", "--key", "a", "--reason", "read it myself").stdout == "accepted by action 1: 1 (1 press/read)\n"
    )
    [one] = press.cli.json("events", "--event", "accepted")
    assert (one["item"], one["data"]["version"], one["data"]["reason"]) == ("a", "2", "read it myself")
    assert press.json("plan")["total"]["sure"] == 2
    assert press.json("accept", "--stage", "read", "--dry-run")["total"] == 2
    assert press.json("accept", "--stage", "read") == {
        "dry_run": False,
        "total": 2,
        "counts": {"press/read": 2},
        "actions": [2],
    }
    assert press("plan").stdout == "Nothing is stale.\n"


WRONG = {
    "everything": (["reprocess"], "give a filter, or --stale if that is meant, or --all"),
    "everything, as a dry run": (["reprocess", "--dry-run"], "give a filter, or --stale"),
    "everything, with a limit": (["reprocess", "--limit", "1"], "give a filter, or --stale"),
    "stale and all": (["reprocess", "--stale", "--all"], "--stale and --all exclude each other"),
    "no number": (["reprocess", "--stale", "--budget", "much"], "budget: 'much' is not an amount"),
    "a negative budget": (["reprocess", "--stale", "--budget", "-1"], "budget: '-1' is negative"),
    "no items": (["reprocess", "--stale", "--limit", "0"], "--limit"),
    "an unknown pipeline": (["plan", "--pipeline", "nobody"], "press.py has no pipeline 'nobody'; there are: press"),
    "an unknown stage": (["plan", "--stage", "nobody"], "press.py has no stage 'nobody'; there are: read, bind"),
    "an unknown stage of a pipeline": (["accept", "--pipeline", "press", "--stage", "x"], "press has no stage 'x'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_meant_is_refused(press: Press, what: str) -> None:
    press.set_version("2")
    [command, *args], said = WRONG[what]
    result = press(command, *args, code=2)
    assert said in result.stderr and result.stderr.count("\n") == 1
    assert press.cli.states() == {"read": {"done": 3}, "bind": {"done": 3}}


@pytest.mark.parametrize("command", [["plan"], ["reprocess", "--stale"], ["accept"]])
def test_nothing_is_made_where_nothing_can_be_stale(
    lite: Any, write: Write, tmp_path: Path, command: list[str]
) -> None:
    result = lite(command[0], write("press.py", PRESS), *command[1:], code=5)
    assert "does not exist" in result.stderr and result.stderr.count("\n") == 1
    assert not list(tmp_path.glob("store.db*"))


def test_all_pipelines_of_a_file_are_looked_at(lite: Any, write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    two = Press(lite, write("two.py", TWO), monkeypatch)
    two("add", "a", "--pipeline", "press")
    two("add", "x", "y", "--pipeline", "post")
    two.run()
    two.set_version("2")
    assert [(one["name"], len(one["stages"])) for one in two.json("plan")["pipelines"]] == [("press", 2), ("post", 1)]
    assert [one["name"] for one in two.json("plan", "--stage", "send")["pipelines"]] == ["post"]
    assert "say which with --pipeline" in two("reprocess", "--stale", "--limit", "1", code=2).stderr
    assert two.json("reprocess", "--stage", "send", "--limit", "1", "--dry-run")["counts"] == {"post/send": 1}
    assert two.json("accept", "--pipeline", "press")["counts"] == {"press/read": 1}
    assert "press: nothing is stale\npost\n" in two("plan").stdout
    assert two("reprocess", "--stale").stdout == "sent back by action 2: 2 (2 post/send)\n"
    assert two.json("plan")["total"]["sure"] == 0


def test_a_plan_that_looks_at_every_item_says_how_far_it_has_come(
    press: Press, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.cli.progress_line.LINE_SECONDS", 0.0)
    monkeypatch.setattr("holdfast.engine.plan_and_reprocess.few_items", lambda *_: None)
    assert press("plan").stderr == ""
    press.set_version("2")
    assert press("plan").stderr == "3 items looked at, because there are results of other versions\n"


def test_a_plan_that_cannot_be_quick_says_what_makes_it_so(press: Press, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.engine.plan_and_reprocess.few_items", lambda *_: None)
    with Holdfast(press.cli.url) as app:
        app.store.write(lambda tx: tx.run("begin_recheck", pipeline=1, generation=1))
    told = press("plan")
    assert told.stdout == "Nothing is stale.\n"
    assert "because it is not known which items have changed. `holdfast db check --repair`, once," in told.stderr
    press.cli("db", "check", "--repair")
    assert press("plan").stderr == ""
