"""Whether this process traces. Without a tracer provider nothing of OpenTelemetry is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.telemetry.spans import LookSpan, Spans

#: Names a provider that OpenTelemetry loads itself.
PROVIDER_VARIABLE = "OTEL_PYTHON_TRACER_PROVIDER"


def tracing() -> Spans | None:
    """What makes spans, if the program has set a tracer provider."""
    if "opentelemetry.trace" not in sys.modules:
        # Nobody has set a provider.
        if PROVIDER_VARIABLE not in os.environ or find_spec("opentelemetry") is None:
            return None
    from holdfast.telemetry.spans import of_provider

    return of_provider()


@contextmanager
def adding(pipeline: str, items: Iterable[object]) -> Iterator[str | None]:
    """The span of an `add`, if the program traces. Yields what is kept with the items, if the span is sampled."""
    spans = tracing()
    if spans is None:
        yield None
    else:
        with spans.adding(pipeline, len(items) if isinstance(items, Sized) else None):
            yield spans.traceparent_here()


@contextmanager
def looking(pipeline: str, source: str) -> Iterator[LookSpan | None]:
    """The span of a look at a source, if the program traces."""
    spans = tracing()
    if spans is None:
        yield None
    else:
        with spans.looking(pipeline, source) as span:
            yield span
