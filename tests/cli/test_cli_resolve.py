"""A paid call in doubt: show and why tell of it, resolve settles it, and what they print works as printed."""

from __future__ import annotations

import getpass
import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.model.shell_quoting import word
from holdfast.program_file import load

Write = Callable[[str, str], str]

#: The process dies in the first paid call, after another one was recorded.
SHOP = """
import os, pathlib
from holdfast import Pipeline

shop = Pipeline("shop")
calls = pathlib.Path(__file__).with_name("calls")


@shop.stage()
def charge(item, ctx):
    price = ctx.once("price", lambda: 40, cost="0.001")
    return ctx.once("pay it", pay, price, cost="0.40", on_doubt="hold")


def pay(price):
    with calls.open("a") as out:
        out.write("call\\n")
    if calls.stat().st_size <= 5:
        os.kill(os.getpid(), 9)
    return {"paid": price}
"""

KEY = "it's a book"


@pytest.fixture
def make_doubt(cli: Any, write: Write) -> Callable[[str], Any]:
    def make(key: str) -> Any:
        """A store with one item that is on hold because a call of it is in doubt."""
        file = write("shop.py", SHOP)
        cli("add", file, "--", key)
        assert cli.process("run", file).returncode == -signal.SIGKILL
        run(cli)
        return cli

    return make


@pytest.fixture
def held(make_doubt: Callable[[str], Any]) -> Any:
    return make_doubt(KEY)


def run(cli: Any) -> None:
    with Holdfast(cli.url, load("shop.py", None).specs) as app:
        app.run()


def calls() -> int:
    return Path("calls").read_text().count("call")


def printed(text: str, command: str) -> list[str]:
    """The commands that were printed at the end of their lines, as a shell reads them."""
    found = re.findall(rf"(?m): holdfast ({command} --pipeline .*)$", text)
    return [shlex.split(one) for one in found]


@pytest.mark.req("V4")
def test_show_tells_what_is_recorded_and_what_is_in_doubt(held: Any) -> None:
    price, pay = held.json("show", KEY)["memos"]
    assert (price["name"], price["state"], price["in_doubt"], price["value"]) == ("price", "done", False, 40)
    assert price["cost"] == "0.001"
    assert (pay["stage"], pay["name"], pay["state"], pay["in_doubt"]) == ("charge", "pay it", "intended", True)
    assert (pay["cost"], pay["value"]) == (None, None)
    said = held("show", KEY).stdout
    assert re.search(r"(?m)^  charge: price, recorded 20\S+Z, cost 0.001, value 40$", said)
    assert f"idempotency key {pay['idempotency_key']}\n" in said
    assert re.search(r"(?m)^  charge: pay it, in doubt since 20\S+Z, idempotency key \w+$", said)


def test_status_and_the_end_of_a_run_tell_of_it(held: Any) -> None:
    [told] = [line for line in held("status").stdout.splitlines() if "on hold" in line and "charge has" in line]
    assert "paid calls are in doubt, and a person is to say what became of them" in told
    assert "holdfast resolve --pipeline shop --stage charge --not-charged|--charged AMOUNT" in told
    assert told.strip().removeprefix("charge") in held("run", "shop.py").stdout
    assert held.json("why", KEY)["reason"] == "in_doubt"
    held("resolve", "--pipeline", "shop", "--stage", "charge", "--not-charged")
    run(held)
    assert (held.json("show", KEY)["status"], calls()) == ("done", 2)


@pytest.mark.req("V4")
def test_what_why_prints_works_as_printed(held: Any) -> None:
    """From the question to the end: the call is made again, and once."""
    assert [memo["name"] for memo in held.json("why", KEY)["in_doubt"]] == ["pay it"]
    again, lost, value = printed(held("why", KEY).stdout, "resolve")
    assert again[-2:] == ["--not-charged", KEY] and lost[-3:] == ["--charged", "AMOUNT", KEY]
    assert value[-5:] == ["--value", "JSON", "--charged", "AMOUNT", KEY]
    said = held(*again, "--reason", "they never heard of it").stdout
    assert said.startswith(f"shop / {KEY}, stage charge: pay it will be called again\n")
    [one] = held.json("events", "--event", "resolved")
    assert (one["item"], one["data"]["memo"], one["data"]["by"]) == (KEY, "pay it", getpass.getuser())
    assert one["data"]["reason"] == "they never heard of it"
    assert held.json("why", KEY)["in_doubt"] == []
    assert printed(said, "retry") == [], "it goes on by itself"
    run(held)
    assert held.json("show", KEY)["stages"][0]["result"] == {"paid": 40}
    assert (held.json("show", KEY)["memos"], calls()) == ([], 2)
    assert "memos" not in held("show", KEY).stdout


