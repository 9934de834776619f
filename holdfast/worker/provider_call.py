"""`ctx.call`: a paid call through a client library. What it costs is computed from the usage in its answer, what its errors
mean is read from the client's exceptions, and what its headers ask for is passed on.

The call itself is a sub-step like any other (`once`); this file only says on which terms.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from functools import partial, wraps
from typing import Any, Protocol, get_origin

from holdfast.clock import microseconds
from holdfast.engine.resource_feedback import AskedPause
from holdfast.errors import UsageError, ValueRefused
from holdfast.model import codec
from holdfast.model.functions import is_async
from holdfast.model.item import Item
from holdfast.model.log_lines import logger
from holdfast.model.money import Amount, micros
from holdfast.model.resource import COOL_MOST_SECONDS
from holdfast.model.stage import StageSpec
from holdfast.model.typed import declared_type
from holdfast.providers.clients import is_prepared_function
from holdfast.providers.headers import Heard, listening
from holdfast.providers.http_answers import Content, require_no_error, unwrapped, unwrapped_async
from holdfast.providers.model_request import ModelRequest
from holdfast.providers.prices import Prices
from holdfast.providers.retry_after import used_up_for
from holdfast.providers.split_answers import parts_of
from holdfast.providers.streams import assemble, assemble_async, is_stream
from holdfast.providers.usage import Usage, usage
from holdfast.worker.once_options import OnceOptions, Terms, check_resource, name_of, plain_name

log = logger("holdfast.worker")

#: How the arguments of clients are called that limit the answer.
_MOST_TOKENS = ("max_tokens", "max_output_tokens", "max_completion_tokens", "maxTokens")
#: Arguments of clients that hold such limits: google-genai, Bedrock.
_SETTINGS = ("config", "inferenceConfig")
#: So long an answer is expected of a call that does not limit it.
USUAL_TOKENS = 4096


class CallOptions(OnceOptions, total=False):
    """What may be said about a call besides its arguments."""

    #: A type, or a function, that is applied to the answer.
    parse: Any
    model: str | None


class Caller(Protocol):
    """The context in which a call is made."""

    item: Item

    def has_budget(self, resource: str | None) -> bool:
        """Whether money that a call of this stage spends counts against a budget; the call may name a resource."""
        ...

    def keep(self, content: bytes, name: str | None = None, type: str | None = None) -> Any:
        """Keep content outside of the database, and return a reference; awaitable in a stage that is async."""
        ...


class CallWith:
    """Options of a call that is about to be made."""

    def __init__(self, make: Callable[[ProviderCall], Any], options: CallOptions) -> None:
        self._make = make
        self._options = options

    def call(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Make the call, as `ctx.call` does, with these options."""
        return self._make(ProviderCall(name, function, args, kwargs, self._options))


class Answers(list[Any]):
    """The parts of an answer, one for each item, and the whole."""

    def __init__(self, parts: list[Any], whole: Any) -> None:
        super().__init__(parts)
        self.whole = whole


