"""The spans that holdfast makes, with the API of OpenTelemetry. The program chooses the SDK, the sampler and the exporter.

A `holdfast.add` span is where an item comes from, or a `holdfast.discover` span if a source has found it: its `traceparent` is
kept with the item, and every attempt links to it. An attempt is a trace of its own, since it may begin days later. Texts of
errors are the ones that the store keeps, without secrets.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache, wraps
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, StatusCode, TraceFlags

from holdfast.model.error_fingerprint import describe
from holdfast.model.functions import is_async
from holdfast.model.outcome import RetryLater, Skip
from holdfast.model.paid_call import CallFacts
from holdfast.providers.model_request import ModelRequest
from holdfast.telemetry.attributes import BATCH_SIZE, Attributes
from holdfast.version import VERSION

#: The parent of a span that begins a trace.
NOWHERE = Context()
#: A span links to no more than this many others; SDKs keep about as many.
MOST_LINKS = 128
#: How long a child process waits for its spans to be exported before it answers.
FLUSH_SECONDS = 1.0

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def of_provider() -> Spans | None:
    """None if no provider was set: OpenTelemetry then has a stand-in, which makes no spans."""
    global _newest
    provider = trace.get_tracer_provider()
    if isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider)):
        return None
    if _newest is None or _newest.provider is not provider:
        _newest = Spans(provider)
    return _newest


def traceparent_of(span: Span) -> str | None:
    """The W3C form of a span's identity; None for a span that has none."""
    here = span.get_span_context()
    if not here.is_valid:
        return None
    return f"00-{trace.format_trace_id(here.trace_id)}-{trace.format_span_id(here.span_id)}-{here.trace_flags:02x}"


@lru_cache(maxsize=1024)
def read_traceparent(text: str | None) -> SpanContext | None:
    """The identity that a traceparent names; None if it names none."""
    found = _TRACEPARENT.fullmatch(text or "")
    if found is None:
        return None
    number, span, flags = (int(part, 16) for part in found.groups())
    named = SpanContext(number, span, is_remote=True, trace_flags=TraceFlags(flags))
    return named if named.is_valid else None


def say_failed(span: Span, error: str, traceback: str | None) -> None:
    """Mark a span as failed, with texts that are free of secrets."""
    if span.is_recording():
        kind, _, message = error.partition(": ")
        told = {"exception.type": kind, "exception.message": message, "exception.stacktrace": traceback or ""}
        span.add_event("exception", told)
        span.set_status(StatusCode.ERROR, error)


def destination(name: str, operation: str, kind: str) -> dict[str, str | int | float]:
    """What every span says about a pipeline, or a stage, in the words of message queues."""
    return {
        "messaging.system": "holdfast",
        "messaging.destination.name": name,
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }


@contextmanager
def attached(span: Span) -> Iterator[None]:
    """Make a span the current one. It goes on afterwards."""
    token = contexts.attach(trace.set_span_in_context(span))
    try:
        yield
    finally:
        contexts.detach(token)


