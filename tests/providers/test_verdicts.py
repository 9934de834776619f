"""Every row of the table of verdicts, with the exceptions that the providers' own packages raise.

The packages are real; their HTTP clients answer from memory. What is sent and lost on a real network is in
test_http_clients.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.errors import BadRequest, ContentFiltered, InDoubt, InputTooLong, NotSent, Permanent
from holdfast.model.outcome import CredentialRefused, OutOfCredit, Overloaded, RateLimited, RetryLater
from holdfast.providers import Verdict, verdict
from holdfast.providers.verdicts import is_free
from tests.support.clients import GROUP

pytestmark = [pytest.mark.fault(63), pytest.mark.req("P2"), GROUP]

ASK: Any = [{"role": "user", "content": "well?"}]
Answers = Callable[[Any], Any]


def raised(call: Callable[[], Any]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("it answered")


def from_memory(http: Any, status: int, body: Any, headers: dict[str, str]) -> Any:
    """A transport of httpx or httpx2."""

    def answer(request: Any) -> Any:
        if isinstance(body, type):
            raise body("no", request=request)
        content = body if isinstance(body, str) else json.dumps(body)
        return http.Response(status, content=content, headers={"content-type": "application/json", **headers})

    return http.MockTransport(answer)


def by_openai(status: int, body: Any, **headers: str) -> Exception:
    import httpx2
    import openai

    http = httpx2.Client(transport=from_memory(httpx2, status, body, headers))
    client = openai.OpenAI(api_key="none", max_retries=0, http_client=http)
    return raised(lambda: client.chat.completions.create(model="m", messages=ASK))


def by_anthropic(status: int, body: Any, **headers: str) -> Exception:
    import anthropic
    import httpx2

    http = httpx2.Client(transport=from_memory(httpx2, status, body, headers))
    client = anthropic.Anthropic(api_key="none", max_retries=0, http_client=http)
    return raised(lambda: client.messages.create(model="m", max_tokens=5, messages=ASK))


def by_google(status: int, body: Any, **headers: str) -> Exception:
    import httpx
    from google import genai

    http = httpx.Client(transport=from_memory(httpx, status, body, headers))
    unused = httpx.AsyncClient(transport=from_memory(httpx, status, body, headers))  # its own takes long to make
    options = genai.types.HttpOptions(httpx_client=http, httpx_async_client=unused)
    client = genai.Client(api_key="none", http_options=options)
    return raised(lambda: client.models.generate_content(model="m", contents="well?"))


def by_mistral(status: int, body: Any, **headers: str) -> Exception:
    import httpx2
    from mistralai.client import Mistral

    transport = from_memory(httpx2, status, body, headers)
    http, unused = httpx2.Client(transport=transport), httpx2.AsyncClient(transport=transport)
    client = Mistral(api_key="none", client=http, async_client=unused)
    return raised(lambda: client.chat.complete(model="m", messages=ASK))


def by_cohere(status: int, body: Any, **headers: str) -> Exception:
    import cohere
    import httpx

    http = httpx.Client(transport=from_memory(httpx, status, body, headers))
    client = cohere.ClientV2(api_key="none", max_retries=0, httpx_client=http)
    return raised(lambda: client.chat(model="m", messages=ASK))


def by_litellm(status: int, body: Any, **headers: str) -> Exception:
    import httpx2
    import litellm
    import openai

    http = httpx2.Client(transport=from_memory(httpx2, status, body, headers))
    client = openai.OpenAI(api_key="none", max_retries=0, http_client=http)
    return raised(lambda: litellm.completion(model="openai/gpt-4o", messages=ASK, client=client, max_retries=0))


def by_bedrock(status: int, code: str, words: str = "no", **headers: str) -> Exception:
    from botocore.exceptions import ClientError

    metadata: Any = {"HTTPStatusCode": status, "HTTPHeaders": headers}
    return ClientError({"Error": {"Code": code, "Message": words}, "ResponseMetadata": metadata}, "Converse")


def of_openai(code: str | None, message: str = "no", kind: str = "some_error") -> Any:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def of_anthropic(kind: str, message: str = "no", **details: str) -> Any:
    return {"type": "error", "error": {"type": kind, "message": message, "details": details or None}}


def of_google(code: int, status: str, message: str = "no", *details: Any) -> Any:
    return {"error": {"code": code, "status": status, "message": message, "details": list(details)}}


API_KEY_INVALID = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
PER_MINUTE = "You exceeded your current quota, please check your plan and billing details. Please retry in 36.5s."

ROWS: list[tuple[Callable[..., Exception], int, Any, type[Verdict]]] = [
    # openai
    (by_openai, 429, of_openai("rate_limit_exceeded"), RateLimited),
    (by_openai, 429, of_openai("insufficient_quota", kind="insufficient_quota"), OutOfCredit),
    (by_openai, 429, of_openai("billing_hard_limit_reached"), OutOfCredit),
    (by_openai, 400, of_openai("billing_hard_limit_reached"), OutOfCredit),
    (by_openai, 429, of_openai("billing_not_active"), OutOfCredit),
    (by_openai, 429, of_openai("credit_balance_exhausted"), OutOfCredit),
    (by_openai, 429, of_openai("project_spend_limit_exceeded"), OutOfCredit),
    (by_openai, 429, of_openai("organization_spend_limit_exceeded"), OutOfCredit),
    (by_openai, 429, of_openai("rate_limit_exceeded", "Request too large for gpt-4o: Limit 30000"), InputTooLong),
    (by_openai, 503, of_openai("server_is_overloaded"), Overloaded),
    (by_openai, 503, of_openai("slow_down"), Overloaded),
    (by_openai, 500, of_openai(None, kind="server_error"), Overloaded),
    (by_openai, 401, of_openai("invalid_api_key"), CredentialRefused),
    (by_openai, 403, of_openai("unsupported_country_region_territory"), CredentialRefused),
    (by_openai, 400, of_openai("context_length_exceeded"), InputTooLong),
    (by_openai, 400, of_openai("string_above_max_length"), InputTooLong),
    (by_openai, 400, of_openai(None, "Your input exceeds the context window of this model."), InputTooLong),
    (by_openai, 400, of_openai(None, "This model's maximum context length is 8192 tokens"), InputTooLong),
    (by_openai, 413, "<html>too large</html>", InputTooLong),
    (by_openai, 400, of_openai("content_filter"), ContentFiltered),
    (by_openai, 400, of_openai("content_policy_violation"), ContentFiltered),
    (by_openai, 400, of_openai("moderation_blocked"), ContentFiltered),
    (by_openai, 400, of_openai("invalid_prompt", "potentially violating our usage policy"), ContentFiltered),
    (by_openai, 403, of_openai(None, "requires moderation, and your input was flagged"), ContentFiltered),
    (by_openai, 400, of_openai("unsupported_parameter"), BadRequest),
    (by_openai, 404, of_openai("model_not_found"), BadRequest),
    (by_openai, 422, of_openai(None), BadRequest),
    (by_openai, 402, of_openai(None, "Insufficient Balance"), OutOfCredit),
    (by_openai, 408, of_openai(None), InDoubt),
    (by_openai, 409, of_openai(None), InDoubt),
    (by_openai, 425, of_openai(None), Overloaded),
    (by_openai, 499, of_openai(None), InDoubt),
    (by_openai, 502, "<html>bad gateway</html>", InDoubt),
    (by_openai, 504, of_openai("insufficient_quota"), InDoubt),
    (by_openai, 520, of_openai(None), InDoubt),
    (by_openai, 524, of_openai(None), InDoubt),
    # anthropic
    (by_anthropic, 429, of_anthropic("rate_limit_error"), RateLimited),
    (by_anthropic, 429, of_anthropic("rate_limit_error", error_code="ramp_limit_exceeded"), RateLimited),
    (by_anthropic, 429, of_anthropic("rate_limit_error", error_code="enforced_spend_limit_reached"), OutOfCredit),
    (by_anthropic, 402, of_anthropic("billing_error"), OutOfCredit),
    (by_anthropic, 400, of_anthropic("invalid_request_error", "Your credit balance is too low to access"), OutOfCredit),
    (by_anthropic, 529, of_anthropic("overloaded_error"), Overloaded),
    (by_anthropic, 503, of_anthropic("api_error"), Overloaded),
    (by_anthropic, 500, of_anthropic("api_error"), Overloaded),
    (by_anthropic, 401, of_anthropic("authentication_error"), CredentialRefused),
    (by_anthropic, 403, of_anthropic("permission_error"), CredentialRefused),
    (by_anthropic, 413, of_anthropic("request_too_large"), InputTooLong),
    (
        by_anthropic,
        400,
        of_anthropic("invalid_request_error", "prompt is too long: 210000 tokens > 200000"),
        InputTooLong,
    ),
    (
        by_anthropic,
        400,
        of_anthropic("invalid_request_error", "input length and `max_tokens` exceed context limit"),
        InputTooLong,
    ),
    (
        by_anthropic,
        400,
        of_anthropic("invalid_request_error", "Output blocked by content filtering policy"),
        ContentFiltered,
    ),
    (by_anthropic, 400, of_anthropic("invalid_request_error", "max_tokens: required"), BadRequest),
    (by_anthropic, 404, of_anthropic("not_found_error"), BadRequest),
    (by_anthropic, 504, of_anthropic("timeout_error"), InDoubt),
    # google-genai
    (by_google, 429, of_google(429, "RESOURCE_EXHAUSTED", PER_MINUTE), RateLimited),
    (by_google, 429, of_google(429, "RESOURCE_EXHAUSTED", "Your project has exceeded its spending cap."), OutOfCredit),
    (by_google, 429, of_google(429, "RESOURCE_EXHAUSTED", "Monthly spend limit reached"), OutOfCredit),
    (by_google, 429, of_google(429, "RESOURCE_EXHAUSTED", "Your prepayment credits are depleted."), OutOfCredit),
    (by_google, 503, of_google(503, "UNAVAILABLE", "The model is overloaded."), Overloaded),
    (by_google, 500, of_google(500, "INTERNAL"), Overloaded),
    (by_google, 400, of_google(400, "INVALID_ARGUMENT", "no", API_KEY_INVALID), CredentialRefused),
    (by_google, 400, of_google(400, "INVALID_ARGUMENT", "API key not valid."), CredentialRefused),
    (by_google, 400, of_google(400, "INVALID_ARGUMENT", "API key expired. Please renew it."), CredentialRefused),
    (by_google, 403, of_google(403, "PERMISSION_DENIED"), CredentialRefused),
    (
        by_google,
        403,
        of_google(403, "PERMISSION_DENIED", "You do not have permission to access the File abc-1 or it may not exist."),
        BadRequest,
    ),
    (
        by_google,
        400,
        of_google(
            400, "INVALID_ARGUMENT", "The input token count (9) exceeds the maximum number of tokens allowed (8)."
        ),
        InputTooLong,
    ),
    (by_google, 400, of_google(400, "INVALID_ARGUMENT", "Request payload size exceeds the limit"), InputTooLong),
    (by_google, 400, of_google(400, "INVALID_ARGUMENT"), BadRequest),
    (by_google, 404, of_google(404, "NOT_FOUND"), BadRequest),
    (by_google, 504, of_google(504, "DEADLINE_EXCEEDED"), InDoubt),
    (by_google, 499, of_google(499, "CANCELLED"), InDoubt),
    # mistralai
    (by_mistral, 429, {"message": "Requests rate limit exceeded"}, RateLimited),
    (by_mistral, 402, {"message": "no"}, OutOfCredit),
    (by_mistral, 503, {"message": "no"}, Overloaded),
    (by_mistral, 401, {"detail": "Unauthorized"}, CredentialRefused),
    (
        by_mistral,
        400,
        {"message": "Prompt contains 9 tokens, too large for model with 8 maximum context length"},
        InputTooLong,
    ),
    (by_mistral, 422, {"detail": [{"loc": ["body"], "msg": "Field required", "type": "missing"}]}, BadRequest),
    (by_mistral, 500, {"message": "no"}, Overloaded),
    (by_mistral, 504, "", InDoubt),
    # cohere
    (by_cohere, 429, {"message": "trial key"}, RateLimited),
    (by_cohere, 402, {"message": "no"}, OutOfCredit),
    (by_cohere, 503, {"message": "no"}, Overloaded),
    (by_cohere, 401, {"message": "invalid api token"}, CredentialRefused),
    (by_cohere, 403, {"message": "no"}, CredentialRefused),
    (by_cohere, 400, {"message": "too many tokens: try a shorter prompt"}, InputTooLong),
    (by_cohere, 422, {"message": "no"}, BadRequest),
    (by_cohere, 501, {"message": "no"}, BadRequest),
    (by_cohere, 499, {"message": "no"}, InDoubt),
    (by_cohere, 504, {"message": "no"}, InDoubt),
    # litellm
    (by_litellm, 429, of_openai("rate_limit_exceeded"), RateLimited),
    (by_litellm, 429, of_openai("insufficient_quota", "You exceeded your current quota"), OutOfCredit),
    (by_litellm, 503, of_openai(None), Overloaded),
    (by_litellm, 500, of_openai(None), Overloaded),
    (by_litellm, 401, of_openai("invalid_api_key"), CredentialRefused),
    (by_litellm, 400, of_openai("context_length_exceeded", "This model's maximum context length is 8"), InputTooLong),
    (by_litellm, 400, of_openai("content_policy_violation", "content_policy_violation"), ContentFiltered),
    (by_litellm, 400, of_openai("unsupported_parameter"), BadRequest),
    (by_litellm, 504, of_openai(None), InDoubt),
    (by_litellm, 408, of_openai(None), InDoubt),
    # Bedrock
    (by_bedrock, 429, "ThrottlingException", RateLimited),
    (by_bedrock, 400, "ThrottlingException", RateLimited),
    (by_bedrock, 400, "ServiceQuotaExceededException", RateLimited),
    (by_bedrock, 429, "ModelNotReadyException", Overloaded),
    (by_bedrock, 503, "ServiceUnavailableException", Overloaded),
    (by_bedrock, 500, "InternalServerException", Overloaded),
    (by_bedrock, 403, "AccessDeniedException", CredentialRefused),
    (by_bedrock, 400, "UnrecognizedClientException", CredentialRefused),
    (by_bedrock, 403, "ExpiredTokenException", CredentialRefused),
    (by_bedrock, 400, "ValidationException", BadRequest),
    (by_bedrock, 404, "ResourceNotFoundException", BadRequest),
    (by_bedrock, 408, "ModelTimeoutException", InDoubt),
    (by_bedrock, 424, "ModelErrorException", InDoubt),
]


@pytest.mark.parametrize(
    ("client", "status", "body", "means"), ROWS, ids=[f"{row[0].__name__}-{row[1]}-{row[3].__name__}" for row in ROWS]
)
def test_every_row_of_the_table(client, status, body, means):
    """Paid or not: errors of a provider's own package have all verdicts."""
    error = client(status, body)
    for paid in (True, False):
        told = verdict(error, paid=paid)
        assert type(told) is means
        assert is_free(told, error) is (means is not InDoubt)


