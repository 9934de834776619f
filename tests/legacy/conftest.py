"""The harness around the store of the test."""

from __future__ import annotations

import pytest

from holdfast.store import Store
from holdfast.testing import ManualClock
from tests.support.harness import App


@pytest.fixture
def app(store: Store, clock: ManualClock) -> App:
    return App(store, clock)
