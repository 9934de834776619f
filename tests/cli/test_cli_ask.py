"""Questions answer alike on both databases, for people and in JSON, and change nothing."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.answers import Events
from holdfast.cli import events as following
from holdfast.program_file import load
from holdfast.schema import newest
from holdfast.store import sqlite as sqlite_driver
from tests.cli.conftest import BOOKS
from tests.support.steps import ask
from tests.support.together import wait_for

UTC = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")

#: What happened in the store of `done`.
BEFORE = ["pipeline_registered", "worker_started", "failed", "worker_stopped"]


@pytest.fixture
def done(cli: Any, books: str) -> Any:
    """A store in which one item of each kind has been through all stages."""
    cli("add", books, "good", "bad", "empty")
    with Holdfast(cli.url, load(books, None).specs) as app:
        app.run()
    return cli


ASKING = [
    ["status"],
    ["items"],
    ["show", "x"],
    ["why", "x"],
    ["events"],
    ["costs"],
    ["db", "check"],
    ["doctor"],
    ["retry", "--all"],
    ["cancel", "--all"],
    ["resolve", "x", "--memo", "y", "--not-charged"],
    ["prune", "--items-older-than", "0"],
]


@pytest.mark.parametrize("command", ASKING)
def test_who_only_asks_makes_no_store(command: list[str], bare: Any, database: str, tmp_path: Path) -> None:
    result = bare(*command, code=5)
    assert result.stderr.count("\n") == 1
    assert "does not exist" in result.stderr or "no holdfast tables" in result.stderr
    assert not list(tmp_path.glob("store.db*"))
    if database == "postgres":
        with Holdfast(bare.url) as app:
            assert app.schema_version() == 0


def test_a_question_leaves_a_database_of_somebody_else_as_it_is(lite: Any, tmp_path: Path) -> None:
    import sqlite3

    with sqlite3.connect(tmp_path / "store.db") as theirs:
        theirs.execute("CREATE TABLE theirs (x)")
    lite("status", code=5)
    assert [row[0] for row in theirs.execute("SELECT name FROM sqlite_master")] == ["theirs"]
    theirs.close()


def test_status_tells_states_and_times(done: Any) -> None:
    assert done.states() == {"extract": {"done": 1, "failed": 1, "skipped": 1}, "chunk": {"done": 2}}
    [pipeline] = done.json("status")["pipelines"]
    assert pipeline["stages"][0]["timings"]["count"] == 3
    said = done("status").stdout.splitlines()
    assert said[0] == "books"
    assert said[1].split() == ["stage", "pending", "done", "skipped", "failed", "mean", "p90", "max"]
    assert said[2].split()[:5] == ["extract", "0", "1", "1", "1"]
    assert said[-1] == "No worker is alive."


def test_status_reports_a_removed_stage_that_still_holds_rows(
    cli: Any, write: Callable[[str, str], str], books: str
) -> None:
    cli("add", books, "one")
    renamed = Path(books).read_text().replace("def extract", "def read").replace('"extract"', '"read"')
    cli("add", write("later.py", renamed), "two")
    [pipeline] = cli.json("status")["pipelines"]
    assert [(stage["name"], stage["states"]) for stage in pipeline["removed"]] == [("extract", {"pending": 1})]
    said = cli("status").stdout
    assert "extract was removed and still holds 1 pending" in said
    assert "holdfast cancel --pipeline books --stage extract" in said
    assert cli.json("cancel", "--pipeline", "books", "--stage", "extract")["counts"] == {"pending": 1}


def test_status_shows_who_works(cli: Any, books: str) -> None:
    worker = cli.start("worker", books, "--name", "a [b]worker[/b]")
    wait_for(lambda: cli_knows_tables(cli) and cli.json("status")["workers"])
    [one] = cli.json("status")["workers"]
    assert (one["name"], one["alive"], one["process"]) == ("a [b]worker[/b]", True, str(worker.pid))
    assert UTC.fullmatch(one["started_at"])
    assert "a [b]worker[/b]" in cli("status").stdout


def cli_knows_tables(cli: Any) -> bool:
    from click.testing import CliRunner

    from holdfast.cli import commands

    return CliRunner().invoke(commands, ["status"], env={"HOLDFAST_URL": cli.url}).exit_code == 0


def test_items_are_listed_page_by_page(cli: Any, books: str) -> None:
    cli("add", books, *(f"book-{n}" for n in range(5)))
    first = cli.json("items", "--limit", "3")
    rest = cli.json("items", "--after", str(first[-1]["id"]))
    assert [one["key"] for one in first + rest] == [f"book-{n}" for n in range(5)]
    page = cli("items", "--limit", "3")
    assert page.stderr == f"There may be more: --after {first[-1]['id']}\n"
    assert page.stdout.splitlines()[0].split() == ["id", "pipeline", "key", "status", "updated"]


def test_items_are_chosen_by_stage_state_key_and_error(done: Any) -> None:
    def keys(*filters: str) -> list[str]:
        return [one["key"] for one in done.json("items", *filters)]

    assert keys("--state", "failed") == ["bad"]
    assert keys("--state", "done", "--stage", "chunk") == ["good", "empty"]
    assert keys("--key", "*d") == ["good", "bad"]
    assert keys("--state", "failed", "--error", "no pages") == ["bad"]
    assert keys("--state", "failed", "--error", "other") == []
    assert keys("--error", "no pages") == ["bad"]
    assert keys("--error", "no pages", "--key", "g*") == []
    assert keys("--pipeline", "books", "--key", "e????") == ["empty"]
    assert "bad has no pages" in done("items", "--state", "failed").stdout
    assert "bad has no pages" in done("items", "--error", "pages").stdout
    assert keys("--key", "good", "--key", "e*", "--key", "g*") == ["good", "empty"]
    assert keys("--state", "done", "--stage", "extract", "--key", "good", "--key", "empty") == ["good"]


def test_every_stage_of_an_item_is_on_some_page(cli: Any, write: Callable[[str, str], str]) -> None:
    """An item may be in a list several times, and a page end between two of its stages."""
    stages = "\n".join(f"@p.stage()\ndef {name}(item, ctx): ..." for name in ("a", "b", "c"))
    cli("add", write("several.py", f'from holdfast import Pipeline\np = Pipeline("p")\n{stages}\n'), "x", "y", "z")
    whole = [(one["key"], one["stage"]) for one in cli.json("items", "--state", "pending")]
    assert whole == [(key, stage) for key in "xyz" for stage in "abc"]
    for limit in range(1, 11):
        seen, after = [], "0"
        while page := cli.json("items", "--state", "pending", "--limit", str(limit), "--after", after):
            seen += [(one["key"], one["stage"]) for one in page]
            after = page[-1]["cursor"]
        assert seen == whole
    said = cli("items", "--state", "pending", "--limit", "2").stderr
    assert said == f"There may be more: --after {cli.json('items', '--key', 'x')[0]['id']}/b\n"
    assert "write it as ID or ID/STAGE" in cli("items", "--after", "b", code=2).stderr


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            ["items", "--stage", "extrakt"],
            "there is no stage 'extrakt' in this store; there are: chunk, extract (did you mean",
        ),
        (["items", "--pipeline", "bokks"], "there are: books (did you mean 'books'?)"),
        (["items", "--state", "failed", "--pipeline", "bokks"], "there are: books (did you mean 'books'?)"),
        (["retry", "--stage", "chunks"], "there are: chunk, extract (did you mean 'chunk'?)"),
        (["cancel", "--pipeline", "bokks"], "did you mean 'books'?"),
        (["events", "--event", "attempt_faild"], "did you mean 'attempt_failed'?"),
        (["events", "--event", "zzz"], "there are: accepted, action_stopped"),
        (["events", "--pipeline", "bokks"], "did you mean 'books'?"),
        (["show", "good", "--pipeline", "bokks"], "did you mean 'books'?"),
        (["why", "good", "--pipeline", "bokks"], "did you mean 'books'?"),
        (["costs", "--pipeline", "bokks"], "did you mean 'books'?"),
        (["pause", "bokks"], "did you mean 'books'?"),
        (["tune", "bokks", "rate=1/s"], "did you mean 'books'?"),
        (
            ["tune", "books", "extrct.rate=1/s"],
            "no stage 'extrct', and there is no such resource; there are: extract, chunk (",
        ),
        (["tune", "books", "rte=1/s"], "did you mean 'rate'?"),
        (["tune", "books", "extract.rte=1/s"], "did you mean 'rate'?"),
        (["statsu"], "there is no command 'statsu'; there are: run, worker, add"),
        (["statsu"], "(did you mean 'status'?)"),
        (["db", "chekc"], "there is no command 'chekc'; there are: check, grants, upgrade (did you mean 'check'?)"),
    ],
)
def test_a_mistyped_name_is_wrong_usage_with_what_there_is_and_what_is_nearest(
    done: Any, command: list[str], says: str
) -> None:
    result = done(*command, code=2)
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_a_kind_of_event_that_has_not_happened_yet_is_no_mistake(done: Any) -> None:
    assert done.json("events", "--event", "worker_died") == []
    with Holdfast(done.url, create=False) as app:
        app.store.write(lambda tx: tx.record("of_a_newer_holdfast"))
    assert len(done.json("events", "--event", "of_a_newer_holdfast")) == 1


def test_show_tells_all_about_an_item(done: Any) -> None:
    item = done.json("show", "good")
    assert (item["status"], item["stages"][0]["result"]) == ("done", {"n": 4})
    assert [one["event"] for one in item["history"]] == ["added", "completed", "completed"]
    times = [item["created_at"], item["stages"][0]["ended_at"], *(one["at"] for one in item["history"])]
    assert all(UTC.fullmatch(time) for time in times)
    said = done("show", "bad").stdout
    assert "books / bad: failed" in said
    assert "error Permanent: bad has no pages" in said
    assert "chunk: not begun" in said


def test_data_that_looks_like_times_is_left_alone(cli: Any, books: str, write: Callable[[str, str], str]) -> None:
    cli("add", books, "--from", write("items.jsonl", '{"key": "a", "updated_at": 5, "at": 1}'))
    assert cli.json("show", "a")["data"] == {"updated_at": 5, "at": 1}


def test_why_says_what_holds_an_item_up_and_what_to_do(done: Any, books: str) -> None:
    assert done.json("why", "good")["reason"] == "done"
    bad = done.json("why", "bad")
    assert (bad["reason"], bad["stage"], bad["state"]) == ("failed", "extract", "failed")
    assert "to send it back: holdfast retry --pipeline books --key bad" in done("why", "bad").stdout
    done("add", books, "new")
    assert "no living worker offers stage 'extract'" in done("why", "new").stdout


def test_the_command_that_why_suggests_is_about_that_item_alone(cli: Any, write: Callable[[str, str], str]) -> None:
    keys = ["bad*", "bad?", "bad[*]", "bad[x]", "badx", "bad it's", "bad\n$(oops)", "bad [[]"]
    films = BOOKS.replace("@books", "@films").replace('"books"', '"films"').replace("books =", "films =")
    books = write("both.py", films + BOOKS)
    with Holdfast(cli.url, (specs := load(books, None).specs)) as app:
        for spec in specs:
            app.add(spec.name, keys)
        app.run()
    for key in keys:
        command = cli.json("why", key, "--pipeline", "films")["do"].partition(": holdfast ")[2]
        words = subprocess.run(["bash", "-c", f"printf '%s\\0' {command}"], capture_output=True, check=True, text=True)
        assert cli.json(*words.stdout.split("\0")[:-1])["total"] == 1
        assert cli.json("show", key, "--pipeline", "films")["status"] == "pending"


@pytest.mark.parametrize("command", ["show", "why"])
def test_an_unknown_key_is_wrong_usage(done: Any, command: str) -> None:
    assert done(command, "nobody", code=2).stderr == "holdfast: there is no item 'nobody'\n"


def test_events_are_told_oldest_first_and_chosen_by_filter(done: Any) -> None:
    done("retry", "--key", "bad", "--reason", "pages found")
    told = done.json("events")
    assert [one["event"] for one in told] == [*BEFORE, "retried"]
    assert all(UTC.fullmatch(one["at"]) for one in told)
    assert done.json("events", "--event", "retried")[0]["data"]["reason"] == "pages found"
    assert [one["event"] for one in done.json("events", "--key", "bad")] == ["failed", "retried"]
    assert [one["event"] for one in done.json("events", "--limit", "1")] == ["retried"]
    assert done.json("events", "--since", "1h") == told
    assert done.json("events", "--since", told[-1]["at"]) == told[-1:]
    assert done.json("events", "--since", "2999-01-01") == []
    assert "--since 'soon'" in done("events", "--since", "soon", code=2).stderr
    assert "retried  books/extract  bad" in done("events").stdout


def test_events_are_counted_by_name(done: Any) -> None:
    with Holdfast(done.url) as app:
        app.event("user.checked", key="good", by="ann")
        app.event("user.checked")
    assert done.json("events", "--event", "user.checked", "--count") == [
        {"event": "user.checked", "count": 2, "more": False}
    ]
    assert done.json("events", "--event", "user.checked")[0]["data"] == {"by": "ann"}
    assert done.json("events", "--event", "user.never") == []
    assert "        2  user.checked" in done("events", "--count").stdout.splitlines()
    assert "--count goes with" in done("events", "--count", "--key", "good", code=2).stderr


def test_events_are_followed_as_they_come(done: Any) -> None:
    """In JSON each event is a line of its own, what was before first, nothing twice."""
    process = done.start("events", "--follow", "--json")
    assert process.stdout is not None
    old = [json.loads(process.stdout.readline())["event"] for _ in BEFORE]
    assert old == BEFORE
    for n in range(3):
        done("retry", "--state", "done", "--key", "good" if n else "empty", "--stage", "chunk", "--reason", str(n))
        if n < 2:
            new = json.loads(process.stdout.readline())
            assert (new["event"], new["data"]["reason"]) == ("retried", str(n))
    process.send_signal(2)
    rest, said = process.communicate(timeout=20)
    assert (process.returncode, rest, said) == (130, "", "")


def test_following_one_kind_of_event_passes_by_the_others(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it lasts, each look begins where the last ones ended."""
    monkeypatch.setattr(following, "FOLLOW_SECONDS", 0.001)
    monkeypatch.setattr(following, "STRAGGLER_SECONDS", 0.002)
    with Holdfast(url) as app:
        begun: list[int] = []
        ask = app.events

        def events(**asked: Any) -> Events:
            if asked.get("after") is not None:
                begun.append(asked["after"])
                if len(begun) == 1000:
                    app.store.write(lambda tx: tx.record("retried"))
            return ask(**asked)

        monkeypatch.setattr(app, "events", events)
        app.store.write(lambda tx: [tx.record("paused") for _ in range(50)])
        [newest] = ask(most=1)
        told = following._news(app, {"event": "retried"}, 0)
        assert next(told).id == newest.id + 1
        assert begun[0] == 0 and begun[-1] == newest.id