def test_the_words_of_the_provider_are_kept():
    error = by_openai(429, of_openai("insufficient_quota", "You exceeded your current quota"))
    told = verdict(error)
    assert isinstance(told, OutOfCredit)
    assert told.reason == str(told) == "RateLimitError (429): You exceeded your current quota"
    assert "prompt is too long" in str(verdict(by_anthropic(400, of_anthropic("x", "prompt is too long: 9 > 8"))))
    assert "spending cap" in str(verdict(by_google(429, of_google(429, "x", "over your spending cap"))))
    assert "trial key" in str(verdict(by_cohere(429, {"message": "trial key"})))
    assert "is wrong" in str(verdict(by_bedrock(400, "ValidationException", "this is wrong")))
    assert "rate limit exceeded" in str(verdict(by_mistral(429, {"message": "Requests rate limit exceeded"})))


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (lambda: by_openai(429, of_openai(None), **{"retry-after-ms": "1500", "retry-after": "2"}), 1.5),
        (lambda: by_openai(503, of_openai(None), **{"retry-after": "20"}), 20),
        (lambda: by_openai(429, of_openai(None, "Please try again in 6m0s.")), 360),
        (lambda: by_anthropic(529, of_anthropic("overloaded_error"), **{"retry-after": "7"}), 7),
        (lambda: by_google(429, of_google(429, "RESOURCE_EXHAUSTED", PER_MINUTE)), 36.5),
        (lambda: by_mistral(429, {"message": "no"}, **{"retry-after": "3"}), 3),
        (lambda: by_cohere(429, {"message": "no"}, **{"retry-after": "4"}), 4),
        (lambda: by_litellm(429, of_openai(None), **{"retry-after": "5"}), 5),
        (lambda: by_bedrock(429, "ThrottlingException", **{"retry-after": "6"}), 6),
        (lambda: by_openai(429, of_openai(None)), None),
    ],
)
def test_the_pause_is_as_long_as_the_provider_asks(error, seconds):
    told = verdict(error())
    assert isinstance(told, RateLimited)
    assert told.after_seconds == seconds