class Spans:
    """Makes spans with the provider that the program has set."""

    attached = staticmethod(attached)
    destination = staticmethod(destination)
    say_failed = staticmethod(say_failed)
    traceparent_of = staticmethod(traceparent_of)

    def __init__(self, provider: trace.TracerProvider) -> None:
        self.provider = provider
        self._tracer = provider.get_tracer("holdfast", VERSION)
        self._flushing: threading.Thread | None = None

    @contextmanager
    def adding(self, pipeline: str, n: int | None) -> Iterator[None]:
        """The span of an `add`, current while it runs; `n` items, if that is known."""
        about = {"holdfast.pipeline": pipeline, **destination(pipeline, "add", "send")}
        if n is not None:
            about[BATCH_SIZE] = n
        with _current(self._tracer.start_span("holdfast.add", kind=SpanKind.PRODUCER, attributes=about)):
            yield

    @contextmanager
    def looking(self, pipeline: str, source: str) -> Iterator[LookSpan]:
        """The span of a look at a source, current while the source is read."""
        about = {"holdfast.pipeline": pipeline, "holdfast.source": source, **destination(pipeline, "discover", "send")}
        with _current(self._tracer.start_span("holdfast.discover", kind=SpanKind.PRODUCER, attributes=about)) as span:
            yield LookSpan(span, self.traceparent_here())

    def processing(self, name: str, about: Attributes, links: Sequence[tuple[str, Attributes | None]]) -> Span:
        """The span of a handler's call: it begins a trace. `links` are traceparents, with what to say about each."""
        found = [Link(added, its) for one, its in links if (added := read_traceparent(one)) is not None]
        return self._tracer.start_span(f"process {name}", NOWHERE, SpanKind.CONSUMER, about, found)

    def paid_call(self, name: str, request: ModelRequest | None) -> PaidCallSpan:
        """The span of a paid call, below the current one; of a model, if there is a `request`."""
        about = {} if request is None else _request(request)
        return PaidCallSpan(self._tracer.start_span(f"holdfast.once {name}", kind=SpanKind.CLIENT, attributes=about))

    def effect(self, of: SpanContext, function: Callable[..., Any]) -> Callable[..., Any]:
        """The effect of an attempt, in a span below that of the attempt."""
        parent = trace.set_span_in_context(NonRecordingSpan(of), NOWHERE)

        @wraps(function)
        def run(*args: Any) -> Any:
            with _current(self._tracer.start_span("holdfast.effect", parent)):
                return function(*args)

        return run

    def committing(self, attempts: Sequence[SpanContext], n: int) -> AbstractContextManager[Span]:
        """The span of a group commit: it begins a trace, with links to attempts that it ends."""
        links = [Link(one) for one in attempts[:MOST_LINKS]]
        return _current(self._tracer.start_span("holdfast.commit", NOWHERE, attributes={BATCH_SIZE: n}, links=links))

    def traceparent_here(self) -> str | None:
        """Of the current span, if it is sampled: a link to any other leads nowhere."""
        span = trace.get_current_span()
        return traceparent_of(span) if span.get_span_context().trace_flags.sampled else None

    @contextmanager
    def below(self, traceparent: str | None) -> Iterator[None]:
        """Spans that are made meanwhile are below a span of another process, and exported before this ends."""
        parent = read_traceparent(traceparent)
        if parent is None:
            yield
            return
        with trace.use_span(NonRecordingSpan(parent)):
            yield
        if parent.trace_flags.sampled:
            self._flush()

    def _flush(self) -> None:
        """Export what is queued: this process may be killed once it has answered. An exporter that hangs is waited for once."""
        flush = getattr(self.provider, "force_flush", None)
        if flush is None or (self._flushing is not None and self._flushing.is_alive()):
            return
        self._flushing = threading.Thread(target=flush, name="holdfast-flush", daemon=True)
        self._flushing.start()
        self._flushing.join(FLUSH_SECONDS)


#: That of the newest provider: to make another for each `add` would take longer than its span.
_newest: Spans | None = None


@contextmanager
def _current(span: Span) -> Iterator[Span]:
    """Make a span the current one, and end it."""
    try:
        with attached(span):
            yield span
    except BaseException as error:
        if not isinstance(error, (Skip, RetryLater)):
            say_failed(span, *describe(error))
        raise
    finally:
        span.end()


class LookSpan:
    """The span of one look at a source."""

    def __init__(self, span: Span, traceparent: str | None) -> None:
        self._span = span
        #: What is kept with the items, if the span is sampled.
        self.traceparent = traceparent

    def found(self, n: int) -> None:
        self._span.set_attribute(BATCH_SIZE, n)

    def failed(self, error: str) -> None:
        """`error` is free of secrets."""
        self._span.set_status(StatusCode.ERROR, error)


class PaidCallSpan:
    """The span of one paid call: it ends when its answer, and with it the price, is known."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with this span as the current one."""

        @wraps(function)
        def call(*args: Any) -> Any:
            with attached(self._span):
                return function(*args)

        @wraps(function)
        async def call_async(*args: Any) -> Any:
            with attached(self._span):
                return await function(*args)

        return call_async if is_async(function) else call

    def failed(self, error: BaseException) -> None:
        say_failed(self._span, *describe(error))
        self._span.end()

    def answered(self, cost: int | None, facts: CallFacts) -> None:
        """`cost` is in millionths."""
        if self._span.is_recording():
            self._span.set_attributes(_usage(facts))
            if cost is not None:
                self._span.set_attribute("holdfast.cost", cost / 1e6)
        self._span.end()


def _request(request: ModelRequest) -> Attributes:
    known = {
        "gen_ai.request.model": request.model,
        "gen_ai.provider.name": request.provider,
        "gen_ai.operation.name": request.operation,
    }
    return {name: value for name, value in known.items() if value}


def _usage(facts: CallFacts) -> Attributes:
    """Facts about a call in the words for models, without what is not known."""
    known: dict[str, str | int] = {
        "gen_ai.response.model": facts.model,
        "gen_ai.usage.input_tokens": facts.tokens_in,
        "gen_ai.usage.output_tokens": facts.tokens_out,
        "gen_ai.usage.cache_read.input_tokens": facts.tokens_cached,
    }
    return {name: value for name, value in known.items() if value}
