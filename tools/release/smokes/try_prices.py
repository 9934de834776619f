"""The price of a model is known without a table of one's own."""

from __future__ import annotations

from holdfast.providers.prices import Prices

assert Prices.read({}, where="smoke").knows("gpt-4o-mini")
print("prices: works")