def test_a_retry_of_the_client_hides_how_the_first_try_ended():
    """It may have been charged: the pause is obeyed, and the call is not free."""
    import httpx2
    import openai

    tries: list[str] = []

    def answer(request: Any) -> Any:
        tries.append(request.headers["x-stainless-retry-count"])
        if len(tries) == 1:
            raise httpx2.ReadTimeout("lost", request=request)
        return httpx2.Response(429, json=of_openai("rate_limit_exceeded"), headers={"x-should-retry": "false"})

    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    client = openai.OpenAI(api_key="none", max_retries=1, http_client=http)
    error = raised(lambda: client.chat.completions.create(model="m", messages=ASK))
    told = verdict(error)
    assert tries == ["0", "1"]
    assert isinstance(told, RateLimited) and not is_free(told, error)


def test_a_retry_of_botocore_hides_how_the_first_try_ended():
    error: Any = by_bedrock(429, "ThrottlingException")
    assert is_free(verdict(error), error)
    error.response["ResponseMetadata"]["RetryAttempts"] = 2
    told = verdict(error)
    assert isinstance(told, RateLimited) and not is_free(told, error)


# Sent or not ---------------------------------------------------------------------------------------------------------

NETWORK: list[Callable[..., Exception]] = [by_openai, by_anthropic, by_google, by_mistral, by_cohere, by_litellm]


