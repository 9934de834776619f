"""The harness around the store of the test."""

from __future__ import annotations

import pytest
from support.harness import App

from holdfast.store import Store
from holdfast.testing import ManualClock


@pytest.fixture
def app(store: Store, clock: ManualClock) -> App:
    return App(store, clock)
