"""Pipelines are found in files and modules; whatever is wrong there is told in one line with its place."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import DEFAULT_URL
from holdfast.errors import DefinitionError, StoreBroken
from holdfast.program_file import load

Write = Callable[[str, str], str]

ONE = """
from holdfast import Pipeline
{variable} = Pipeline({name!r}, store={store!r})

@{variable}.stage()
def work(item, ctx): ...
"""


def one(name: str = "one", store: str | None = None, variable: str = "one") -> str:
    return ONE.format(name=name, store=store, variable=variable)


def named_by(module: str) -> str:
    """A pipeline whose name comes from another module."""
    return f"from {module} import NAME\n" + one().replace("'one'", "NAME")


def test_the_main_block_of_a_file_is_not_run(books: str) -> None:
    loaded = load(books, None)
    url, [spec] = loaded.url, loaded.specs
    assert (url, spec.name, [stage.name for stage in spec.stages]) == (DEFAULT_URL, "books", ["extract", "chunk"])


def test_a_file_may_import_its_neighbours(write: Write) -> None:
    write("neighbour_of_a_pipeline.py", "NAME = 'named-by-a-neighbour'")
    file = write("uses.py", named_by("neighbour_of_a_pipeline"))
    assert load(file, None).specs[0].name == "named-by-a-neighbour"


def test_a_module_is_named_with_dots(write: Write) -> None:
    Path("shelf_of_modules").mkdir()
    write("shelf_of_modules/__init__.py", "")
    write("shelf_of_modules/names.py", "NAME = 'dotted'")
    write("shelf_of_modules/flow.py", named_by(".names"))
    assert load("shelf_of_modules.flow", None).specs[0].name == "dotted"


def test_a_file_in_a_package_may_import_relatively(write: Write) -> None:
    Path("shelf_of_files").mkdir()
    write("shelf_of_files/__init__.py", "")
    write("shelf_of_files/names.py", "NAME = 'relative'")
    write("shelf_of_files/flow.py", named_by(".names"))
    assert load("shelf_of_files/flow.py", None).specs[0].name == "relative"


def test_a_file_named_like_a_library_does_not_replace_it(write: Write) -> None:
    import queue

    assert load(write("queue.py", one()), None).specs[0].name == "one"
    assert sys.modules["queue"] is queue


def test_all_pipelines_of_a_file_are_taken_once(write: Write) -> None:
    text = one("first") + "same = one\n" + one("second", variable="two")
    assert [spec.name for spec in load(write("two.py", text), None).specs] == ["first", "second"]


def test_the_store_is_the_one_given_then_the_files_then_the_environments_then_the_default(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = write("silent.py", one())
    naming = write("naming.py", one(store="sqlite:///of-the-file.db"))
    assert load(silent, None).url == DEFAULT_URL
    assert load(naming, None).url == "sqlite:///of-the-file.db"
    monkeypatch.setenv("HOLDFAST_URL", "sqlite:///of-the-environment.db")
    assert load(silent, None).url == "sqlite:///of-the-environment.db"
    assert load(naming, None).url == "sqlite:///of-the-file.db"
    assert load(silent, "sqlite:///given.db").url == load(naming, "sqlite:///given.db").url == "sqlite:///given.db"


#: Every command that has a FILE, as it is called without a store.
WITH_FILE = ["add FILE a", "run FILE", "reprocess FILE --stale", "accept FILE"]


def test_plan_asks_the_store_that_the_file_names(lite: Any, write: Write) -> None:
    """It changes nothing, so what tells is which store has to be there."""
    file = write("naming.py", one(store="sqlite:///of-the-file.db"))
    assert "of-the-file.db" in lite("plan", file, code=5).stderr
    lite("db", "upgrade", "--store", "sqlite:///of-the-file.db")
    lite("plan", file)
    assert "given.db" in lite("plan", file, "--store", "sqlite:///given.db", code=5).stderr


@pytest.mark.parametrize("command", WITH_FILE)
def test_every_command_with_a_file_takes_the_store_that_the_file_names(command: str, lite: Any, write: Write) -> None:
    """Also where HOLDFAST_URL names another one; only --store counts more."""
    file = write("naming.py", one(store="sqlite:///of-the-file.db"))
    args = [file if word == "FILE" else word for word in command.split()]
    for given in ([], ["--store", "sqlite:///given.db"]):
        used = "given.db" if given else "of-the-file.db"
        lite("db", "upgrade", "--store", f"sqlite:///{used}")
        lite(*args, *given)
        known = [pipeline["name"] for pipeline in lite.json("status", "--store", f"sqlite:///{used}")["pipelines"]]
        assert known == ["one"]
        assert not Path("../store.db").exists()
        Path(used).unlink()


WITHOUT_FILE = [["status"], ["items"], ["events"], ["costs"], ["db", "check"], ["doctor"]]


@pytest.mark.parametrize("command", WITHOUT_FILE)
def test_every_other_command_takes_the_store_given_then_the_environments(
    command: list[str], lite: Any, books: str
) -> None:
    lite("add", books, "a")
    lite(*command)
    assert "other.db does not exist" in lite(*command, "--store", "sqlite:///other.db", code=5).stderr
    lite("db", "upgrade", "--store", DEFAULT_URL)
    type(lite)("")(*command)


def test_help_says_which_store_is_taken(lite: Any) -> None:
    assert "what FILE names, then $HOLDFAST_URL, then sqlite:///holdfast.db" in " ".join(
        lite("run", "--help").stdout.split()
    )
    said = " ".join(lite("status", "--help").stdout.split())
    assert "[default: $HOLDFAST_URL, then sqlite:///holdfast.db]" in said


def test_an_address_that_is_no_text_is_wrong_usage(lite: Any) -> None:
    done = lite.process("status", env={"HOLDFAST_URL": "sqlite:///caf\udce9.db"}, anew=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "is not valid UTF-8" in done.stderr


def test_the_database_speaks_for_itself_while_a_file_is_imported(write: Write) -> None:
    file = write("adds.py", one(store="sqlite:////no/such/folder/x.db") + "one.add(['a'])")
    with pytest.raises(StoreBroken, match="/no/such/folder"):
        load(file, None)


WRONG = {
    "a name that is not there": (
        "import os\nnot_there()\n",
        "wrong.py, line 2: NameError: name 'not_there' is not defined",
    ),
    "a module that is not there": (
        "\nimport not_there_at_all\n",
        "wrong.py, line 2: ModuleNotFoundError: No module named 'not_there_at_all'",
    ),
    "a syntax error": ("x = 1\ny = = 2\n", "wrong.py, line 2: SyntaxError: invalid syntax"),
    "an exit": ("import sys\nsys.exit(0)\n", "wrong.py, line 2: it ends the program when imported"),
    "no pipeline": ("x = 1\n", "wrong.py has no pipeline"),
    "two of one name": (one() + "other = Pipeline('one')\n", "wrong.py has two pipelines named 'one'"),
    "two places for blobs": (
        one("a").replace("store=None", "blobs='s3://a'")
        + one("b", None, "two").replace("store=None", "blobs='s3://b'"),
        "the pipelines of wrong.py keep blobs at different addresses",
    ),
    "two stores": (
        one("a", "sqlite:///a.db") + one("b", "sqlite:///b.db", "two"),
        "the pipelines of wrong.py name different stores",
    ),
    "no stages": ("from holdfast import Pipeline\nx = Pipeline('x')\n", "wrong.py: pipeline 'x' has no stages"),
    "a wrong signature": (
        one().replace("(item, ctx)", "(item)"),
        "wrong.py, line 5: stage 'work': work(item) cannot be called as work(item, ctx)",
    ),
    "a wrong length of time": (
        one().replace("stage()", "stage(timeout='soon')"),
        "wrong.py, line 5: timeout: 'soon' is not a length of time",
    ),
    "an unknown stage before it": (
        one().replace("stage()", "stage(after='nobody')"),
        "wrong.py: pipeline 'one': stage 'work' comes after 'nobody', which does not exist",
    ),
    "a circle": (
        one().replace("stage()", "stage(after='rest')") + "@one.stage(after='work')\ndef rest(item, ctx): ...\n",
        "wait for each other in a cycle",
    ),
    "a neighbour that fails": (
        "import neighbour_that_fails\n",
        "neighbour_that_fails.py, line 1: ZeroDivisionError: division by zero",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_file_is_told_with_its_place(what: str, lite: Any, write: Write) -> None:
    """One line, exit code 4, no traceback, and no store was made."""
    text, said = WRONG[what]
    write("neighbour_that_fails.py", "1 / 0\n")
    file = write("wrong.py", text)
    result = lite("run", file, code=4)
    assert said in result.stderr
    assert result.stderr.startswith("holdfast: ") and result.stderr.count("\n") == 1
    assert not list(Path("..").glob("store.db*"))


@pytest.mark.parametrize("file", ["nobody.py", "nobody.knows.this", "folder/", "no-module", "not there"])
def test_a_file_that_is_not_there_is_exit_code_4(file: str, lite: Any) -> None:
    Path("folder").mkdir()
    result = lite("run", file, code=4)
    assert file.rstrip("/") in result.stderr and result.stderr.count("\n") == 1


def test_an_empty_exception_is_told_by_its_name(write: Write) -> None:
    with pytest.raises(DefinitionError, match=r"line 1: AssertionError$"):
        load(write("empty.py", "assert False"), None)


@pytest.mark.req("P13")
def test_the_place_for_kept_content_comes_from_the_file(write: Write, tmp_path: Path) -> None:
    python = write("one.py", one().replace("store=None", "blobs='kept'"))
    yaml = write("one.yaml", "blobs: kept\npipelines: {one: {stages: {work: {handler: one.work}}}}\n")
    for file in (python, yaml):
        url = f"sqlite:///{tmp_path / file}.db"
        with load(file, url).open() as app:
            app.upgrade()
            assert Path(app._blobs.where).parent == Path("kept").resolve()