@pytest.mark.parametrize("client", NETWORK)
@pytest.mark.parametrize("kind", ["ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol"])
def test_what_was_never_sent_is_free(client, kind):
    import httpx
    import httpx2

    http = httpx if client in (by_google, by_cohere) else httpx2
    error = client(0, getattr(http, kind))
    told = verdict(error)
    assert isinstance(told, NotSent) and is_free(told, error)


@pytest.mark.parametrize("client", NETWORK)
@pytest.mark.parametrize("kind", ["ReadTimeout", "ReadError", "WriteError", "WriteTimeout", "RemoteProtocolError"])
def test_what_was_sent_and_not_answered_is_in_doubt(client, kind):
    import httpx
    import httpx2

    http = httpx if client in (by_google, by_cohere) else httpx2
    error = client(0, getattr(http, kind))
    told = verdict(error)
    assert isinstance(told, InDoubt) and not is_free(told, error)


def test_a_network_error_of_bedrock_is_sent_or_not():
    from botocore import exceptions as boto

    url = "https://bedrock-runtime.us-east-1.amazonaws.com/"
    assert isinstance(verdict(boto.EndpointConnectionError(endpoint_url=url)), NotSent)
    assert isinstance(verdict(boto.ConnectTimeoutError(endpoint_url=url)), NotSent)
    assert isinstance(verdict(boto.ReadTimeoutError(endpoint_url=url)), InDoubt)
    assert isinstance(verdict(boto.ConnectionClosedError(endpoint_url=url)), InDoubt)
    assert isinstance(verdict(boto.EventStreamError({"Error": {}}, "ConverseStream")), InDoubt)


