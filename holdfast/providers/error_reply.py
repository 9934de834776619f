"""What an exception of a client says about the reply: status, headers, the provider's codes and words. And what an error says
that comes inside an answer.

Clients differ in where they keep them; everything that reads an exception starts here. Nothing is read from the network:
a body counts as far as its client has read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import InDoubt

#: Packages of providers: their errors come from the provider itself.
_LIBRARIES = ("litellm", "openai", "anthropic", "google.genai", "mistralai", "cohere")
#: Where a provider names its error, in the body or as an attribute of the exception.
_NAMES = frozenset({"code", "type", "status", "reason", "error", "error_code", "Code", "__type"})
_ATTRIBUTES = ("code", "type", "status", "error_code", "category", "rate_limit_type")
#: Where a provider writes to people.
_WORDS = ("message", "Message", "error_description", "detail", "error", "msg")
#: Statuses that litellm makes up for errors that had none.
_MADE_UP = frozenset({"Timeout", "APIConnectionError", "APIResponseValidationError", "JSONSchemaValidationError"})
_MOST_WORDS = 1000
_MOST_BODY = 20_000


class Reply(NamedTuple):
    """An error reply, as far as its exception tells."""

    #: The package of the provider, such as `openai`; empty for an HTTP client.
    library: str
    #: The names of the exception's classes.
    names: frozenset[str]
    status: int | None
    headers: Mapping[str, str]
    #: The JSON of the body; None if it has none.
    body: Any
    #: The provider's own names for the error, in lower case.
    codes: frozenset[str]
    #: The provider's own words.
    words: str

    @classmethod
    def read(cls, error: BaseException) -> Reply:
        body, library = _body(error), library_of(error)
        codes = {code.lower() for code in _codes(body)}
        if library:
            codes |= {
                value.lower() for name in _ATTRIBUTES if isinstance(value := getattr(error, name, None), str) and value
            }
        return cls(
            library,
            frozenset(one.__name__ for one in type(error).__mro__),
            status_of(error),
            headers_of(error),
            body,
            frozenset(codes),
            (said(body) or _first_line(error))[:_MOST_WORDS],
        )

    def spoken(self, name: str) -> str:
        """For people: the name of the exception, the status, and the provider's words."""
        return f"{name} ({self.status}): {self.words}" if self.status is not None else f"{name}: {self.words}"


def error_in(answer: Any, where: str, otherwise: str = "") -> InDoubt:
    """An error inside an answer, or inside a part of one, with the provider's words."""
    told = answer if isinstance(answer, dict) else {}
    for name in ("error", "response"):
        if isinstance(told.get(name), dict):
            return error_in(told[name], where, otherwise)
    words = [str(told[name]) for name in ("code", "type", "message") if told.get(name) not in (None, "", "error")]
    return InDoubt(f"an error inside {where}: {': '.join(words) or otherwise}")


def library_of(error: BaseException) -> str:
    """The package of the provider that this exception belongs to; empty for an HTTP client's and any other."""
    for one in type(error).__mro__:
        module = one.__module__
        for name in _LIBRARIES:
            if module == name or module.startswith(f"{name}."):
                return name
        if module.startswith("botocore.") and _is_of_bedrock(error):
            return "botocore"
    return ""


def _is_of_bedrock(error: BaseException) -> bool:
    """botocore speaks to all of AWS: what a bucket answers is no verdict of a model provider."""
    if str(getattr(error, "operation_name", "")).startswith(("Invoke", "Converse", "ApplyGuardrail")):
        return True
    details = getattr(error, "kwargs", None)
    return isinstance(details, Mapping) and "bedrock" in str(details.get("endpoint_url", ""))


def status_of(error: BaseException) -> int | None:
    if type(error).__name__ in _MADE_UP and library_of(error) == "litellm":
        return None
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        return status if isinstance(status, int) else None
    places = [(response, "status_code"), (response, "status"), (error, "status_code"), (error, "status")]
    # Beside a body, `code` is the provider's own code of an error, which may be a number within a stream.
    if not hasattr(error, "body"):
        places.append((error, "code"))
    for holder, name in places:
        value = getattr(holder, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599:
            return int(value)
    return None


def headers_of(error: object) -> dict[str, str]:
    """The headers of an exception's reply, by their names in lower case."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        return lower(response.get("ResponseMetadata", {}).get("HTTPHeaders"))
    for holder, name in (
        (response, "headers"),
        (error, "headers"),
        (error, "hdrs"),
        (error, "litellm_response_headers"),
    ):
        if found := lower(getattr(holder, name, None)):
            return found
    return {}


def lower(headers: Any) -> dict[str, str]:
    """Headers of any client as a plain mapping with names in lower case."""
    if not hasattr(headers, "items"):
        return {}
    return {_text(name).lower(): _text(value) for name, value in headers.items()}


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _body(error: BaseException) -> Any:
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        return dict(response)
    found = getattr(error, "body", None) or getattr(error, "details", None)
    if found is None or found == "":
        # Private, but the public names would read from the network, or raise.
        found = getattr(response, "_content", None)
    if isinstance(found, (bytes, str)):
        try:
            found = msgspec.json.decode(found) if len(found) <= _MOST_BODY else None
        except (msgspec.DecodeError, UnicodeError):
            return None
    return found if isinstance(found, (dict, list)) else None


def _codes(body: Any, depth: int = 5) -> Iterator[str]:
    """The names that a body gives its error."""
    if isinstance(body, Mapping):
        for name, value in body.items():
            if name in _NAMES and isinstance(value, str):
                yield value
            elif depth:
                yield from _codes(value, depth - 1)
    elif isinstance(body, list) and depth:
        for one in body[:20]:
            yield from _codes(one, depth - 1)


def said(body: Any) -> str:
    """The first message in a body."""
    if isinstance(body, list):
        return said(body[0]) if body else ""
    if not isinstance(body, Mapping):
        return ""
    for name in ("error", "Error", "detail"):
        if isinstance(body.get(name), (Mapping, list)) and (found := said(body[name])):
            return found
    for name in _WORDS:
        if isinstance(value := body.get(name), str) and value:
            return value
    return ""


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else ""
