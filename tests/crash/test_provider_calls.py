"""Workers that call a model through its provider's own client are killed at random moments; the provider's ledger, in a process
that nobody kills, is the judge."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest

from tests.support.effort import effort
from tests.support.model_books import MODEL, STAGES, THOUSANDTHS, price_of, prompt_of
from tests.support.model_provider.asked import Asked, answer_to
from tests.support.model_provider.ledger import Entry
from tests.support.model_provider.provider import ModelProvider
from tests.support.processes import Crew, crew_on, wait_for

PATIENCE_SECONDS = 300.0
KILLS = effort(3, 60)
#: What happens to the first request of a prompt.
FAULTS = ("", "429 retry-after=0.01", "", "500 retry-after=0.01", "lost", "cut")
ITEMS = [
    {"key": f"p{n}", "fault": FAULTS[n % len(FAULTS)], "stream": n % 4 > 1} for n in range(effort(12, 12 * KILLS // 2))
]


def kill_at_random(crew: Crew, provider: ModelProvider, rng: random.Random) -> None:
    """After some requests, or in the middle of one: the provider tells of it before it answers."""
    for _ in range(KILLS):
        requests = len(provider.ledger.entries()) + rng.randint(1, 5)
        worker = crew.start(concurrency=rng.choice([1, 4]), environment=provider.environment)
        # The worker has to load the client, which takes seconds on a busy machine.
        wait_for(lambda n=requests: len(provider.ledger.entries()) >= n or crew.is_done(), PATIENCE_SECONDS)
        worker.kill()


@pytest.mark.req("P11", "P12", "V13")
@pytest.mark.fault(2)
def test_whenever_workers_are_killed_the_bill_is_what_costs_and_doubts_say(url: str, tmp_path: Path) -> None:
    seed = random.randrange(1_000_000)
    with ModelProvider(tmp_path) as provider, crew_on(url, tmp_path, "tests.support.model_books:prompts") as crew:
        crew.add(ITEMS)
        kill_at_random(crew, provider, random.Random(seed))
        crew.start("last", environment=provider.environment)
        crew.wait_until_done(PATIENCE_SECONDS)
        crew.stop()
        assert crew.app.check() == []
        assert set(crew.states().values()) == {"done"}, (seed, crew.all_said())
        entries = provider.ledger.entries()
        costs = doubts = charged = Decimal(0)
        for item in ITEMS:
            for stage in STAGES:
                prompt = prompt_of(str(item["key"]), stage, str(item["fault"]))
                assert crew.stage(str(item["key"]), stage).result == answer_to(Asked("chat", MODEL, prompt)).text
                of_call = judge(crew, str(item["key"]), stage, prompt, entries)
                costs, doubts, charged = costs + price_of(prompt), doubts + of_call[0], charged + of_call[1]
        total = crew.app.costs().total
        assert (total.costs, total.in_doubt, total.spent) == (costs, doubts, costs + doubts), seed
        assert provider.ledger.total() * THOUSANDTHS == costs + charged, seed
        assert charged <= doubts


def judge(crew: Crew, key: str, stage: str, prompt: str, entries: list[Entry]) -> tuple[Decimal, Decimal]:
    """What is in doubt about a prompt, and what of it was charged."""
    states = Counter(call.state for call in crew.app.calls(key) if call.stage == stage)
    assert states["done"] == 1
    assert states.keys() <= {"done", "doubtful", "not_charged"}
    asked = [entry for entry in entries if entry.prompt == prompt]
    bought = [entry.amount * THOUSANDTHS for entry in asked if entry.charged]
    assert set(bought) == {price_of(prompt)}
    # Every payment but the one that was recorded is a doubt, and what is said to be free was refused.
    assert 1 <= len(bought) <= 1 + states["doubtful"], prompt
    assert len(asked) - len(bought) <= states["not_charged"] + states["doubtful"]
    assert len(asked) <= states.total()
    # A reply that got lost is a doubt, without any kill.
    if [entry for entry in asked if entry.fault in ("lost", "cut")]:
        assert len(bought) >= 2
    return states["doubtful"] * price_of(prompt), (len(bought) - 1) * price_of(prompt)
