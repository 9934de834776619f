"""Money on its way out: never a float. In JSON a decimal text, and beside it whole millionths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.cli.output import Facts
from holdfast.model.money import decimal, spoken


def exact(micros: int) -> str:
    """`0.4`, `12`, `0.000001`: every digit, and no more."""
    return f"{decimal(micros):f}"


def aligned(amounts: Sequence[int]) -> list[str]:
    """A column for people: as many digits after the point in each as the finest needs, but two at least."""
    finest = max((-int(decimal(one).normalize().as_tuple().exponent) for one in amounts), default=0)
    return [f"{decimal(one):,.{max(finest, 2)}f}" for one in amounts]


def priced(facts: Mapping[str, Any], *names: str) -> Facts:
    """A copy in which the amounts of these names are texts, with the millionths beside them as NAME_micros."""
    told: Facts = {}
    for name, value in facts.items():
        told[name] = exact(value) if name in names and value is not None else value
        if name in names:
            told[f"{name}_micros"] = value
    return told


def about(micros: int, spread: float = 0.0) -> str:
    """A forecast for people: `400.00 ± 12.00`. What is uncertain has two digits that mean something."""
    digits = 2 - len(str(round(spread)))
    around = int(round(spread, min(digits, 0)))
    return f"{spoken(micros)} ± {spoken(around)}" if around else spoken(micros)
