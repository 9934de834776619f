"""Answers: frozen objects with datetimes, timedeltas and Decimals in them, one JSON form, and no millionth for a user."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast import Holdfast, UsageError, answers
from holdfast.answers import Answer, Answers, WorkerStatus, json_of
from holdfast.answers.answer import attributes
from holdfast.answers.json_of import json_names
from holdfast.cli import COMMANDS as COMMAND_NAMES
from holdfast.cli import commands
from holdfast.cli.exit_codes import SOME_FAILED
from holdfast.program_file import load
from tests.answers.conftest import SCRIPT, every_answer
from tests.answers.page import PAGE, classes, expected, written

#: No count of anything here is as large; microseconds since 1970, and numbers of workers, are larger.
LARGE = 10**12
ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")

#: By question: the command that asks it.
COMMANDS = {
    "status": ["status"],
    "items": ["items"],
    "stages": ["items", "--state", "failed", "--state", "retry_later", "--state", "done"],
    "show": ["show", SCRIPT],
    "show late": ["show", "late"],
    "why": ["why", "late"],
    "events": ["events", "--limit", "1000"],
    "count": ["events", "--count"],
    "newest events": ["events", "--newest-first", "--limit", "5"],
    "audit": ["audit"],
    "alerts": ["alerts"],
    "sources": ["sources"],
    "errors": ["errors"],
    "costs": ["costs"],
    "costs by all": ["costs", "--by", "pipeline,stage,item,resource,model,day"],
    "matrix": ["matrix", "shop"],
    "throughput": ["throughput"],
    "limits": ["limits"],
    "actions": ["actions"],
    "action": ["actions", "1"],
    "doctor": ["doctor"],
}


def parts(value: Any) -> Iterator[Any]:
    """A value with all that lies in it."""
    yield value
    if isinstance(value, Answer):
        for one in attributes(value).values():
            yield from parts(one)
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from parts(one)
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from parts(one)


def ours(value: Any) -> Any:
    """The same without what the user's own program has written."""
    if isinstance(value, dict):
        users = str(value.get("event", "")).startswith("user.")
        return {name: ours(one) for name, one in value.items() if not (users and name == "data")}
    return [ours(one) for one in value] if isinstance(value, list) else value


def test_every_answer_is_frozen_and_has_the_types_of_python_in_it(app: Holdfast) -> None:
    found = every_answer(app)
    seen = {type(one) for answer in found.values() for one in parts(answer)}
    assert {datetime, timedelta, Decimal, date} <= seen
    for question, answer in found.items():
        assert isinstance(answer, (Answer, Answers)), question
        for one in parts(answer):
            assert not isinstance(one, datetime) or one.tzinfo is UTC
            if isinstance(one, Answer):
                with pytest.raises(AttributeError, match="immutable"):
                    setattr(one, next(iter(attributes(one))), None)
    assert pickle.loads(pickle.dumps(found)) == found


def test_no_microsecond_and_no_millionth_reaches_a_user(app: Holdfast) -> None:
    for question, answer in every_answer(app).items():
        for one in parts(ours(answer.json())):
            assert not isinstance(one, int) or abs(one) < LARGE or question == "doctor", (question, one)
            names = one if isinstance(one, dict) else ()
            assert not [name for name in names if name.endswith(("_us", "_micros"))], (question, names)


def test_what_a_user_has_written_is_left_as_it_is(app: Holdfast) -> None:
    assert {event.data["due_at"] for event in app.events(event="user.weighed")} == {1_794_852_441_662_444}
    [snoozed] = app.events(event="snoozed")
    assert isinstance(snoozed.data["due_at"], datetime)
    assert ISO.fullmatch(snoozed.json()["data"]["due_at"])
    [note] = [one for one in app.history("late") if one.event == "snoozed"]
    assert note.data["due_at"] == snoozed.data["due_at"]


def said_by_both(app: Holdfast, *options: str) -> dict[str, tuple[str, Any]]:
    """By question: what the command prints, and the answer of the app, of one minute: curves begin with the present one."""
    while True:
        began = datetime.now(UTC).minute
        said = {}
        for question, command in COMMANDS.items():
            result = CliRunner().invoke(commands, [*command, *options], env={"HOLDFAST_URL": app.url, "COLUMNS": ""})
            assert result.exit_code == 0, (question, result.output)
            said[question] = result.stdout
        found = every_answer(app)
        if datetime.now(UTC).minute == began:
            return {question: (text, found[question]) for question, text in said.items()}


