"""Every answer of a provider, through the unmodified packages of openai, anthropic, google-genai, mistralai and litellm.

The judge is the ledger of a server in a process of its own: what `is_free` calls free was not charged there, and what was
charged there is never called free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pydantic
import pytest

from holdfast import ContentFiltered, InDoubt, NotSent
from holdfast.model import codec
from holdfast.providers import prepare
from holdfast.providers.headers import listening
from holdfast.providers.retry_after import used_up_for
from holdfast.providers.streams import assemble, assemble_async
from holdfast.providers.usage import usage
from holdfast.providers.verdicts import is_free, verdict
from tests.providers.rows import ROWS, Row
from tests.support.model_clients import GROUP, MODES, PATIENT_SECONDS, WAYS, Clients
from tests.support.model_provider.ledger import Entry
from tests.support.model_provider.provider import ModelProvider
from tests.support.model_provider.serving import NO_SUCH_FAULT
from tests.support.moody_server import NobodyAccepts, nobody_listens
from tests.support.waiting import wait_for

pytestmark = [GROUP, pytest.mark.req("P11")]

#: Short enough to wait for; a reply that never comes is not faster on a fast machine.
IMPATIENT_SECONDS = 0.3
CALLS = [
    (way, mode) for way, (_, _, can_stream) in WAYS.items() for mode in MODES if can_stream or "stream" not in mode
]
STREAMS = [(way, mode) for way, mode in CALLS if "stream" in mode]
_NUMBERS = count(1)


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelProvider]:
    with ModelProvider(tmp_path_factory.mktemp("provider")) as provider:
        yield provider


@pytest.fixture(scope="module")
def clients(provider: ModelProvider) -> Iterator[Clients]:
    with Clients(provider.url) as clients:
        yield clients


def question(fault: str = "") -> str:
    """A prompt that no other has."""
    return f"question {next(_NUMBERS)}?" + (f" [[fault:{fault}]]" if fault else "")


def raised(call: Callable[[], Any]) -> Exception:
    try:
        answer = call()
    except Exception as error:
        return error
    raise AssertionError(f"it answered: {answer}")


def the_entry(provider: ModelProvider, prompt: str) -> Entry:
    """The one request that the provider saw; a client that gave up may be faster than the provider."""
    [entry] = wait_for(lambda: provider.ledger.entries(prompt))
    assert entry.status != NO_SUCH_FAULT
    return entry


# Errors ---------------------------------------------------------------------------------------------------------------


def rows() -> Iterator[Any]:
    for way, mode in CALLS:
        for row in ROWS:
            if WAYS[way][0] not in row.dialects or (row.streams and "stream" not in mode):
                continue
            if way == "litellm gemini" and "stream" in mode and row.fault == "late":
                continue  # it does not heed its timeout there, and waits for the connection to break
            yield pytest.param(row, way, mode, id=f"{way}, {mode}: {row.fault}")


@pytest.mark.parametrize(("row", "way", "mode"), list(rows()))
def test_an_error_means_what_the_provider_meant(
    provider: ModelProvider, clients: Clients, row: Row, way: str, mode: str
) -> None:
    prompt = question(row.fault)
    seconds = IMPATIENT_SECONDS if row.fault == "late" else PATIENT_SECONDS
    try:
        if "stream" in mode:
            clients[way].read(prompt, mode, seconds, by=assemble, by_async=assemble_async)
        else:
            clients[way].ask(prompt, mode, seconds)
    except Exception as error:
        wrong = misread(row, error, the_entry(provider, prompt))
    else:
        wrong = "it answered"
    assert not wrong


def misread(row: Row, error: Exception, entry: Entry) -> str:
    """What is wrong with the verdict; empty if nothing is."""
    found = verdict(error)
    if type(error) is TimeoutError and found is None:
        return ""  # asyncio's own, which could be the caller's: not recognised, and a paid call stays in doubt
    if found is not None and is_free(found, error) and entry.charged:
        return f"charged, and called free: {found!r}"
    if type(found) is not row.means or is_free(found, error) != (row.means is not InDoubt):
        return f"{error!r} is taken for {found!r}"
    if row.words(entry.dialect, entry.model) not in str(found):
        return f"the provider's words are lost: {found!r}"
    pause = getattr(found, "after_seconds", None)
    if (pause is None) != (row.pause is None) or (row.pause and not row.pause[0] <= pause <= row.pause[1]):
        return f"a pause of {pause}"
    return ""


@pytest.mark.parametrize(("way", "mode"), CALLS)
def test_what_nobody_listens_to_was_not_sent(way: str, mode: str) -> None:
    address = nobody_listens()
    with Clients(lambda dialect: f"{address}/{dialect}") as clients:
        error = raised(lambda: clients[way].ask("well?", mode))
    found = verdict(error)
    assert isinstance(found, NotSent), repr(error)
    assert is_free(found, error)


@pytest.mark.parametrize(("way", "mode"), [(way, mode) for way, mode in CALLS if way in ("gemini", "mistral")])
def test_a_connection_that_is_never_accepted_was_not_sent_or_is_in_doubt(way: str, mode: str) -> None:
    """aiohttp has one time for everything, and does not say what it was spent on."""
    with NobodyAccepts() as address, Clients(lambda dialect: f"{address}/{dialect}") as clients:
        error = raised(lambda: clients[way].ask("well?", mode, IMPATIENT_SECONDS))
    found = verdict(error)
    if way == "gemini" and "async" in mode:
        assert found is None or not is_free(found, error)
    else:
        assert isinstance(found, NotSent), repr(error)


class Shape(pydantic.BaseModel):
    word: str


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("fault", "means"), [("filter", ContentFiltered), ("length", InDoubt)])
def test_an_answer_that_cannot_be_used_was_paid_for(
    provider: ModelProvider, clients: Clients, mode: str, fault: str, means: type[Exception]
) -> None:
    """Helpers that parse an answer raise after the provider has charged for it."""
    prompt = question(fault)
    asked = {"model": "gpt-5-mini", "messages": [{"role": "user", "content": prompt}], "response_format": Shape}
    parse = clients.openai(mode).chat.completions.parse
    error = raised(lambda: clients.run(parse(**asked)) if mode == "async" else parse(**asked))
    assert the_entry(provider, prompt).charged
    found = verdict(error)
    assert isinstance(found, means)
    assert not is_free(found, error)


# Answers --------------------------------------------------------------------------------------------------------------


def counts(answer: Any) -> tuple[str, int, int, int] | None:
    found = usage(answer)
    return None if found is None else (found.model, found.tokens_in, found.tokens_out, found.cached_in)


def charged(entry: Entry) -> tuple[str, int, int, int]:
    assert entry.charged
    return entry.model, entry.tokens_in, entry.tokens_out, entry.cached


@pytest.mark.req("P12")
@pytest.mark.parametrize(("way", "mode"), [(way, mode) for way, mode in CALLS if "stream" not in mode])
def test_the_usage_of_an_answer_is_what_was_charged(
    provider: ModelProvider, clients: Clients, way: str, mode: str
) -> None:
    prompt = question()
    answer = clients[way].ask(prompt, mode)
    entry = the_entry(provider, prompt)
    if way == "gemini embeddings":
        assert counts(codec.plain(answer)) is None  # it does not say
    else:
        assert counts(codec.plain(answer)) == charged(entry)


def essence(answer: Any) -> Any:
    """Without what is empty, and what belongs to the reply that carried it."""
    if isinstance(answer, dict):
        kept = {name: essence(value) for name, value in answer.items() if name != "sdk_http_response"}
        return {name: value for name, value in kept.items() if value or type(value) is int}
    return [essence(one) for one in answer] if isinstance(answer, list) else answer


def told(answer: Any, way: str) -> Any:
    """What a program reads. litellm has other fields for streams, and ids and times of its own: of it, the parts that count."""
    plain = codec.plain(answer)
    if not way.startswith("litellm"):
        return essence(plain)
    return [(one["finish_reason"], one["message"]["role"], one["message"]["content"]) for one in plain["choices"]]


@pytest.mark.req("P12")
@pytest.mark.parametrize("fault", ["", "length", "filter"])
@pytest.mark.parametrize(("way", "mode"), STREAMS)
def test_a_stream_becomes_the_answer_without_streaming(
    provider: ModelProvider, clients: Clients, way: str, mode: str, fault: str
) -> None:
    if fault == "filter" and way in ("mistral", "litellm mistral", "litellm gemini"):
        pytest.skip("Mistral has no such finish reason; litellm drops the answer of Gemini, and counts the rest again")
    prompt = question(fault)
    streamed = clients[way].read(prompt, mode, by=assemble, by_async=assemble_async)
    entry = the_entry(provider, prompt)
    whole = clients[way].ask(prompt, "async" if "async" in mode else "sync")
    assert counts(streamed) == charged(entry)
    assert told(streamed, way) == told(whole, way)


# Clients --------------------------------------------------------------------------------------------------------------


PACKAGES = ("openai", "anthropic", "gemini", "mistral", "litellm")
EACH = [(package, mode) for package in PACKAGES for mode in ("sync", "async")]


def ask(clients: Clients, client: Any, package: str, mode: str, prompt: str) -> Any:
    answer = clients.usual_call(client, package, mode, prompt)
    return clients.run(answer) if mode == "async" else answer


@pytest.mark.parametrize(("package", "mode"), EACH)
def test_clients_retry_by_themselves_unless_they_are_prepared(
    provider: ModelProvider, clients: Clients, package: str, mode: str
) -> None:
    """The reason for `prepare`: those of OpenAI, Anthropic and litellm make three requests of one call."""
    client = clients.usual(package, mode)
    tries = {}
    for name, one in {"plain": client, "prepared": prepare(client)}.items():
        for fault in ("429", "500"):
            prompt = question(f"{fault} retry-after-ms=1")
            error = raised(lambda one=one, prompt=prompt: ask(clients, one, package, mode, prompt))
            assert verdict(error) is not None
            tries[name, fault] = len(provider.ledger.entries(prompt))
    usual = 1 if package in ("gemini", "mistral") else 3
    assert tries == {("plain", "429"): usual, ("plain", "500"): usual, ("prepared", "429"): 1, ("prepared", "500"): 1}


@pytest.mark.parametrize(("package", "mode"), [one for one in EACH if one[0] in ("openai", "anthropic", "litellm")])
def test_a_refusal_after_a_retry_is_not_free(
    provider: ModelProvider, clients: Clients, package: str, mode: str
) -> None:
    """The reply to the first try was lost, and charged; the error that a program sees is that of the last one."""
    prompt = question("429 retry-after-ms=1")
    provider.order("lost", containing=prompt)
    error = raised(lambda: ask(clients, clients.usual(package, mode), package, mode, prompt))
    assert [entry.charged for entry in provider.ledger.entries(prompt)] == [True, False, False]
    found = verdict(error)
    assert found is None or not is_free(found, error)


@pytest.mark.parametrize(("package", "mode"), EACH)
def test_a_prepared_client_makes_one_request_when_the_reply_is_lost(
    provider: ModelProvider, clients: Clients, package: str, mode: str
) -> None:
    prompt = question("lost")
    client = prepare(clients.usual(package, mode))
    error = raised(lambda: ask(clients, client, package, mode, prompt))
    assert the_entry(provider, prompt).charged
    assert isinstance(verdict(error), InDoubt)


def test_the_async_client_of_gemini_calls_again_when_a_reply_is_lost_unless_it_is_prepared(
    provider: ModelProvider, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait up to ten seconds in between."""
    monkeypatch.setattr("google.genai._api_client.random.randint", lambda *_: -1)
    prompt = question("lost")
    raised(lambda: ask(clients, clients.usual("gemini", "async"), "gemini", "async", prompt))
    assert [entry.charged for entry in provider.ledger.entries(prompt)] == [True, True]


