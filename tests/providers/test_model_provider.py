"""The judge of the other tests here: what it charges, what it writes down, and that a killed client changes nothing in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.support.model_provider.provider import ROOT, ModelProvider, address_of
from tests.support.model_provider.serving import NO_SUCH_FAULT

pytestmark = pytest.mark.req("P11")


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[ModelProvider]:
    with ModelProvider(tmp_path) as provider:
        yield provider


def ask(url: str, prompt: str, model: str = "gpt-5-mini", **headers: str) -> Any:
    """A chat completion by the standard library; the status if it is refused."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": prompt}]}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code


def test_it_charges_what_it_answers_and_nothing_else(provider: ModelProvider) -> None:
    url = provider.url("openai")
    counted = ask(url, "chapter 1", **{"Idempotency-Key": "key-1"})["usage"]
    assert ask(url, "chapter 2 [[fault:429]]") == 429
    [entry] = provider.ledger.charged()
    assert (entry.prompt, entry.idempotency_key) == ("chapter 1", "key-1")
    assert (entry.tokens_in, entry.tokens_out) == (counted["prompt_tokens"], counted["completion_tokens"])
    # A million tokens cost 0.25, from the cache 0.025, written 2.
    assert (entry.tokens_in, entry.cached, entry.tokens_out) == (49, 12, 14)
    assert provider.ledger.total() == Decimal("37.55") / 1_000_000
    assert [(entry.prompt, entry.status) for entry in provider.ledger.refused()] == [("chapter 2 [[fault:429]]", 429)]


def test_a_fault_may_be_in_the_name_of_the_model(provider: ModelProvider) -> None:
    assert ask(provider.url("openai"), "chapter 1", model="gpt-5-mini[[fault:503]]") == 503


def test_a_model_without_a_price_is_not_found(provider: ModelProvider) -> None:
    assert ask(provider.url("openai"), "chapter 1", model="gpt-0") == 404


def test_a_fault_that_the_dialect_does_not_have_is_not_passed_over(provider: ModelProvider) -> None:
    assert ask(provider.url("openai"), "chapter 1 [[fault:429x]]") == NO_SUCH_FAULT
    assert ask(provider.url("mistral"), "chapter 1 [[fault:filter]]", model="mistral-small-latest") == NO_SUCH_FAULT


def test_the_first_requests_of_a_prompt_may_fail(provider: ModelProvider) -> None:
    found = [ask(provider.url("openai"), "chapter 1 [[fault:429 first=2]]") for _ in range(3)]
    assert found[:2] == [429, 429]
    assert found[2]["choices"]


def test_orders_are_for_the_next_requests_with_these_words(provider: ModelProvider) -> None:
    provider.order("503", count=2, containing="chapter 2")
    url = provider.url("openai")
    assert ask(url, "chapter 1")["choices"]
    assert [ask(url, "chapter 2"), ask(url, "chapter 2")] == [503, 503]
    assert ask(url, "chapter 2")["choices"]


def test_a_killed_client_was_charged_and_leaves_the_provider_alone(provider: ModelProvider) -> None:
    code = "import sys; from tests.providers.test_model_provider import *; ask(address_of('openai'), sys.argv[1])"
    command = [sys.executable, "-c", code, "chapter 1 [[fault:late]]"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **provider.environment}
    client = subprocess.Popen(command, cwd=ROOT, env=environment)
    try:
        provider.ledger.await_charged("chapter 1")
        client.send_signal(signal.SIGKILL)
        assert client.wait(30) == -signal.SIGKILL
    finally:
        client.kill()
        client.wait(30)
    assert ask(provider.url("openai"), "chapter 2")["choices"]
    assert [entry.status for entry in provider.ledger.charged()] == [0, 200]


def test_a_wait_for_a_charge_that_does_not_come_ends(provider: ModelProvider) -> None:
    with pytest.raises(AssertionError, match="in vain"):
        provider.ledger.await_charged("chapter 1", timeout=0.1)


def test_workers_find_it_by_their_environment(provider: ModelProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in provider.environment.items():
        monkeypatch.setenv(name, value)
    assert address_of("gemini") == provider.url("gemini")
