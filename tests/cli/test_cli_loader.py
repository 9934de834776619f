"""Pipelines are found in files and modules; whatever is wrong there is told in one line with its place."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import DEFAULT_URL
from holdfast.cli.loader import load
from holdfast.errors import DefinitionError, StoreBroken

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
    url, [spec] = load(books, None)
    assert (url, spec.name, [stage.name for stage in spec.stages]) == (DEFAULT_URL, "books", ["extract", "chunk"])


def test_a_file_may_import_its_neighbours(write: Write) -> None:
    write("neighbour_of_a_pipeline.py", "NAME = 'named-by-a-neighbour'")
    file = write("uses.py", named_by("neighbour_of_a_pipeline"))
    assert load(file, None)[1][0].name == "named-by-a-neighbour"


def test_a_module_is_named_with_dots(write: Write) -> None:
    Path("shelf_of_modules").mkdir()
    write("shelf_of_modules/__init__.py", "")
    write("shelf_of_modules/names.py", "NAME = 'dotted'")
    write("shelf_of_modules/flow.py", named_by(".names"))
    assert load("shelf_of_modules.flow", None)[1][0].name == "dotted"


def test_a_file_in_a_package_may_import_relatively(write: Write) -> None:
    Path("shelf_of_files").mkdir()
    write("shelf_of_files/__init__.py", "")
    write("shelf_of_files/names.py", "NAME = 'relative'")
    write("shelf_of_files/flow.py", named_by(".names"))
    assert load("shelf_of_files/flow.py", None)[1][0].name == "relative"


def test_a_file_named_like_a_library_does_not_replace_it(write: Write) -> None:
    import queue

    assert load(write("queue.py", one()), None)[1][0].name == "one"
    assert sys.modules["queue"] is queue


def test_all_pipelines_of_a_file_are_taken_once(write: Write) -> None:
    text = one("first") + "same = one\n" + one("second", variable="two")
    assert [spec.name for spec in load(write("two.py", text), None)[1]] == ["first", "second"]


def test_a_store_given_counts_more_than_one_in_the_file(write: Write) -> None:
    file = write("stored.py", one(store="sqlite:///of-the-file.db"))
    assert load(file, None)[0] == "sqlite:///of-the-file.db"
    assert load(file, "sqlite:///given.db")[0] == "sqlite:///given.db"


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
        "wait for each other in a circle",
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
    given = lite if what != "two stores" else type(lite)("")
    result = given("run", file, code=4)
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
