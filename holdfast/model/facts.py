"""Facts: what a question finds out, by name, in the units of the store: microseconds and millionths."""

from __future__ import annotations

from typing import Any

Facts = dict[str, Any]
