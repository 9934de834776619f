"""A library written once, and what becomes of it if nothing happens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from examples.documents.fakes.fake_model import FakeModel
from tests.examples.documents_scene import Scene, model_on, write_books
from tests.examples.documents_workers import Workers
from tests.examples.fiction_processes import Crew
from tests.examples.fiction_scene import scene_on as fiction_on
from tests.support.steps import own_tables_beside, quick_url


@pytest.fixture(scope="session")
def books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the three books."""
    return write_books(tmp_path_factory.mktemp("library") / "books")


@pytest.fixture(scope="session")
def undisturbed(books: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of a run in which nothing went wrong."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with model_on(folder, fail_every=0, limit_every=0) as model:
        scene = Scene(f"sqlite:///{folder / 'store.db'}", books, model)
        scene.add()
        scene.run()
        rows = scene.rows()
        scene.judge(rows)
        scene.close()
    return rows


@pytest.fixture
def model(tmp_path: Path) -> Iterator[FakeModel]:
    with model_on(tmp_path) as model:
        yield model


@pytest.fixture
def scene_on(
    database: str, books: Path, model: FakeModel, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Scene]]:
    """Makes a scene on a store of its own; `books=` names other books."""
    with ExitStack() as stack:
        if database == "postgres":
            stack.enter_context(pytest.MonkeyPatch.context()).setenv("HOLDFAST_BLOBS", str(tmp_path / "blobs"))
        url = own_tables_beside(stack.enter_context(quick_url(database, request)))

        def make(**changes: Any) -> Scene:
            scene = Scene(url, changes.pop("books", books), model, **changes)
            stack.callback(scene.close)
            return scene

        yield make


@pytest.fixture
def scene(scene_on: Callable[..., Scene]) -> Scene:
    scene = scene_on()
    scene.add()
    return scene


@pytest.fixture
def workers(tmp_path: Path, model: FakeModel) -> Workers:
    return Workers(tmp_path, model.url)


# A writer's database --------------------------------------------------------------------------------------------------


@pytest.fixture
def crew_on(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Crew]]:
    """Makes processes of examples.fiction on a database of their own, made with these guards."""
    with ExitStack() as stack:

        def make(*arguments: str, **settings: int) -> Crew:
            scene = stack.enter_context(fiction_on(database, request, *arguments, **settings))
            crew = Crew(scene, tmp_path)
            stack.callback(crew.end)
            return crew

        yield make