@pytest.mark.parametrize(("package", "mode"), EACH)
def test_the_headers_of_a_prepared_client_are_heard(
    provider: ModelProvider, clients: Clients, package: str, mode: str
) -> None:
    client = prepare(clients.usual(package, mode))
    with listening() as heard:
        ask(clients, client, package, mode, question("remaining-0 reset=120"))
    waits = {"openai": (120, 120), "litellm": (120, 120), "anthropic": (60, 120)}
    after = used_up_for(heard.headers)
    if package in waits:
        assert after is not None
        assert waits[package][0] <= after <= waits[package][1]
    else:
        assert after is None  # they do not say until when
        assert heard.headers


@pytest.mark.parametrize(
    ("way", "mode", "is_heard"),
    [
        (way, mode, way != "litellm gemini" and (way != "litellm mistral" or "stream" not in mode))
        for way, mode in CALLS
        if way.startswith("litellm")
    ],
)
def test_litellm_passes_on_the_headers_of_answers_that_the_guide_names(
    provider: ModelProvider, way: str, mode: str, is_heard: bool
) -> None:
    """A version of litellm that passes on more of them is to be named there."""
    with Clients(provider.url, ready=prepare) as clients, listening() as heard:
        if "stream" in mode:
            clients[way].read(question(), mode, by=assemble, by_async=assemble_async)
        else:
            clients[way].ask(question(), mode)
    assert bool(heard.headers) == is_heard