def test_the_json_of_a_command_is_exactly_that_of_its_answer(app: Holdfast) -> None:
    for question, (said, answer) in said_by_both(app, "--json").items():
        printed: Any = json.loads(said)
        ours_: Any = answer.json()
        if question == "doctor":
            changes = ("disk_free_bytes", "wal_bytes", "oldest_transaction_seconds", "oldest_transaction_process")
            for one in (printed, ours_):
                one["store"] = {name: value for name, value in one["store"].items() if name not in changes}
        assert printed == ours_, question
        assert json.loads(json.dumps(ours_)) == ours_, question


def test_an_answer_as_text_is_what_the_command_says(app: Holdfast) -> None:
    for question, (said, answer) in said_by_both(app).items():
        if question != "doctor":
            assert said.rstrip("\n") == str(answer), question


def test_instants_amounts_and_lengths_have_one_form(app: Holdfast) -> None:
    shown = app.show("bad")
    assert ISO.fullmatch(shown.json()["created_at"])
    [sold] = [one for one in app.show(SCRIPT).stages if one.stage == "sell"]
    assert sold.elapsed is not None and sold.json()["elapsed_seconds"] == sold.elapsed.total_seconds()


def test_a_part_is_found_by_its_name_and_one_that_is_missing_is_an_error_that_names_the_others(app: Holdfast) -> None:
    assert app.status().pipeline("shop").stage("sell").after == ("weigh",)
    assert app.show("often").stage("sell").error == "ValueError: nobody wants it"
    with pytest.raises(UsageError, match=r"there is no pipeline 'shpo'.*'shop'"):
        app.status().pipeline("shpo")
    with pytest.raises(UsageError, match=r"there is no stage 'sel'.*'sell'"):
        app.show("often").stage("sel")


def test_money_is_exact(app: Holdfast) -> None:
    found = app.costs()
    assert found.total.costs == sum(one.costs for one in found.sums) == Decimal("0.25") * 4 + Decimal("0.5") * 2
    [api] = [one for one in app.limits() if one.name == "api"]
    assert (api.spent, api.json()["spent"]) == (Decimal(2), "2")


def test_a_repr_is_short_and_no_text_is_markup_in_html(app: Holdfast) -> None:
    for question, answer in every_answer(app).items():
        assert len(repr(answer)) < 1200, (question, repr(answer))
        assert repr(answer).startswith("<"), question
        html = answer._repr_html_()
        assert html.startswith("<table>") and html.endswith("</table>")
        assert "<script" not in html, question
    assert "&lt;script&gt;" in app.show(SCRIPT)._repr_html_()
    assert "&lt;script&gt;" in app.items()._repr_html_()


def test_several_answers_are_a_tuple_that_says_when_it_is_empty(url: str) -> None:
    with Holdfast(url) as empty:
        assert empty.workers() == ()
        assert str(empty.workers()) == "No worker is alive."
        assert (str(empty.errors()), str(empty.limits())) == ("No attempt has failed.", "No stage uses a resource.")
        assert str(empty.costs()) == "Nothing was spent."
        assert repr(empty.events()) == "<Events of 0>"
        assert isinstance(empty.workers(), tuple) and empty.workers().json() == []


ODD_QUESTIONS: dict[str, Callable[[Holdfast, str], Any]] = {
    "items": lambda app, odd: app.items(key=odd),
    "items by error": lambda app, odd: app.items(error=odd),
    "show": lambda app, odd: app.show(odd),
    "why": lambda app, odd: app.why(odd, "shop"),
    "calls": lambda app, odd: app.calls(odd),
    "events": lambda app, odd: app.events(key=odd),
    "newest events": lambda app, odd: app.newest_events(key=odd),
    "audit": lambda app, odd: app.audit(by=odd),
    "plan": lambda app, odd: app.plan("shop", key=odd),
    "reprocess": lambda app, odd: app.reprocess("shop", key=odd, dry_run=True),
    "accept": lambda app, odd: app.accept("shop", stage=odd),
    "resolve": lambda app, odd: app.resolve("bad", odd, charged=0),
    "resolve_many": lambda app, odd: app.resolve_many(charged=0, memo=odd),
    "forget": lambda app, odd: app.forget(pipeline="shop", memo=odd),
    "retry": lambda app, odd: app.retry(key="bad", request=odd),
}