def test_a_bucket_is_no_model_provider():
    """botocore speaks to all of AWS: in an unpaid handler only its rate limits count."""
    from botocore.exceptions import ClientError

    def answered(status: int, code: str) -> Exception:
        return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "GetObject")

    assert verdict(answered(404, "NoSuchKey"), paid=False) is None
    assert verdict(answered(403, "AccessDenied"), paid=False) is None
    assert isinstance(verdict(answered(429, "SlowDown"), paid=False), RateLimited)


# What has no status --------------------------------------------------------------------------------------------------


def test_a_filter_that_withholds_a_whole_answer_was_paid_for():
    import openai

    error = openai.ContentFilterFinishReasonError()
    told = verdict(error)
    assert isinstance(told, ContentFiltered) and not is_free(told, error)


def test_an_answer_that_is_cut_off_or_not_readable_was_paid_for():
    import anthropic
    import httpx2
    import openai
    from openai.types.chat import ChatCompletion

    whole = ChatCompletion(id="c", object="chat.completion", created=1, model="m", choices=[])
    reply = httpx2.Response(200, json={}, request=httpx2.Request("POST", "http://localhost"))
    for error in (
        openai.LengthFinishReasonError(completion=whole),
        openai.APIResponseValidationError(reply, body=None),
        anthropic.APIResponseValidationError(reply, body=None),
        by_mistral(200, {"nonsense": True}),
    ):
        told = verdict(error)
        assert isinstance(told, InDoubt) and not is_free(told, error)


