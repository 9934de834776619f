"""How long a failed attempt waits before the next: exponential, with full jitter."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from holdfast.errors import DefinitionError


@dataclass(frozen=True, slots=True)
class Backoff:
    """After attempt n: anywhere between zero and `first_seconds` × `factor`ⁿ⁻¹, at most `most_seconds`.

    The whole delay is drawn at random, so that items that failed together are not retried together.
    """

    first_seconds: float = 2.0
    factor: float = 2.0
    most_seconds: float = 600.0

    def __post_init__(self) -> None:
        settings = (self.first_seconds, self.factor, self.most_seconds)
        if not all(isinstance(value, (int, float)) and math.isfinite(value) for value in settings):
            raise DefinitionError(f"backoff {self}: lengths and the factor are finite numbers")
        if self.first_seconds < 0 or self.factor < 1 or self.most_seconds < 0:
            raise DefinitionError(f"backoff {self}: lengths are zero or more, and the factor is at least 1")

    def ceiling(self, attempt: int) -> float:
        """The longest wait after this attempt."""
        try:
            return min(self.most_seconds, self.first_seconds * float(self.factor) ** (attempt - 1))
        except OverflowError:
            return self.most_seconds if self.first_seconds else 0.0

    def delay(self, attempt: int, rng: random.Random) -> float:
        """Seconds until the next attempt."""
        return rng.uniform(0.0, self.ceiling(attempt))