class ProviderCall:
    """One call: the function with its arguments, and what is known about the model and its price."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: CallOptions,
    ) -> None:
        if not callable(function):
            raise UsageError(f"call({name!r}): {function!r} is not a function")
        self.name = name
        self.args = args
        self._function = function
        self._kwargs = kwargs
        self._options: dict[str, Any] = dict(options)
        self._parse = self._options.pop("parse", None)
        model = self._options.pop("model", None) or kwargs.get("model") or kwargs.get("modelId")
        self._model = model if isinstance(model, str) else None
        self._resource = plain_name(self._options.get("resource"))
        #: What the headers of the answer asked for. It is recorded with the answer.
        self._pause: AskedPause | None = None

    def terms(self, spec: StageSpec, caller: Caller, *, for_items: bool = False) -> Terms:
        """The terms of the sub-step that makes this call in a stage."""
        options, prices = self._options, Prices.read(spec.prices, where="prices")
        check_resource(self._resource, f"stage {spec.name!r}, call({self.name!r})")
        cost = options.get("cost")
        if options.get("estimate") is None and (cost is None or callable(cost)):
            options["estimate"] = self._expected(spec, prices, self.args[0] if for_items else [caller.item])
            if options["estimate"] is None and caller.has_budget(self._resource):
                raise UsageError(
                    f"stage {spec.name!r}, call({self.name!r}): there is a budget, and nothing says what this call may cost; "
                    f"it was not made. Give ctx.options(estimate=…), or a price for {self._model or 'its model'} with "
                    "prices=, or install genai-prices"
                )
        if cost is None:
            options["cost"] = partial(_cost, prices, self._model, options.get("estimate"))
        if options.get("facts") is None:
            options["facts"] = partial(_facts, self._model)
        run = self._run_async if spec.is_async else self._run
        function = wraps(self._function)(partial(run, caller, partial(self._form, spec, for_items)))
        return Terms.of(
            self.name,
            function,
            self.args[for_items:],
            options,
            parse=_parser(self._parse),
            request=ModelRequest.of(self._function, self._model),
            heard=self._take_pause,
        )

    def _expected(self, spec: StageSpec, prices: Prices, items: Sequence[Item]) -> Amount | None:
        """What the call may cost: the price of what is sent and of the longest answer that it allows. Where it allows any, or
        no price is known, not less than what the stage expects: a call in doubt must not count too little."""
        price = None if self._model is None else prices.price(self._expected_usage(self._model))
        if spec.estimate is None or (price is not None and self._most_tokens is not None):
            return price
        return max(sum(_expected_cost(spec.estimate, item) for item in items), price or Decimal())

    def _expected_usage(self, model: str) -> Usage:
        """What the call may use, roughly: four characters to a token."""
        size, provider = len(repr((self.args, self._kwargs))), "aws" if "modelId" in self._kwargs else ""
        return Usage(model, size // 4, self._most_tokens or USUAL_TOKENS, provider=provider)

    @property
    def _most_tokens(self) -> int | None:
        """How long the answer may be, if the call says so."""
        settings = [self._kwargs, *(self._kwargs.get(name) for name in _SETTINGS)]
        said = [
            one.get(name) if isinstance(one, Mapping) else getattr(one, name, None)
            for one in settings
            for name in _MOST_TOKENS
        ]
        return next((most for most in said if isinstance(most, int)), None)

    def _take_pause(self) -> AskedPause | None:
        """What the headers have asked for since the last time."""
        pause, self._pause = self._pause, None
        return pause

    def _run(self, caller: Caller, form: Callable[..., Any], *args: Any) -> Any:
        with listening() as heard:
            value = self._function(*args, **self._kwargs)
            value = unwrapped(value)
            if is_stream(value):
                value = unwrapped(assemble(value))
        if isinstance(value, Content):
            try:
                value = caller.keep(value.data, type=value.type)
            except Exception as error:
                value = replace(value, trouble=str(error))
        return form(args, value, heard)

    async def _run_async(self, caller: Caller, form: Callable[..., Any], *args: Any) -> Any:
        with listening() as heard:
            function = partial(self._function, *args, **self._kwargs)
            # A sync client's answer may be read from the connection, which takes its time.
            value = function() if is_async(self._function) else await asyncio.to_thread(lambda: unwrapped(function()))
            if inspect.isawaitable(value):
                value = await value
            value = await unwrapped_async(value)
            if is_stream(value):
                value = unwrapped(await assemble_async(value))
        if isinstance(value, Content):
            try:
                value = await caller.keep(value.data, type=value.type)
            except Exception as error:
                value = replace(value, trouble=str(error))
        return form(args, value, heard)

    def _form(self, spec: StageSpec, for_items: bool, args: tuple[Any, ...], value: Any, heard: Heard) -> Any:
        """Note what the headers of an answer ask for, and return its JSON form: taken apart, for a call that was made for
        items."""
        if heard.headers:
            if (after := used_up_for(heard.headers)) is not None:
                asked = microseconds(min(after, COOL_MOST_SECONDS))
                self._pause = AskedPause(asked, self._resource)
        elif is_prepared_function(self._function):
            _warn_once(
                "stage %r calls %s, and litellm does not pass on the response headers of this model: a pause is heard of only "
                "when the provider refuses a call",
                spec.name,
                name_of(self._function),
            )
        else:
            _warn_once(
                "stage %r calls %s, whose response headers are not heard, and whose client may retry by itself, which may be "
                "paid for twice: give ctx.call a method of holdfast.providers.prepare(client); with botocore, which it does "
                "not take, turn retries off: Config(retries={'total_max_attempts': 1})",
                spec.name,
                name_of(self._function),
            )
        try:
            form = codec.plain(value)
        except ValueRefused:
            return value  # recording it fails, and says why
        require_no_error(value, form)
        parts = parts_of(form, len(args[0])) if for_items else None
        return form if parts is None else Answers(parts, form)


#: What this process has warned about.
_warned: dict[tuple[str, ...], object] = {}


def _warn_once(text: str, *about: str) -> None:
    """Warn for the first time only, also if several threads ask at once."""
    mine = object()
    if _warned.setdefault((text, *about), mine) is mine:
        log.warning(text, *about)


def _expected_cost(estimate: int | Callable[[Any], Any], item: Item) -> Decimal:
    """What a stage expects to pay for an item."""
    return Decimal(micros(estimate(item)) if callable(estimate) else estimate).scaleb(-6)


def _whole(answer: Any) -> Any:
    return answer.whole if isinstance(answer, Answers) else answer


def _cost(prices: Prices, model: str | None, estimate: Amount | None, answer: Any) -> Amount:
    """What the usage in an answer costs; what was expected if that cannot be known."""
    used = usage(_whole(answer))
    if used is None:
        _warn_once(
            "the answers of %s say nothing of the tokens they took: its calls count with their estimate, or with nothing; a "
            "stream of OpenAI says so with stream_options={'include_usage': True}",
            model or "a call that names no model",
        )
        return estimate or 0
    # The model in the answer may have a longer name than the one that was asked for.
    names = dict.fromkeys(name for name in (used.model, model) if name)
    for name in names:
        if (price := prices.price(replace(used, model=name))) is not None:
            return price
    _warn_once(
        "no price is known for %s: its calls count with their estimate, or with nothing; give prices=, or install "
        "genai-prices",
        next(iter(names), "a call that names no model"),
    )
    return estimate or 0


def _facts(model: str | None, answer: Any) -> Mapping[str, Any]:
    used = usage(_whole(answer))
    return {**({} if model is None else {"model": model}), **({} if used is None else used.facts)}


def _parser(parse: Any) -> Callable[[Any], Any] | None:
    """The function that makes a value of an answer; a type makes an instance."""
    if parse is None or (callable(parse) and not isinstance(parse, type) and get_origin(parse) is None):
        return parse
    declared = declared_type(parse, "parse")
    return None if declared is None else partial(declared.value, at="answer")
