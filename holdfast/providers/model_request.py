"""What a call asks of a model, in the words of OpenTelemetry for generative AI. Known by the name of the client's module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

#: Providers by the beginning of the module that their client's method is from.
_PROVIDERS = {
    "openai": "openai",
    "anthropic": "anthropic",
    "google.genai": "gcp.gemini",
    "mistralai": "mistral_ai",
    "cohere": "cohere",
    "botocore": "aws.bedrock",
}
#: Operations by a part of the method's name, the first that fits.
_OPERATIONS = {
    "embed": "embeddings",
    "generate_content": "generate_content",
    "completions": "chat",
    "completion": "chat",
    "responses": "chat",
    "messages": "chat",
    "chat": "chat",
    "converse": "chat",
}


class ModelRequest(NamedTuple):
    model: str | None
    #: None for a function that is of no known client.
    provider: str | None
    operation: str | None

    @classmethod
    def of(cls, function: Callable[..., Any], model: str | None) -> ModelRequest:
        owner = type(getattr(function, "__self__", None))
        module = owner.__module__ if owner.__module__ != "builtins" else getattr(function, "__module__", None) or ""
        provider = next((its for known, its in _PROVIDERS.items() if f"{module}.".startswith(f"{known}.")), None)
        if provider is None and not f"{module}.".startswith("litellm."):
            return cls(model, None, None)
        name = f"{owner.__name__}.{getattr(function, '__name__', '')}".lower()
        return cls(model, provider, next((its for part, its in _OPERATIONS.items() if part in name), None))
