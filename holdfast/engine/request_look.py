"""Request a look: a person has a source looked at now, by the next worker that has it."""

from __future__ import annotations

from holdfast.engine.layout import layout
from holdfast.engine.poll_sources import call_sources
from holdfast.engine.selection import Who
from holdfast.store import Transaction


def request_look(tx: Transaction, pipeline: str, source: str, who: Who) -> bool:
    """Make a source due now; False if it was due already, or a worker is looking at it."""
    is_new = bool(call_sources(tx, pipeline, [source]))
    tx.record("look_requested", pipeline=layout(tx).pipeline(pipeline).id, source=source, **who.facts)
    return is_new
