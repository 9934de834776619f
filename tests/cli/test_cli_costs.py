"""`holdfast costs`: exact sums, by whatever one asks for, never a float."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal, localcontext
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.answers.plan import about
from holdfast.answers.text_tables import aligned, exact
from holdfast.answers.units import amount
from holdfast.cli import options
from holdfast.program_file import load
from tests.support.steps import ask

SHOP = """
from holdfast import Pipeline

shop = Pipeline("shop", resources={"scales": {}})


@shop.stage()
def weigh(item, ctx):
    ctx.cost(0.1, resource="scales", facts={"note": "[red]\\x1b[2J", "model": "s1", "tokens_in": 2})
    return {}


@shop.stage(after="weigh")
def charge(item, ctx):
    ctx.cost("1000.000001")
    return {}
"""


@pytest.fixture
def spent(cli: Any, write: Callable[[str, str], str]) -> Any:
    """A store in which three items have cost three times 1000.100001."""
    file = write("shop.py", SHOP)
    cli("add", file, "a", "b", "c\x1b[2J")
    with load(file, cli.url).open() as app:
        app.run()
    return cli


@pytest.mark.req("J10")
def test_sums_are_exact_and_the_largest_comes_first(spent: Any) -> None:
    """Ten cents three times are thirty cents, which floats do not say."""
    assert spent("costs").stdout.splitlines() == [
        "pipeline  stage          costs  payments  tokens in",
        "shop      charge  3,000.000003         3          0",
        "shop      weigh       0.300000         3          6",
        "total 3,000.300003 in 6 payments",
    ]


@pytest.mark.req("J10")
def test_json_has_amounts_as_texts_and_never_as_floats(spent: Any) -> None:
    answer = json.loads(spent("costs", "--json").stdout, parse_float=lambda text: pytest.fail(f"a float: {text}"))
    [charge, weigh], total = answer["sums"], answer["total"]
    assert (charge["pipeline"], charge["stage"], weigh["stage"]) == ("shop", "charge", "weigh")
    tokens = ("tokens_in", "tokens_out", "tokens_cached", "tokens_reasoning")
    names = ("spent", "costs", "in_doubt", "set_aside", "payments", "doubts", *tokens)
    assert [charge[name] for name in names] == ["3000.000003", "3000.000003", "0", "0", 3, 0, 0, 0, 0, 0]
    assert [weigh[name] for name in names] == ["0.3", "0.3", "0", "0", 3, 0, 6, 0, 0, 0]
    assert [total[name] for name in names] == ["3000.300003", "3000.300003", "0", "0", 6, 0, 6, 0, 0, 0]


@pytest.mark.req("P12")
def test_cached_and_reasoning_tokens_stand_beside_money_by_model(cli: Any, write: Callable[[str, str], str]) -> None:
    told = '"tokens_in": 1000, "tokens_out": 60, "tokens_cached": 900, "tokens_reasoning": 20'
    file = write("shop.py", SHOP.replace('"tokens_in": 2', told))
    cli("add", file, "a", "b")
    with load(file, cli.url).open() as app:
        app.run()
    assert cli("costs", "--by", "model").stdout.splitlines() == [
        "model         costs  payments  tokens in  tokens out  tokens cached  tokens reasoning",
        "-      2,000.000002         2          0           0              0                 0",
        "s1         0.200000         2       2000         120           1800                40",
        "total 2,000.200002 in 4 payments",
    ]
    [rest, s1] = cli.json("costs", "--by", "model")["sums"]
    assert (s1["tokens_in"], s1["tokens_out"], s1["tokens_cached"], s1["tokens_reasoning"]) == (2000, 120, 1800, 40)
    assert (rest["tokens_cached"], rest["tokens_reasoning"]) == (0, 0)
    [_, call] = sorted(cli.json("show", "a")["calls"], key=lambda one: one["tokens_in"])
    assert (call["tokens_cached"], call["tokens_reasoning"]) == (900, 20)


@pytest.mark.req("J10")
def test_sums_are_taken_by_what_is_asked_for(spent: Any) -> None:
    before = datetime.now(UTC).date()

    def sums(by: str) -> list[tuple[Any, ...]]:
        told = spent.json("costs", "--by", by)["sums"]
        return [tuple(one[name] for name in (*by.split(","), "costs")) for one in told]

    assert sums("resource") == [(None, "3000.000003"), ("scales", "0.3")]
    assert sums("model") == [(None, "3000.000003"), ("s1", "0.3")]
    assert sums("item") == [(key, "1000.100001") for key in ("a", "b", "c\x1b[2J")]
    assert sums("item,stage")[0] == ("a", "charge", "1000.000001")
    [(day, amount)] = sums("day")
    assert amount == "3000.300003"
    assert day in {str(before), str(datetime.now(UTC).date())}
    assert spent("costs", "--by", "item , resource").stdout.splitlines()[-2].split() == [
        r"c\x1b[2J",
        "scales",
        "0.100000",
        "1",
        "2",
    ]
    assert "summed by pipeline, stage, item, resource, model, day" in spent("costs", "--by", "colour", code=2).stderr
    assert "summed by" in spent("costs", "--by", ",", code=2).stderr


def test_sums_are_of_one_pipeline_and_since_some_time(spent: Any) -> None:
    assert spent.json("costs", "--pipeline", "shop", "--since", "7d")["total"]["payments"] == 6
    assert spent.json("costs", "--since", "300000d")["total"]["payments"] == 6
    assert spent.json("costs", "--since", "2999-01-01")["total"]["spent"] == "0"
    assert spent("costs", "--since", "2999-01-01").stdout == "Nothing was spent.\n"
    assert "--since 'soon'" in spent("costs", "--since", "soon", code=2).stderr
    assert (
        "there is no pipeline 'shp' in this store; there are: shop"
        in spent("costs", "--pipeline", "shp", code=2).stderr
    )


@pytest.mark.req("V13")
def test_sums_that_differ_from_the_ledger_are_a_contradiction_until_they_are_repaired(spent: Any) -> None:
    right = spent.json("costs", "--by", "resource,day")
    with Holdfast(spent.url) as app:
        for change in ("money SET amount = 7", "spent SET in_doubt = 7, amount = amount + 7"):
            app.store.write(lambda tx, change=change: ask(tx, f"UPDATE holdfast_{change} WHERE day > 0"))
    said = spent("db", "check", code=5).stdout.splitlines()
    [day] = {one["day"] for one in right["sums"]}
    assert f"budget of resource 'scales' on {day}: in doubt 0.000007, the ledger says 0.00" in said
    assert f"costs of shop/charge on {day}: costs 0.000007, the ledger says 3,000.000003" in said
    assert said[-1] == "3 contradictions"
    repaired = spent.json("db", "check", "--repair")
    assert repaired == {"wrong": [], "repaired": sorted(said[:-1], key=repaired["repaired"].index)}
    assert spent("db", "check", "--repair").stdout == "All is well.\n"
    assert spent.json("costs", "--by", "resource,day") == right
    [event] = spent.json("events", "--event", "sums_repaired")
    assert sorted(event["data"]["found"]) == sorted(said[:-1]) and event["data"]["by"] == options.user()


def test_what_was_repaired_is_said(spent: Any) -> None:
    with Holdfast(spent.url) as app:
        app.store.write(lambda tx: ask(tx, "DELETE FROM holdfast_spent"))
    [line, last] = spent("db", "check", "--repair").stdout.splitlines()
    assert line.startswith("repaired: budget of resource 'scales' on ") and last == "All is well."


@pytest.mark.req("J9")
def test_an_item_tells_its_payments_as_people_write_them(spent: Any) -> None:
    told = spent.json("show", "a")
    assert sorted(one["amount"] for one in told["calls"]) == ["0.1", "1000.000001"]
    assert [one["amount"] for one in told["history"] if one["event"] == "cost"] == ["0.1", "1000.000001"]
    said = spent("show", "a").stdout
    assert r"note=[red]\x1b[2J" in said and "weigh: reported by the handler, 0.1 done" in said
    assert "\x1b" not in said
    [registered] = spent.json("events", "--event", "pipeline_registered")
    assert registered["amount"] is None


def test_amounts_are_written_with_every_digit_and_no_more() -> None:
    assert [exact(amount(one)) for one in (0, 1, 400_000, 10**8, 2**62)] == [
        "0",
        "0.000001",
        "0.4",
        "100",
        "4611686018427.387904",
    ]
    assert aligned([amount(10**9), amount(1_250_000)]) == ["1,000.00", "1.25"]
    assert aligned([amount(0), amount(1)]) == ["0.000000", "0.000001"]
    with localcontext(prec=3):
        assert exact(amount(1_234_567_890)) == "1234.56789", "whatever the caller's decimal context is"


def test_a_forecast_has_two_digits_of_uncertainty() -> None:
    assert about(Decimal(400), Decimal(0)) == "400.00"
    assert about(Decimal(400), Decimal("12.345679")) == "400.00 ± 12.00"
    assert about(Decimal(400), Decimal("0.0000004").quantize(Decimal("0.000001"))) == "400.00"
    assert about(Decimal("400.123456"), Decimal("0.087654")) == "400.123456 ± 0.088"
