"""Prices: a person's own table, then genai-prices."""

from __future__ import annotations

import builtins
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal, getcontext
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.providers import prices as prices_module
from holdfast.providers.prices import Prices
from holdfast.providers.usage import Usage
from tests.support.clients import GROUP

pytestmark = [pytest.mark.req("P2"), GROUP]

MILLION = 1_000_000
TABLE = {
    "own": {"in": "0.25", "out": "2.00", "cached": "0.025", "cache_write": "0.3125"},
    "own-*": {"in": 1, "out": Decimal(4)},
    "own-small-*": {"in": 0.1, "out": 0.4},
    "painter": {"per_call": "0.04"},
    "embedder": {"in": "0.02"},
    "both": {"in": 1, "out": 1, "per_call": "0.5"},
}


def read(table: Any = TABLE) -> Prices:
    return Prices.read(table, where="job.yaml")


@pytest.mark.parametrize(
    ("used", "price"),
    [
        (Usage("own", MILLION, MILLION), "2.25"),
        (Usage("own", MILLION, 0, cached_in=600_000, cache_write=200_000), "0.1275"),
        (Usage("own", 1, 1), "0.00000225"),
        (Usage("own-large", MILLION, MILLION, cached_in=MILLION), "5"),
        (Usage("own-small-2", MILLION, MILLION), "0.5"),
        (Usage("own-2025-08-07", MILLION, 0), "1"),
        (Usage("painter-2024-08-06", 5, 5), "0.04"),
        (Usage("some/painter", 5, 5), "0.04"),
        (Usage("embedder", MILLION), "0.02"),
        (Usage("embedder", MILLION, 1), None),
        (Usage("both", MILLION, MILLION), "2.5"),
        (Usage("stranger", 1, 1), None),
        (Usage("", 1, 1), None),
    ],
)
def test_a_table_prices_tokens_and_calls_and_the_longest_name_counts(used, price):
    assert read().price(used) == (None if price is None else Decimal(price))


def test_the_price_is_exact_whatever_the_context_of_the_thread(monkeypatch):
    monkeypatch.setattr(getcontext(), "prec", 2)
    assert read().price(Usage("own", 123_456_789, 1)) == Decimal("30.86419925")


def test_a_call_in_a_batch_costs_half():
    assert read().price(Usage("own", MILLION, MILLION), batch=True) == Decimal("1.125")


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ([], "is not a table of prices"),
        ({"m": "0.25"}, "prices of 'm': '0.25' is not a price"),
        ({"m": {}}, "prices of 'm': {} is not a price"),
        ({"m": {"input": 1}}, "prices of 'm': there is no 'input'; use in, out, cached, cache_write, per_call"),
        ({"m": {"cached": 1}}, "prices of 'm': needs 'in', 'out' or 'per_call'"),
        ({"m": {"in": "cheap"}}, "prices of 'm': in: 'cheap' is not an amount"),
        ({"m": {"in": 1, "out": -2}}, "prices of 'm': out: -2 is negative"),
        ({"m": {"out": True}}, "prices of 'm': out: True is not an amount"),
        ({"m": {"out": float("nan")}}, "prices of 'm': out: nan is not an amount"),
        ({"*m": {"in": 1}}, "'*m' is not the name of a model"),
        ({"": {"in": 1}}, "'' is not the name of a model"),
        ({5: {"in": 1}}, "5 is not the name of a model"),
    ],
)
def test_a_wrong_table_is_refused_by_the_name_of_the_key(table, said):
    with pytest.raises(UsageError) as refused:
        read(table)
    assert str(refused.value).startswith("job.yaml: ") and said in str(refused.value)


# genai-prices --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "price"),
    [
        (Usage("gpt-4o", MILLION, MILLION), "12.50"),
        (Usage("gpt-4o-2024-08-06", MILLION), "2.50"),
        (Usage("gpt-4o", MILLION, cached_in=MILLION), "1.25"),
        (Usage("openai/gpt-4o", MILLION), "2.50"),
        (Usage("claude-sonnet-4-5", 100_000, cached_in=50_000, provider="anthropic"), "0.165"),
        (Usage("text-embedding-3-small", MILLION), "0.02"),
        (Usage("gpt-99-imagined", 1, 1), None),
        (Usage("nonsense", 1, 1), None),
    ],
)
def test_a_model_that_is_in_no_table_has_the_published_price(used, price):
    assert read().price(used) == (None if price is None else Decimal(price))


def test_the_table_counts_before_the_published_price():
    assert read({"gpt-4o*": {"in": 1, "out": 1}}).price(Usage("gpt-4o", MILLION)) == 1


def test_a_published_price_for_batches_is_known_or_it_is_none():
    """genai-prices gives the full price, without a word, where it has none for batches."""
    assert read().price(Usage("gpt-4o", MILLION), batch=True) == Decimal("1.25")
    import genai_prices

    [unknown] = [
        name
        for name in ("mistral-large-latest",)
        if not genai_prices.calc_price(genai_prices.Usage(), name).model.price_variants
    ]
    assert read().price(Usage(unknown, MILLION)) is not None
    assert read().price(Usage(unknown, MILLION), batch=True) is None


def test_what_has_no_published_price_is_not_free():
    """genai-prices counts tokens without a price as nothing, without a word: an embedding that wrote tokens."""
    assert read().price(Usage("text-embedding-3-small", MILLION, 1)) is None


def test_a_price_is_that_of_the_day_of_the_call():
    """DeepSeek's price depends on the time of day."""
    used = Usage("deepseek-chat", MILLION)
    found = {read().price(used, at=datetime(2025, 6, 1, hour, tzinfo=UTC)) for hour in (6, 20)}
    assert len(found) == 2 and None not in found


def test_it_is_known_which_models_have_a_price():
    prices = read()
    assert prices.knows("own") and prices.knows("own-large") and prices.knows("gpt-4o")
    assert prices.knows("text-embedding-3-small")
    assert not prices.knows("stranger") and not prices.knows("")


def test_without_the_package_only_the_table_counts(monkeypatch):
    load = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "genai_prices":
            raise ImportError(name)
        return load(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    prices_module._package.cache_clear()
    try:
        assert read().price(Usage("gpt-4o", MILLION)) is None
        assert read().price(Usage("own", MILLION)) == Decimal("0.25")
        assert not read().knows("gpt-4o")
    finally:
        prices_module._package.cache_clear()


def test_the_package_is_loaded_only_for_a_price_that_is_in_no_table():
    program = (
        "import sys; from holdfast.providers.prices import Prices; from holdfast.providers.usage import Usage\n"
        "p = Prices.read({'m': {'in': 1}}, where='x'); p.price(Usage('m', 5)); p.knows('m')\n"
        "assert 'genai_prices' not in sys.modules\n"
        "p.price(Usage('gpt-4o', 5)); assert 'genai_prices' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
