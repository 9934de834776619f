"""Workers that call models through the packages of their providers are killed at random moments; the provider's ledger, in a
process that nobody kills, is the judge."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, InDoubt, Overloaded, RateLimited
from holdfast.worker.provider_call import USUAL_TOKENS
from tests.providers.rows import ROWS
from tests.support.effort import effort
from tests.support.model_books import (
    EXPECTED,
    LIMIT,
    RESOURCES,
    STAGES,
    THOUSANDTHS,
    answer_of,
    is_limited,
    price_of,
    prompt_of,
    prompts,
)
from tests.support.model_clients import WAYS
from tests.support.model_provider.asked import PRICES
from tests.support.model_provider.ledger import Entry
from tests.support.model_provider.provider import ModelProvider
from tests.support.processes import Crew, crew_on, wait_for

#: Beside other tests, hundreds of calls through clients that take seconds to load take this long.
PATIENCE_SECONDS = effort(300, 1500)
KILLS = effort(3, 60)
#: One way for each package; litellm speaks to any provider.
PACKAGES = {
    "openai": ["openai chat"],
    "anthropic": ["anthropic"],
    "google-genai": ["gemini"],
    "mistralai": ["mistral"],
    "litellm": [way for way in WAYS if way.startswith("litellm")],
}
#: What happens to the first request of a prompt: nothing, a refusal, a doubt.
KINDS: list[tuple[type[BaseException], ...]] = [(), (RateLimited, Overloaded), (InDoubt,)]
#: So often each package meets each kind.
ROUNDS = effort(1, 24)
#: Those that the provider has charged for, without an answer that could be used.
LOST = ("502", "504", "524", "lost", "cut", "ends-early", "error-in-stream")


def faults_of(way: str, means: tuple[type[BaseException], ...], stream: bool) -> list[str]:
    """The rows of the table of verdicts after which a call is made again, without waiting: a pause is a short one."""
    dialect = WAYS[way][0]
    fitting = [row for row in ROWS if row.means in means and dialect in row.dialects and (stream or not row.streams)]
    found = [row.fault if InDoubt in means else f"{row.fault.split()[0]} retry-after=0.01" for row in fitting]
    return sorted({fault for fault in found if fault != "late"}) or [""]


def items(rng: random.Random) -> list[dict[str, Any]]:
    """Those of a package stand together: loading a package takes seconds, and a killed worker has loaded only what it used."""
    found = []
    for package in rng.sample(sorted(PACKAGES), len(PACKAGES)):
        for number, (_, means) in enumerate(product(range(ROUNDS), KINDS)):
            way, stream = rng.choice(PACKAGES[package]), rng.random() < 0.5
            fault = rng.choice(faults_of(way, means, stream))
            key = f"{package}-{number}"
            found.append({"key": key, "way": way, "stream": stream, "fault": fault, "limited": rng.random() < 0.5})
    return found


def kill_at_random(crew: Crew, provider: ModelProvider, rng: random.Random, most_apart: int) -> None:
    """After some requests, or in the middle of one: the provider tells of it before it answers."""
    for _ in range(KILLS):
        requests = len(provider.ledger.entries()) + rng.randint(1, most_apart)
        worker = crew.start(concurrency=rng.choice([1, 4]), environment=provider.environment)
        # The worker has to load the client, which takes seconds on a busy machine.
        wait_for(
            lambda n=requests, one=worker: len(provider.ledger.entries()) >= n or crew.is_done() or not one.is_alive,
            PATIENCE_SECONDS,
        )
        assert worker.is_alive, worker.said
        worker.kill()


@pytest.mark.req("P11", "P12", "V13")
@pytest.mark.fault(2)
def test_whenever_workers_are_killed_the_bill_is_what_costs_and_doubts_say(url: str, tmp_path: Path) -> None:
    """Nobody says beforehand what a call will cost: that follows from prices, from `max_tokens`, and from the stage."""
    seed = random.randrange(1_000_000)
    rng = random.Random(seed)
    asked = items(rng)
    with ModelProvider(tmp_path) as provider, crew_on(url, tmp_path, "tests.support.model_books:prompts") as crew:
        # Workers find the resource in the store.
        with Holdfast(url, [prompts.spec], resources=RESOURCES) as app:
            app.add("prompts", asked)
        # All packages are met by the kills, not only those that come first.
        kill_at_random(crew, provider, rng, most_apart=max(5, 2 * len(STAGES) * len(asked) // KILLS))
        crew.start("last", environment=provider.environment)
        crew.wait_until_done(PATIENCE_SECONDS)
        crew.stop()
        assert crew.app.check() == []
        assert set(crew.states().values()) == {"done"}, (seed, crew.all_said())
        entries = provider.ledger.entries()
        costs = doubts = lost = Decimal(0)
        for item in asked:
            for stage in STAGES:
                prompt = prompt_of(item["key"], stage, item["fault"])
                assert crew.stage(item["key"], stage).result == answer_of(item["way"], prompt).text, seed
                cost = price_of(item["way"], prompt)
                of_call = judge(crew, item, stage, cost, [entry for entry in entries if entry.prompt == prompt], seed)
                costs, doubts, lost = costs + cost, doubts + of_call[0], lost + of_call[1]
        total = crew.app.costs().total
        assert (total.costs, total.in_doubt, total.spent) == (costs, doubts, costs + doubts), seed
        assert provider.ledger.total() * THOUSANDTHS == costs + lost, seed
        assert lost <= doubts


def judge(
    crew: Crew, item: Mapping[str, Any], stage: str, cost: Decimal, asked: list[Entry], seed: int
) -> tuple[Decimal, Decimal]:
    """What is in doubt about a call, and what was charged for requests whose answer was lost."""
    about = (seed, item, stage)
    calls = [call for call in crew.app.calls(str(item["key"])) if call.stage == stage]
    states = Counter(call.state for call in calls)
    assert states["done"] == 1, about
    assert states.keys() <= {"done", "doubtful", "not_charged"}, about
    assert [call.amount for call in calls if call.state == "done"] == [cost], about
    bought = [entry.amount * THOUSANDTHS for entry in asked if entry.charged]
    # An answer that broke off is charged by half.
    assert all(amount == cost or (amount < cost and entry_is_half(asked)) for amount in bought), about
    # Every payment but the one that was recorded is a doubt, and what is said to be free was refused.
    assert 1 <= len(bought) <= 1 + states["doubtful"], about
    assert len(asked) - len(bought) <= states["not_charged"] + states["doubtful"], about
    assert len(asked) <= states.total(), about
    # A reply that got lost is a doubt, without any kill.
    if [entry for entry in asked if entry.charged and entry.fault in LOST]:
        assert len(bought) >= 2, about
    least, most = expected(item, stage)
    doubtful = [call.amount for call in calls if call.state == "doubtful"]
    # No doubt counts less than what the provider may have charged, and none more than the call allows.
    assert all(cost <= amount and least <= amount <= most for amount in doubtful), (*about, doubtful)
    return sum(doubtful, Decimal(0)), sum(bought, -cost)


def entry_is_half(asked: list[Entry]) -> bool:
    return any(entry.fault == "error-in-stream" for entry in asked)


def expected(item: Mapping[str, Any], stage: str) -> tuple[Decimal, Decimal]:
    """What a call in doubt counts with, at least and at most: the prompts are shorter than 200 tokens."""
    price = PRICES[WAYS[item["way"]][1]]
    written, read = (LIMIT if is_limited(item) else USUAL_TOKENS), 200
    least = written * price.tokens_out * THOUSANDTHS / 1_000_000
    most = least + read * price.tokens_in * THOUSANDTHS / 1_000_000
    if stage == "awaited" and not is_limited(item):
        return EXPECTED, EXPECTED
    return least, most
