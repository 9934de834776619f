"""Functions by full dotted path: found beside the job file, imported once, and what is wrong with them told with a place."""

from __future__ import annotations

import pytest

from tests.jobfile.conftest import MODULE, Folder

pytestmark = pytest.mark.req("J15")


def text(handler: str, more: str = "") -> str:
    return f"pipelines:\n  books:\n    stages:\n      extract: {{handler: '{handler}'}}\n{more}"


def test_a_function_is_named_with_dots_and_what_lies_deeper_with_a_colon(folder: Folder) -> None:
    (folder.path / "wing").mkdir()
    (folder.path / "wing" / "__init__.py").write_text("")
    (folder.path / "wing" / "room.py").write_text("def put(item, ctx): ...\n")
    (folder.path / "annex").mkdir()
    (folder.path / "annex" / "room.py").write_text("def put(item, ctx): ...\n")
    for path, module, name in (
        ("shelf.extract", "shelf", "extract"),
        ("shelf:extract", "shelf", "extract"),
        ("wing.room.put", "wing.room", "put"),
        ("annex.room.put", "annex.room", "put"),
        ("shelf:shelf.put", "shelf", "put"),
    ):
        [stage] = folder.load(text(path)).pipelines[0].stages
        assert (stage.handler.__module__, stage.handler.__name__) == (module, name)


def test_a_module_is_imported_once_however_often_it_is_named(folder: Folder) -> None:
    more = "      chunk: {handler: shelf.chunk, after: extract}\n    merge: shelf.newest\n"
    first = folder.load(text("shelf.extract", more))
    again = folder.load(text("shelf.extract", more))
    assert folder.imports == 1
    assert first.pipelines == again.pipelines


def test_a_module_that_fails_is_run_once_and_told_at_every_place_that_names_it(folder: Folder) -> None:
    marked = MODULE + "\n\ndef f():\n    return 1 / 0\n\n\nf()\n"
    (folder.path / "broken_shelf.py").write_text(marked)
    line = marked.splitlines().index("    return 1 / 0") + 1
    said = folder.wrong(text("broken_shelf.f", "      chunk: {handler: broken_shelf.g, after: extract}\n"))
    place = f"{folder.path}/broken_shelf.py, line {line}"
    what = f"module 'broken_shelf' cannot be imported: {place}: ZeroDivisionError: division by zero"
    assert said == [
        f"4:26: pipelines.books.stages.extract.handler: {what}",
        f"5:24: pipelines.books.stages.chunk.handler: {what}",
    ]
    assert folder.imports == 1


WRONG = {
    "shelf.extrct": "'shelf' (of {folder}/shelf.py) has no 'extrct', did you mean 'extract'?",
    "shelf.zzz": "'shelf' (of {folder}/shelf.py) has no 'zzz', expected the name of a function in it",
    "shelf:shelf.putt": "'shelf.shelf' has no 'putt', did you mean 'put'?",
    "shelf.LIMIT": "'shelf.LIMIT' is of type int, expected a function",
    "shelf.only_item": "only_item(item) cannot be called as only_item(item, ctx); a handler takes these two",
    "shelf.Shelf.put": "there is no module 'shelf.Shelf', expected package.module.name, or shelf:Shelf.name for what lies",
    "nowhere.at.all": "there is no module 'nowhere', expected the full dotted path of a function",
    "ends.main": "module 'ends' cannot be imported: {folder}/ends.py, line 2: it ends the program when imported",
    "misspelled.main": "module 'misspelled' cannot be imported: {folder}/misspelled.py, line 1: SyntaxError: ",
    "lacking.main": "module 'lacking' cannot be imported: {folder}/lacking.py, line 1: ModuleNotFoundError: No module named",
    "lazy.main": "lazy.main cannot be read: {folder}/lazy.py, line 2: RuntimeError: not today",
    "shelf.chunk_of_yields": "'shelf' (of {folder}/shelf.py) has no 'chunk_of_yields'",
    "yields.pages": "pages yields; a handler returns its result",
}

MODULES = {
    "ends.py": "import sys\nsys.exit(0)\n",
    "misspelled.py": "def main(:\n",
    "lacking.py": "import not_there_at_all\n",
    "lazy.py": "def __getattr__(name):\n    raise RuntimeError('not today')\n",
    "yields.py": "def pages(item, ctx):\n    yield 1\n",
}


@pytest.mark.parametrize("path", WRONG)
def test_a_wrong_handler_is_told_with_the_place_of_its_path_and_the_line_of_the_error(
    path: str, folder: Folder
) -> None:
    for name, code in MODULES.items():
        (folder.path / name).write_text(code)
    [line] = folder.wrong(text(path))
    assert line.startswith(f"4:26: pipelines.books.stages.extract.handler: {WRONG[path].format(folder=folder.path)}")


def test_every_other_function_is_checked_as_well(folder: Folder) -> None:
    said = folder.wrong(
        "resources: {gemini: {}}\n"
        "pipelines:\n  books:\n    stages:\n"
        "      extract: {handler: shelf.extract, normalise: shelf.cleen, resource: gemini, estimate: shelf.estimat,\n"
        "                units: {tokens: shelf.count_token}}\n"
        "    merge: shelf.quiet\n"
        "    tuning: {guards: {handler: [shelf.quiet, shelf.quite]}}\n"
    )
    assert [line.partition(", ")[0].replace(f" (of {folder.path}/shelf.py)", "") for line in said] == [
        "5:52: pipelines.books.stages.extract.normalise: 'shelf' has no 'cleen'",
        "5:93: pipelines.books.stages.extract.estimate: 'shelf' has no 'estimat'",
        "6:33: pipelines.books.stages.extract.units.tokens: 'shelf' has no 'count_token'",
        "7:12: pipelines.books.merge: the function cannot be called as merge(old",
        "8:46: pipelines.books.tuning.guards.handler: 'shelf' has no 'quite'",
    ]


def test_an_interruption_while_importing_is_not_an_error_of_the_file(folder: Folder) -> None:
    (folder.path / "interrupted.py").write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        folder.load(text("interrupted.main"))
