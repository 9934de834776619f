"""The harness around the store of the test; and workers of two versions on it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast.store import Store
from holdfast.testing import ManualClock
from tests.support.harness import App
from tests.support.ledger import Ledger
from tests.support.processes import WorkerProcess
from tests.support.two_versions import Start
from tools import old_version


@pytest.fixture
def app(store: Store, clock: ManualClock) -> App:
    return App(store, clock)


@pytest.fixture
def url(bare_url: str) -> str:
    """Tables are what these tests are about: each begins without any."""
    return bare_url


# Two versions ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def old_code() -> Path:
    try:
        return old_version.old_code()
    except old_version.NoHistory as error:
        pytest.skip(f"NO TEST OF UPGRADES BESIDE AN OLD WORKER: {error}")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def start(url: str, ledger: Ledger, tmp_path: Path) -> Iterator[Start]:
    """Start a worker by the code in a folder, which first adds books and covers."""
    started: list[WorkerProcess] = []

    def start(
        code: Path,
        books: list[Any],
        covers: list[Any] | None = None,
        *,
        notes: str = "",
        far: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> WorkerProcess:
        said = tmp_path / f"said-{len(started)}"
        command = old_version.command("work", url, ledger.path, code)
        command += ["--books", json.dumps(books), "--covers", json.dumps(covers or []), "--notes", notes]
        command += ["--far"] * far
        whole = {**old_version.environment(code), **(environment or {})}
        started.append(WorkerProcess.spawned(command, whole, said, url))
        return started[-1]

    yield start
    for worker in started:
        worker.kill()