def test_errors_that_litellm_makes_up_are_read_by_their_class():
    import httpx
    import litellm

    who: Any = {"llm_provider": "openai", "model": "m"}
    reply = httpx.Response(402, request=httpx.Request("POST", "http://localhost"))
    payment = type("PaymentRequiredError", (litellm.APIError,), {"__module__": "litellm.exceptions"})
    own = litellm.RateLimitError("no", response=reply, **who)
    own.category, own.rate_limit_type = "litellm", "budget"  # type: ignore[attr-defined]
    limited = litellm.RateLimitError("no", **who)
    limited.category, limited.rate_limit_type = "litellm", "requests"  # type: ignore[attr-defined]
    rows: list[tuple[Exception, type[Verdict]]] = [
        (litellm.BudgetExceededError(2.0, 1.0), OutOfCredit),
        (payment(402, "no", **who), OutOfCredit),
        (own, OutOfCredit),
        (limited, RateLimited),
        (litellm.ContextWindowExceededError("no", **who), InputTooLong),
        (litellm.ContentPolicyViolationError("no", **who), ContentFiltered),
        (litellm.exceptions.MidStreamFallbackError("no", **who), InDoubt),
        (litellm.APIResponseValidationError("no", **who), InDoubt),
        (litellm.JSONSchemaValidationError("m", "openai", "{", "{}"), InDoubt),
        (litellm.APIConnectionError("no", **who), InDoubt),
        (litellm.Timeout("no", **who), InDoubt),
        (litellm.UnsupportedParamsError("no"), BadRequest),
    ]
    assert [type(verdict(error)) for error, _ in rows] == [means for _, means in rows]