@pytest.mark.req("V4")
def test_a_call_that_was_made_is_given_its_result(held: Any) -> None:
    answer = held.json("resolve", KEY, "--memo", "pay it", "--value", '{"paid": "by card"}')
    assert answer == {
        "pipeline": "shop",
        "key": KEY,
        "stage": "charge",
        "memo": "pay it",
        "decided": "value",
        "state": "pending",
    }
    run(held)
    assert held.json("show", KEY)["stages"][0]["result"] == {"paid": "by card"}
    assert calls() == 1


def test_what_a_call_cost_is_on_the_books(held: Any) -> None:
    before = held.json("costs")["total"]
    held("resolve", KEY, "--memo", "pay it", "--value", '"paid"', "--charged", "0.38")
    after = held.json("costs")["total"]
    assert (before["costs"], before["in_doubt"], before["spent"]) == ("0.001", "0.4", "0.401")
    assert (after["costs"], after["in_doubt"], after["spent"]) == ("0.381", "0", "0.381")


def test_null_is_a_result_too(held: Any) -> None:
    held("resolve", KEY, "--memo", "pay it", "--value", "null")
    [_, pay] = held.json("show", KEY)["memos"]
    assert (pay["state"], pay["value"], pay["in_doubt"]) == ("done", None, False)


def test_what_cannot_be_meant_is_refused(held: Any) -> None:
    wrong = {
        "give --value with what it returned, --charged with what it cost, or --not-charged": [],
        "give --value with what it returned, --charged with what it cost, or": ["--value", "1", "--not-charged"],
        "--value 'paid'": ["--value", "paid"],
        "--value '': ": ["--value", ""],
        "a text with a NUL": ["--value", '"\\u0000"'],
        "--value 'NaN'": ["--value", "NaN"],
        "nested deeper": ["--value", "[" * 200 + "]" * 200],
        "there is no pipeline": ["--pipeline", "nobody", "--not-charged"],
    }
    for said, args in wrong.items():
        result = held("resolve", KEY, "--memo", "pay it", *args, code=2)
        assert said in result.stderr and result.stderr.count("\n") == 1, (said, result.stderr)
    assert "has no memo 'x'" in held("resolve", KEY, "--memo", "x", "--not-charged", code=2).stderr
    assert "is not in doubt" in held("resolve", KEY, "--memo", "price", "--not-charged", code=2).stderr
    assert "--memo" in held("resolve", KEY, "--not-charged", code=2).stderr
    assert held.json("show", KEY)["memos"][1]["in_doubt"]


@pytest.mark.req("V12")
@pytest.mark.parametrize("key", ["-rf *", "a\x1b[2J\n$(touch oops) 'é' \\"])
def test_commands_are_printed_so_that_a_shell_takes_any_key(make_doubt: Callable[[str], Any], key: str) -> None:
    cli = make_doubt(key)
    said = cli("why", "--", key).stdout
    assert all(char.isprintable() or char == "\n" for char in said)
    [again] = re.findall(r"(?m): (holdfast resolve --pipeline .* --not-charged .*)$", said)
    script = f'holdfast() {{ "{sys.executable}" -m holdfast "$@"; }}\n{again}'
    environment = {"HOLDFAST_URL": cli.url, "PYTHONPATH": ":".join(sys.path), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(cli("why", "--json", "--", key).stdout)["in_doubt"] == []
    assert not Path("oops").exists()


def test_a_word_for_a_shell() -> None:
    assert [word(one) for one in ("plain", "two words", "it's", "")] == ["plain", "'two words'", "'it'\"'\"'s'", "''"]
    assert word("a\n'\\") == r"$'a\U0000000a\'\\'"