def test_db_check_finds_nothing_and_db_upgrade_does_nothing_twice(bare: Any) -> None:
    first = bare.json("db", "upgrade")
    assert (first["applied"][0], first["schema"]) == ("0001 engine", newest())
    assert bare.json("db", "upgrade") == {"applied": [], "schema": newest()}
    assert bare.json("db", "check") == {"wrong": [], "repaired": []}
    assert bare("db", "check").stdout == "All is well.\n"


def test_db_check_repairs_counts_that_rows_of_somebody_else_have_put_wrong(done: Any, url: str) -> None:
    """Rows that came or went without holdfast were never counted, and nothing could mend that."""
    with Holdfast(url, create=False) as app:
        delete = "DELETE FROM holdfast_outcomes WHERE item = (SELECT MIN(item) FROM holdfast_outcomes)"
        app.store.write(lambda tx: ask(tx, delete))
    wrong = done.json("db", "check", code=5)["wrong"]
    assert wrong and all("counted" in line for line in wrong)
    assert sorted(done.json("db", "check", "--repair")["repaired"]) == sorted(wrong)
    assert done("db", "check", "--repair").stdout == "All is well.\n"


def test_db_check_repairs_what_plan_is_answered_from(done: Any, url: str) -> None:
    with Holdfast(url) as app:
        app.store.write(lambda tx: tx.run_rows("add_versions", [(0, 1, "7", "", 2)]))
    wrong = "books/extract, version '7': counted 2, there are 0"
    assert done.json("db", "check", code=5) == {"wrong": [wrong], "repaired": []}
    assert done.json("db", "check", "--repair") == {"wrong": [], "repaired": [wrong]}
    assert done("db", "check", "--repair").stdout == "All is well.\n"