@pytest.mark.parametrize("odd", ["a\0b", "a\ud800b"], ids=["NUL", "a lone surrogate"])
def test_what_no_database_can_hold_is_refused_by_every_question_alike(app: Holdfast, odd: str) -> None:
    for name, ask in ODD_QUESTIONS.items():
        with pytest.raises(UsageError, match="such a character"):
            pytest.fail(f"{name} answered {ask(app, odd)!r}")


def test_a_time_to_begin_from_has_a_zone(app: Holdfast) -> None:
    [newest] = app.events(most=1)
    assert app.events(since=newest.at, most=1) == (newest,)
    assert app.events(since=newest.at + timedelta(days=1)) == ()
    for ask in (app.events, app.costs, app.errors, app.count_events):
        for wrong in (newest.at.replace(tzinfo=None), 1_794_852_441_662_444):
            with pytest.raises(UsageError, match="give a datetime with its time zone"):
                ask(since=wrong)  # type: ignore[operator]


PROGRAM = """
from holdfast import Permanent, Pipeline

books = Pipeline("books", resources={{"api": {{"budget": 10}}}})
books.source("shelf", list=["good", "bad"])


@books.stage(version="{version}", resource="api", estimate="0.4")
def read(item, ctx):
    if item.key == "bad":
        raise Permanent("no pages")
    ctx.cost("0.25")


@books.stage(after="read", resource="api", estimate="0.1")
def {second}(item, ctx):
    pass
"""


def test_the_json_of_commands_that_take_a_file_is_that_of_its_answers(url: str, tmp_path: Path) -> None:
    def ask(*command: str, code: int = 0) -> Any:
        result = CliRunner().invoke(commands, [*command, "--json"], env={"HOLDFAST_URL": url})
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    old, new = (tmp_path / name for name in ("old.py", "new.py"))
    old.write_text(PROGRAM.format(version="1", second="index"))
    new.write_text(PROGRAM.format(version="2", second="shelve"))
    [found] = ask("discover", str(old))
    assert (found["pipeline"], found["source"], found["counts"]["new"]) == ("books", "shelf", 2)
    assert found.keys() == expected(answers.SourceStatus).keys()
    assert ISO.fullmatch(found["looked_at"])
    summary = ask("run", str(old), code=SOME_FAILED)
    with load(str(old), url).open() as app:
        assert summary == app.summary().json()
    plan = ask("plan", str(new))
    with load(str(new), url).open(create=False) as app:
        [changed] = app.changes()
        assert plan == {
            "pipelines": [{"name": "books", "stages": app.plan("books").json()}],
            "total": app.plan("books").total.json(),
            "changes": [json_of(changed)],
        }
    assert (plan["total"]["sure"], plan["total"]["cost"], summary["failed"]) == (1, "0.25", 1)
    assert [(one.stage, one.cost, one.handler_time) for one in changed.added] == [("shelve", Decimal("0.1"), None)]
    assert ask("check", str(new), "--store", url)["changes"] == plan["changes"]
    with pytest.raises(AttributeError, match="immutable"):
        changed.pipeline = "other"  # type: ignore[misc]


def test_the_page_on_json_names_every_command_that_has_it() -> None:
    page = PAGE.read_text()
    named = {*re.findall(r"`holdfast ([a-z-]+)[^`]* --json`", page)}
    for row in re.findall(r"^\| (`[a-z].*?) \|", page.partition("## What changes something")[2], re.M):
        named |= {*re.findall(r"`([a-z-]+(?: check| upgrade)?)", row)}
    has_json = {
        " ".join(words)
        for words in [*([name] for name in COMMAND_NAMES), ["db", "check"], ["db", "upgrade"]]
        if "--json" in CliRunner().invoke(commands, [*words, "--help"]).output
    }
    assert has_json <= named, has_json - named


def test_the_page_on_json_names_every_part_of_every_answer() -> None:
    page = written()
    assert page.keys() == classes().keys()
    for name, one in classes().items():
        assert page[name] == expected(one), name


def test_instants_deadlines_and_lengths_are_named_alike() -> None:
    for name, one in classes().items():
        for part, kind in expected(one).items():
            if kind.startswith("instant"):
                assert part in ("at", "since", "until") or part.endswith(("_at", "_since", "_until")), (name, part)
            assert part.endswith("_seconds") == kind.startswith("seconds"), (name, part)
    assert json_names(WorkerStatus)["lease"] == "lease_seconds"


def test_answers_are_exported_by_their_package_alone() -> None:
    import holdfast

    assert not set(holdfast.__all__) & set(classes())
    assert all(hasattr(answers, name) for name in classes())
