"""How much a test does: enough to notice what is wrong, or as much as was ever promised (`make testall`)."""

from __future__ import annotations

import os

VARIABLE = "HOLDFAST_THOROUGH"


def effort(usual: int, thorough: int) -> int:
    """How often, how many: as usual, or with HOLDFAST_THOROUGH=1 all of it."""
    return thorough if os.environ.get(VARIABLE) == "1" else usual