def test_db_check_ends_with_5_when_something_is_wrong(lite: Any, books: str, tmp_path: Path) -> None:
    import sqlite3

    lite("add", books, "one")
    with sqlite3.connect(tmp_path / "store.db") as conn:
        conn.execute("UPDATE holdfast_counts SET n = n + 1")
    conn.close()
    result = lite("db", "check", code=5)
    assert "counted 2, there are 1" in result.stdout
    assert lite.json("db", "check", code=5)["wrong"]


def test_doctor_tells_facts(cli: Any, books: str, database: str) -> None:
    cli("add", books, "one")
    facts = cli.json("doctor")
    assert facts["schema"] == newest()
    assert facts["store"]["database"] == {"sqlite": "sqlite", "postgres": "postgresql"}[database]
    assert "workers: 0 alive, 0 silent" in cli("doctor").stdout


def test_a_large_file_is_looked_through_by_db_check_and_not_by_doctor(
    lite: Any, books: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Doctor answers at once, however large the file is."""
    lite("add", books, "one")
    assert lite.json("doctor")["store"]["integrity"] == "ok"
    _damage(tmp_path / "store.db")
    assert "NULL value in holdfast_clock" in lite.json("doctor", code=5)["store"]["integrity"]
    [wrong] = lite.json("db", "check", code=5)["wrong"]
    assert wrong.startswith("the database is damaged: NULL value in holdfast_clock")
    monkeypatch.setattr(sqlite_driver, "LOOKED_THROUGH_BYTES", 0)
    assert lite.json("doctor")["store"]["integrity"] == "unchecked"
    assert "integrity: unchecked" in lite("doctor").stdout


def _damage(file: Path) -> None:
    """Put nothing where there must be something."""
    import sqlite3

    conn = sqlite3.connect(file, isolation_level=None)
    for table in ("ahead INT", "ahead INT NOT NULL"):
        conn.execute("PRAGMA writable_schema = ON")
        old = "replace(replace(sql, 'ahead INT NOT NULL', 'ahead INT'), 'ahead INT', ?)"
        conn.execute(f"UPDATE sqlite_master SET sql = {old} WHERE name = 'holdfast_clock'", (table,))
        conn.execute("PRAGMA writable_schema = RESET")
        if table == "ahead INT":
            conn.execute("INSERT INTO holdfast_clock (name, ahead) VALUES ('damaged', NULL)")
    conn.close()
