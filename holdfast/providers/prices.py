"""What tokens cost: from a table that a person wrote, else from the package genai-prices, if it is installed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Context, Decimal, InvalidOperation, localcontext
from functools import cache
from typing import Any

from holdfast.errors import UsageError
from holdfast.model.money import micros
from holdfast.providers.usage import Usage

_KEYS = ("in", "out", "cached", "cache_write", "per_call")
_EXAMPLE = 'write it like {"in": "0.25", "out": "2.00", "cached": "0.025"}, per million tokens'
_MILLION = 1_000_000
#: OpenAI, Anthropic, Google and Mistral take half of their price for a call in a batch.
_BATCH = Decimal("0.5")
_EXACT = Context(prec=60)
#: The day at the end of a model's name in an answer: `gpt-4o-2024-08-06`, `claude-sonnet-4-5-20250929`.
_DATED = re.compile(r"-(\d{4}-\d{2}-\d{2}|\d{8})$")


@dataclass(frozen=True, slots=True)
class _Price:
    """Per million tokens; None where nothing is given."""

    tokens_in: Decimal | None
    tokens_out: Decimal | None
    cached: Decimal | None
    cache_write: Decimal | None
    per_call: Decimal | None

    def of(self, usage: Usage, batch: bool) -> Decimal | None:
        given_in, given_out = self.tokens_in, self.tokens_out
        if given_in is None and given_out is None:
            return self.per_call
        if (given_in is None and usage.tokens_in) or (given_out is None and usage.tokens_out):
            return None  # part of the price is not known
        given_in, given_out = given_in or Decimal(0), given_out or Decimal(0)
        with localcontext(_EXACT):
            tokens = (
                (usage.tokens_in - usage.cached_in - usage.cache_write) * given_in
                + usage.cached_in * (given_in if self.cached is None else self.cached)
                + usage.cache_write * (given_in if self.cache_write is None else self.cache_write)
                + usage.tokens_out * given_out
            ) / _MILLION
            return tokens * (_BATCH if batch else 1) + (self.per_call or 0)


class Prices:
    """A table of prices by model; empty, it knows what genai-prices knows."""

    def __init__(self, table: Mapping[str, _Price] | None = None) -> None:
        self._table = dict(table or {})

    @classmethod
    def read(cls, given: Mapping[str, Any], *, where: str) -> Prices:
        """Read a table that a person wrote; `where` names it in the error.

        A name may end in `*`; the longest that fits counts.
        """
        if not isinstance(given, Mapping):
            raise UsageError(f"{where}: {given!r} is not a table of prices by model; {_EXAMPLE}")
        return cls({_model(model, where): _read(model, row, where) for model, row in given.items()})

    def price(self, usage: Usage, *, batch: bool = False, at: datetime | None = None) -> Decimal | None:
        """What a call costs; None if that is not known. `at` is when it was made: prices change."""
        row = self._row(usage.model)
        return row.of(usage, batch) if row is not None else _published(usage, batch, at)

    def knows(self, model: str) -> bool:
        """Whether a call to this model has a price."""
        return self._row(model) is not None or _published(Usage(model, 1), False, None) is not None

    def _row(self, model: str) -> _Price | None:
        """The row of a model, of the model without the name of its provider (`openai/…`), or without its date."""
        bare = model.rpartition("/")[2]
        for name in dict.fromkeys((model, bare, _DATED.sub("", bare))):
            if name in self._table:
                return self._table[name]
            stems = [one for one in self._table if one.endswith("*") and name.startswith(one[:-1])]
            if stems:
                return self._table[max(stems, key=len)]
        return None


def _model(model: object, where: str) -> str:
    if not isinstance(model, str) or not model or "*" in model[:-1]:
        raise UsageError(f"{where}: {model!r} is not the name of a model; write 'gpt-5-mini', or 'gpt-5-*' for several")
    return model


def _read(model: str, row: object, where: str) -> _Price:
    what = f"{where}: prices of {model!r}"
    if not isinstance(row, Mapping) or not row:
        raise UsageError(f"{what}: {row!r} is not a price; {_EXAMPLE}")
    if unknown := [str(key) for key in row if key not in _KEYS]:
        raise UsageError(f"{what}: there is no {unknown[0]!r}; use {', '.join(_KEYS)}")
    if not row.keys() & {"in", "out", "per_call"}:
        raise UsageError(f"{what}: needs 'in', 'out' or 'per_call'; {_EXAMPLE}")
    return _Price(*(_amount(row[key], f"{what}: {key}") if key in row else None for key in _KEYS))


def _amount(value: object, what: str) -> Decimal:
    """An amount, read as it is written, and not rounded."""
    micros(value, what=what)  # refuses what is no amount
    try:
        return Decimal(repr(value) if isinstance(value, float) else str(value).strip())
    except InvalidOperation:
        raise UsageError(f"{what}: {value!r} is not an amount; give a number") from None


@cache
def _package() -> Any:
    """genai-prices, if it is installed. Loading it takes most of a second, so only when a price is asked for."""
    try:
        import genai_prices
    except ImportError:
        return None
    return genai_prices


def _published(usage: Usage, batch: bool, at: datetime | None) -> Decimal | None:
    package = _package()
    if package is None or not usage.model:
        return None
    counted = package.Usage(
        input_tokens=usage.tokens_in,
        output_tokens=usage.tokens_out,
        cache_read_tokens=usage.cached_in,
        cache_write_tokens=usage.cache_write,
    )
    context = {"processing": "batch"} if batch else None
    for provider in _providers(usage):
        try:
            found = package.calc_price(
                counted,
                usage.model,
                provider_id=provider,
                genai_request_timestamp=at or datetime.now(UTC),
                price_context=context,
            )
        except (LookupError, ValueError):
            continue
        return _whole(found, usage, batch)
    return None


def _providers(usage: Usage) -> list[str | None]:
    """Where to look for a model: by its name, at the provider that answers in this form, at the one in `provider/model`."""
    found: list[str | None] = ["litellm"] if "/" in usage.model else []
    if usage.provider:
        found.append(usage.provider)
    # Models whose names tell no provider, such as text-embedding-3-small.
    return [*found, None, "openai"]


def _whole(found: Any, usage: Usage, batch: bool) -> Decimal | None:
    """The price, if all of it is known: what has no price is counted as free without a word, and so is what a price for
    batches is asked for and not known."""
    given = found.model_price
    if usage.tokens_in and getattr(given, "input_mtok", None) is None:
        return None
    if usage.tokens_out and getattr(given, "output_mtok", None) is None:
        return None
    variants = found.model.price_variants or ()
    if batch and not any(one.when.get("processing") == "batch" for one in variants):
        return None
    return Decimal(found.total_price)