def test_credentials_that_are_not_there_are_refused():
    from anthropic import CredentialsError
    from botocore.exceptions import NoCredentialsError, ParamValidationError

    assert isinstance(verdict(CredentialsError("no key file")), CredentialRefused)
    assert verdict(NoCredentialsError(), paid=False) is None  # of any service of AWS
    assert verdict(ParamValidationError(report="no"), paid=False) is None


# Inside a stream -----------------------------------------------------------------------------------------------------


def test_an_error_inside_a_stream_is_in_doubt_whatever_it_says():
    import anthropic
    import httpx
    import httpx2
    import openai
    from google import genai

    def events(http: Any, text: str) -> Any:
        headers = {"content-type": "text/event-stream"}
        return http.Client(transport=http.MockTransport(lambda _: http.Response(200, content=text, headers=headers)))

    wrong = json.dumps(of_openai("rate_limit_exceeded", "busy"))
    http = events(httpx2, f"data: {wrong}\n\n")
    first = openai.OpenAI(api_key="none", max_retries=0, http_client=http)
    wrong = json.dumps(of_anthropic("overloaded_error", "busy"))
    http = events(httpx2, f"event: error\ndata: {wrong}\n\n")
    second = anthropic.Anthropic(api_key="none", max_retries=0, http_client=http)
    wrong = json.dumps(of_google(503, "UNAVAILABLE", "busy"))
    http = events(httpx, f"data: {wrong}\n\n")
    third = genai.Client(api_key="none", http_options=genai.types.HttpOptions(httpx_client=http))
    for error in (
        raised(lambda: list(first.chat.completions.create(model="m", messages=ASK, stream=True))),
        raised(lambda: list(second.messages.create(model="m", max_tokens=5, messages=ASK, stream=True))),
        raised(lambda: list(third.models.generate_content_stream(model="m", contents="well?"))),
    ):
        told = verdict(error)
        assert isinstance(told, InDoubt) and "busy" in str(told)


# Chains --------------------------------------------------------------------------------------------------------------


class Wrapped(Exception):
    """As programs and packages around a client raise it."""


def wrapping(error: Exception) -> Exception:
    def wrap() -> None:
        try:
            raise error
        except Exception as caught:
            raise Wrapped("it did not work") from caught

    return raised(wrap)


def test_an_exception_that_wraps_another_on_purpose_has_its_verdict():
    assert isinstance(verdict(wrapping(by_openai(429, of_openai("insufficient_quota")))), OutOfCredit)
    assert isinstance(verdict(wrapping(by_anthropic(413, of_anthropic("x"))), paid=False), InputTooLong)
    assert verdict(wrapping(ValueError())) is None


def test_what_a_handler_decides_counts_more_than_what_it_wraps():
    limited = by_openai(429, of_openai(None))
    for ours in (Permanent("give up"), RetryLater(5)):
        ours.__cause__ = limited
        assert verdict(ours) is None
    ours = BadRequest("mine")
    ours.__cause__ = limited
    assert verdict(ours) is ours


def test_a_bare_timeout_before_a_refusal_leaves_a_doubt():
    """As aiohttp raises it for its total timeout."""

    def ask() -> None:
        try:
            raise TimeoutError
        except TimeoutError:
            raise by_openai(429, of_openai(None))  # noqa: B904

    error = raised(ask)
    assert isinstance(verdict(error), InDoubt)
    assert isinstance(verdict(error, before=error.__context__), RateLimited)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyboardInterrupt(), SystemExit(429), GeneratorExit()])
def test_an_end_of_the_program_is_no_verdict(error):
    assert verdict(error) is None


class Biting(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("do not touch")


def test_whatever_an_exception_does_nothing_is_raised():
    assert verdict(Biting()) is None
    assert verdict(Biting(), paid=False) is None
    assert not is_free(ContentFiltered("x"), Biting())
    endless = ValueError()
    endless.__cause__ = KeyError()
    endless.__cause__.__cause__ = endless
    assert verdict(endless) is None
