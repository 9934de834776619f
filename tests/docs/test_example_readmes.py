"""The READMEs of the four examples work as they are printed, from a fresh clone to the last command, on both databases."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import typist
from tests.support.cluster import USER, Cluster
from tests.support.effort import effort
from tests.support.environments import make_environment
from tests.support.typist import Command, Page, Typed, Typist

ROOT = Path(__file__).resolve().parents[2]
PAGES = {page.parent.name: page for page in sorted((ROOT / "examples").glob("*/README.md"))}
#: What each begins with, in its own block: typed once, for all of them.
INSTALL = ["python3 -m venv .venv", ". .venv/bin/activate", "pip install -e '.[examples]'"]
INSTALL_SECONDS = 280.0
#: Of a reader's own, or of ours: none of it is in the environment of a fresh clone.
NOT_OURS = ("CURATION_", "DOCUMENTS_", "FICTION_", "HOLDFAST_", "NEWSROOM_", "PG", "PYTHON", "VIRTUAL_ENV")
#: What pip says where there is no network.
NO_NETWORK = re.compile(
    r"NewConnectionError|Name or service not known|name resolution|Network is unreachable|connect to proxy"
)

#: What shortens the waiting, and a free port in place of the one in the README: each is in its table of settings.
SETTINGS = {
    "curation": {"CURATION_VIA": "127.0.0.1:{port}", "CURATION_POLL": "0.2s", "CURATION_FIRST_PAUSE": "0.1"},
    "documents": {"DOCUMENTS_MODEL_URL": "http://127.0.0.1:{port}/v1", "DOCUMENTS_FIRST_PAUSE": "0.1s"},
    "fiction": {"FICTION_PACE": "0.02s", "FICTION_POLL": "0.1s", "FICTION_RETRY": "0.1s"},
    "newsroom": {"NEWSROOM_SITE": "http://127.0.0.1:{port}"},
}

pytestmark = pytest.mark.together("readmes")


def clean_environment() -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(NOT_OURS)}
    # The Python of these tests, as it is without their packages, of which it then compiles only what is used.
    return {
        **clean,
        "PATH": f"{Path(sys.base_prefix) / 'bin'}:{os.environ['PATH']}",
        "PIP_QUIET": "1",
        "PIP_NO_COMPILE": "0",
    }


@pytest.fixture(scope="module")
def clone() -> Iterator[Path]:
    """A fresh clone of what is here, also if it is not committed yet, after the first block of a README. What that block
    installs is linked from the environment of these tests, all of it and nothing else; `make testall` types the block."""
    is_typed = bool(effort(0, 1))
    if is_typed and importlib.util.find_spec("ensurepip") is None:
        pytest.skip("this Python cannot make an environment with pip: it has no ensurepip")
    listing = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listing.returncode:
        pytest.skip(f"this is no clone: {listing.stderr.strip()}")
    with tempfile.TemporaryDirectory(prefix="hf-clone-") as folder:
        root = Path(folder)
        for name in filter(None, listing.stdout.split("\0")):
            if (ROOT / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, root / name)
        if is_typed:
            install(root)
        else:
            make_environment(root / ".venv", root, "examples")
        yield root


def install(root: Path) -> None:
    """As a reader does it."""
    typed = Typist(root, clean_environment()).type([Command(text) for text in INSTALL], INSTALL_SECONDS)
    last = typed[-1]
    if last.code and NO_NETWORK.search("\n".join(last.printed)):
        pytest.skip("there is no network to install packages from")
    assert last.command.text == INSTALL[-1] and last.code == 0, last


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    """A PostgreSQL of the reader's own, with the programs that come with it: how its clients find it."""
    with Cluster() as cluster:
        yield {
            "PGHOST": str(cluster.folder),
            "PGUSER": USER,
            "PATH": f"{clean_environment()['PATH']}:{cluster.programs}",
        }


@pytest.fixture
def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_the_first_block_of_every_readme_installs_what_it_needs(clone: Path):
    first = {name: [one.text for one in Page(page).commands[: len(INSTALL)]] for name, page in PAGES.items()}
    assert first == dict.fromkeys(PAGES, INSTALL)
    assert (clone / ".venv" / "bin" / "holdfast").exists()


@pytest.mark.req("J21", "S6", "F8", "D3")
@pytest.mark.parametrize("name", PAGES)
def test_every_command_of_the_readme_works_and_prints_what_the_page_shows(
    name: str, database: str, clone: Path, free_port: int, request: pytest.FixtureRequest
):
    environment = {**clean_environment(), **{key: text.format(port=free_port) for key, text in SETTINGS[name].items()}}
    if database == "postgres":
        environment |= request.getfixturevalue("server")
    commands = Page(PAGES[name]).commands[len(INSTALL) :]
    mine = [one for one in commands if database == "postgres" or not one.on_postgres_only]
    there = set(clone.iterdir())
    port = free_port if any("{port}" in text for text in SETTINGS[name].values()) else None
    try:
        typed = Typist(clone, environment, port).type([Command(". .venv/bin/activate"), *mine])
    finally:
        for made in set(clone.iterdir()) - there:
            shutil.rmtree(made) if made.is_dir() else made.unlink()
    wrong = [one for one in typed if not one.is_as_printed]
    assert not wrong, _told(wrong[0])
    assert typed[-1].command == mine[-1], _told(typed[-1])


def _told(one: Typed) -> str:
    shown = "\n".join(one.command.expected)
    return f"$ {one.command.text}\nexit code {one.code}\n" + "\n".join(one.printed) + f"\nshown on the page:\n{shown}"


def test_a_page_that_goes_wrong_or_leaves_something_running_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(typist, "END_SECONDS", 0.5)
    page = tmp_path / "page.md"

    def typed(text: str) -> list[Typed]:
        page.write_text(text)
        return Typist(tmp_path, clean_environment()).type(Page(page).commands)

    right = "```console\n$ false\n$ echo $?\n1\n$ false\n$ echo it took 3.2 s\nit took 9 ms\n```\n"
    assert [one.is_as_printed for one in typed(right)] == [True] * 4
    wrong, other = "```console\n$ echo one\ntwo\n```\n", "```sh\nfalse\ntrue\n```\n"
    assert [[one.is_as_printed for one in typed(text)] for text in (wrong, other)] == [[False], [False]]
    assert typed("```\nfalse\n```\n") == []
    with pytest.raises(AssertionError, match="left running"):
        typed("```sh\nsleep 1000 &\n```\n")
    assert typed("```sh\nsleep 1000 &\nkill %1\n```\n")[-1].code == 0
