"""`holdfast check` and `holdfast schema`, and every command that takes a job file: what is wrong, where, and exit codes."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.jobfile import JobFileError, schema
from holdfast.program_file import load
from tests.jobfile.test_reading import HOSTILE
from tests.support.together import wait_for

Write = Callable[[str, str], str]

HANDLERS = """
import pathlib

(pathlib.Path(__file__).parent / "imported").touch()

def extract(item, ctx):
    return {"n": len(item.key)}

async def chunk(item, ctx):
    return {"chunks": ctx.result("extract")}
"""

JOB = """\
pipelines:
  books:
    stages:
      extract: {handler: %s.extract, version: "1"}
      chunk: {handler: %s.chunk, after: extract}
"""


@pytest.fixture(autouse=True)
def formatters_as_they_were() -> Iterator[None]:
    """Commands that run in this process mask its logs."""
    before = {handler: handler.formatter for handler in logging.getLogger().handlers}
    yield
    for handler, formatter in before.items():
        handler.setFormatter(formatter)


NOWHERE = "there is no module 'nowhere', expected the full dotted path of a function, as in books.extract"


@pytest.fixture
def job(write: Write, request: pytest.FixtureRequest) -> str:
    """A job file, and beside it a module of a name that no other test has."""
    name = f"handlers_{abs(hash(request.node.name))}"
    write(f"{name}.py", HANDLERS)
    return write("books.yaml", JOB % (name, name))


def touched() -> list[str]:
    """What a command left behind: a store, or the mark of a module that was run."""
    return [str(path) for path in (*Path("..").glob("store.db*"), *Path().glob("*.db*"), *Path().glob("imported"))]


@pytest.mark.req("J15")
def test_a_job_file_in_order_is_said_to_be(job: str, lite: Any) -> None:
    assert lite("check", job).stdout == "books.yaml is in order.\n  books: extract, chunk\n"
    assert lite.json("check", job) == {
        "file": "books.yaml",
        "ok": True,
        "errors": [],
        "pipelines": [{"name": "books", "stages": ["extract", "chunk"]}],
        "loops": [],
    }
    assert not [name for name in touched() if "db" in name], "no store is touched"


@pytest.mark.req("J15")
def test_all_that_is_wrong_is_printed_a_line_each_with_exit_code_4(write: Write, lite: Any) -> None:
    file = write("wrong.yaml", JOB.replace("version", "verison") % ("nowhere", "nowhere") + "stor: x\n")
    result = lite("check", file, code=4)
    assert result.stdout.splitlines() == [
        f"wrong.yaml:4:26: pipelines.books.stages.extract.handler: {NOWHERE}",
        "wrong.yaml:4:43: pipelines.books.stages.extract.verison: the key 'verison' is unknown, did you mean 'version'?",
        f"wrong.yaml:5:24: pipelines.books.stages.chunk.handler: {NOWHERE}",
        "wrong.yaml:6:1: stor: the key 'stor' is unknown, did you mean 'store'?",
    ]
    assert result.stderr == ""
    answer = lite.json("check", file, code=4)
    assert (answer["ok"], answer["pipelines"], len(answer["errors"])) == (False, [], 4)
    assert answer["errors"][3] == {
        "file": "wrong.yaml",
        "line": 6,
        "column": 1,
        "path": "stor",
        "what": "the key 'stor' is unknown, did you mean 'store'?",
    }


def test_a_python_file_can_be_checked_too(books: str, write: Write, lite: Any) -> None:
    assert lite("check", books).stdout == "books.py is in order.\n  books: extract, chunk\n"
    wrong = write("wrong.py", "from holdfast import Pipeline\nx = Pipeline('x', resources={'a': {'rate': 'often'}})\n")
    [line] = lite("check", wrong, code=4).stdout.splitlines()
    assert line.startswith("wrong.py, line 2: pipeline 'x': resources: a: rate: 'often' is not a rate")
    [error] = lite.json("check", wrong, code=4)["errors"]
    assert error["what"] == line


FILMS = """
from holdfast import Pipeline

films = Pipeline("films")


@films.stage(resource="gemini")
def watch(item, ctx): ...
"""
SHARED = f"""{FILMS}

books = Pipeline("books", resources={{"gemini": {{"budget": "1.00"}}}})


@books.stage(resource="gemini")
def extract(item, ctx): ...
"""
UNDEFINED = (
    "pipeline 'films', stage 'watch': resource 'gemni' is not defined, did you mean 'gemini'? To define it: Pipeline("
)


@pytest.mark.req("J14")
@pytest.mark.parametrize("command", ["check FILE", "run FILE", "worker FILE", "add FILE a --pipeline books"])
def test_a_resource_that_no_pipeline_of_a_file_defines_is_refused_in_one_line_and_no_store_is_made(
    command: str, write: Write, lite: Any, tmp_path: Path
) -> None:
    right = write("right.py", SHARED)
    wrong = write("wrong.py", SHARED.replace('films.stage(resource="gemini"', 'films.stage(resource="gemni"'))
    assert lite("check", right).stdout.startswith("right.py is in order.")
    result = lite(*(wrong if word == "FILE" else word for word in command.split()), code=4)
    [line] = (result.stdout or result.stderr).splitlines()
    assert UNDEFINED in line
    assert [one.name for one in tmp_path.iterdir()] == ["here"]


@pytest.mark.req("J14")
def test_a_check_with_a_store_counts_the_resources_that_the_store_defines(write: Write, lite: Any) -> None:
    lite("add", write("books.py", SHARED), "a", "--pipeline", "books")
    film = write("film.py", FILMS)
    assert "resource 'gemini' is not defined, there is none." in lite("check", film, code=4).stdout
    assert lite("check", film, "--store", lite.url).stdout == "film.py is in order.\n  films: watch\n"
    typo = write("typo.py", Path(film).read_text().replace("gemini", "gemni"))
    assert "did you mean 'gemini'?" in lite("check", typo, "--store", lite.url, code=4).stdout
    lite("add", film, "b")


COMMANDS = ["check FILE", "run FILE", "worker FILE", "add FILE a", "plan FILE", "reprocess FILE --stale", "accept FILE"]


@pytest.mark.fault(61)
@pytest.mark.req("J15")
@pytest.mark.parametrize("what", ["a python tag that calls", "a key twice", "a tab", "not UTF-8", "a list", "nothing"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_hostile_job_file_starts_nothing_whatever_the_command(
    command: str, what: str, write: Write, lite: Any
) -> None:
    text, said = HOSTILE[what]
    write("shelf.py", HANDLERS)
    Path("hostile.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
    result = lite(*("hostile.yaml" if word == "FILE" else word for word in command.split()), code=4)
    lines = (result.stdout if command.startswith("check") else result.stderr).splitlines()
    assert any(line.removeprefix("holdfast: ").startswith(f"hostile.yaml:{said}") for line in lines)
    assert touched() == []


@pytest.mark.fault(61)
def test_an_alias_bomb_and_50_megabytes_are_refused_by_a_real_process(write: Write, lite: Any) -> None:
    bomb = "a0: &a0 x\n" + "".join(f"a{n + 1}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(40))
    write("large.yaml", JOB)
    os.truncate("large.yaml", 50_000_000)
    for file, said in (
        (write("bomb.yaml", bomb), "aliases stand for too many values"),
        ("large.yaml", "1:1: the file is too"),
    ):
        done = lite.process("run", file)
        assert (done.returncode, done.stdout) == (4, "")
        assert said in done.stderr and done.stderr.count("\n") == 1
        assert done.stderr.startswith(f"holdfast: {file}:")
    assert touched() == []


@pytest.mark.fault(61)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_job_file_that_is_not_there_is_wrong_usage(command: str, lite: Any) -> None:
    result = lite(*("nobody.yaml" if word == "FILE" else word for word in command.split()), code=2)
    assert result.stderr.startswith("holdfast: nobody.yaml cannot be read: No such file or directory")
    assert touched() == []


def test_several_errors_are_several_lines_for_every_command(write: Write, lite: Any) -> None:
    file = write("wrong.yaml", "stor: x\npipelines: {}\n")
    lines = lite("run", file, code=4).stderr.splitlines()
    assert [line.partition(": ")[2].partition(": ")[0] for line in lines] == ["wrong.yaml:1:1", "wrong.yaml:2:1"]


@pytest.mark.req("J15")
def test_the_same_commands_take_a_job_file(job: str, cli: Any) -> None:
    cli("add", job, "a", "b")
    done = cli.process("run", job, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert cli.states() == {"extract": {"done": 2}, "chunk": {"done": 2}}
    assert cli.json("plan", job)["total"]["sure"] == 0
    Path(job).write_text(Path(job).read_text().replace('version: "1"', 'version: "2"'))
    assert cli.json("plan", job)["total"]["sure"] == 2


def test_a_worker_with_processes_takes_a_job_file(job: str, lite: Any) -> None:
    lite("add", job, "a")
    worker = lite.start("worker", job, "--processes", "1", "-v")
    wait_for(lambda: lite.states() == {"extract": {"done": 1}, "chunk": {"done": 1}})
    worker.terminate()
    worker.communicate(timeout=30)
    assert worker.returncode == 0


def test_the_store_is_the_one_given_then_the_files_then_the_environments(
    job: str, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    naming = write("naming.yaml", "store: ${BOOKS_URL:-sqlite:///of-the-file.db}\n" + Path(job).read_text())
    monkeypatch.setenv("HOLDFAST_URL", "sqlite:///of-the-environment.db")
    assert load(job, None).url == "sqlite:///of-the-environment.db"
    assert load(naming, None).url == "sqlite:///of-the-file.db"
    assert load(naming, "sqlite:///given.db").url == "sqlite:///given.db"
    monkeypatch.setenv("BOOKS_URL", "sqlite:///of-a-variable.db")
    assert load(naming, None).url == "sqlite:///of-a-variable.db"


def test_everything_else_that_a_file_says_can_be_had(job: str, write: Write) -> None:
    text = Path(job).read_text() + "    tuning: {rate: 1/s}\nresources: {gemini: {rate: 60/min}}\n"
    found = load(write("more.YAML", text), None)
    assert found.job is not None
    assert (found.resources, found.tunings["books"].limits) == (
        {"gemini": {"rate": "60/min"}},
        {"@books": {"rate": "1/s"}},
    )
    python = (
        "from holdfast import Pipeline\n"
        "def work(item, ctx): ...\n"
        "for name in ('a', 'b'):\n"
        "    one = globals()[name] = Pipeline(name, tuning={'rate': '1/s'}, resources={'gemini': {'rate': '60/min'}})\n"
        "    one.stage()(work)\n"
    )
    found = load(write("two_of_them.py", python), None)
    assert found.job is None
    assert (found.resources, found.tunings["b"].limits) == ({"gemini": {"rate": "60/min"}}, {"@b": {"rate": "1/s"}})


def test_two_pipelines_of_a_file_may_not_disagree_about_a_resource(write: Write, lite: Any) -> None:
    text = "from holdfast import Pipeline\n" + "".join(
        f"{name} = Pipeline('{name}', resources={{'gemini': {{'rate': '{rate}'}}}})\n{name}.stage(name='s')(lambda i, c: 0)\n"
        for name, rate in (("a", "1/s"), ("b", "2/s"))
    )
    assert "give resource 'gemini' different limits" in lite("run", write("two.py", text), code=4).stderr


def test_a_tuning_in_python_that_is_wrong_is_told_with_the_file(write: Write, lite: Any) -> None:
    text = "from holdfast import Pipeline\na = Pipeline('a', tuning={'stages': {'b': {}}})\na.stage(name='s')(lambda i, c: 0)\n"
    assert "two.py: pipeline 'a': tuning: stages: 'b' is unknown" in lite("run", write("two.py", text), code=4).stderr


# Secrets --------------------------------------------------------------------------------------------------------------

SECRET = "hunter2-is-a-Secret"

TALKATIVE = """
import logging, os

def extract(item, ctx):
    logging.getLogger("shop").warning("the key is %s", os.environ["SHOP_KEY"])
"""


@pytest.mark.fault(82)
def test_what_a_variable_of_the_job_file_holds_is_masked_in_logs(write: Write, lite: Any) -> None:
    write("talkative.py", TALKATIVE)
    source = "{list: [{key: k, x: '${SHOP_KEY}'}]}"
    text = f"pipelines: {{shop: {{stages: {{a: {{handler: talkative.extract}}}}, sources: {{s: {source}}}}}}}\n"
    file = write("talkative.yaml", text)
    done = lite.process("add", file, "a", env={"SHOP_KEY": SECRET})
    done = lite.process("run", file, "-vv", env={"SHOP_KEY": SECRET})
    assert "the key is ***" in done.stderr
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.fault(82)
@pytest.mark.parametrize("more", [[], ["-v"]])
def test_and_in_errors_of_the_store(more: list[str], write: Write, lite: Any) -> None:
    write("quiet_shop.py", "def extract(item, ctx): ...\n")
    rest = "pipelines: {shop: {stages: {a: {handler: quiet_shop.extract}}}}\n"
    for store, value in (
        ("sqlite:////no/such/${secret:SHOP}/x.db", SECRET),
        ("${SHOP}", f"postgresql://me:{SECRET}@127.0.0.1:1/x?connect_timeout=1"),
    ):
        file = write("quiet.yaml", f"store: {store}\n{rest}")
        done = lite.process("plan", file, *more, env={"SHOP": value})
        assert done.returncode == 5, done.stderr
        assert SECRET not in done.stdout + done.stderr


@pytest.mark.req("J15")
def test_an_address_from_the_environment_can_be_read_in_an_error(write: Write, lite: Any) -> None:
    write("quiet_shop.py", "def extract(item, ctx): ...\n")
    rest = "pipelines: {shop: {stages: {a: {handler: quiet_shop.extract}}}}\n"
    file = write("quiet.yaml", f"store: ${{SHOP}}\n{rest}")
    done = lite.process("plan", file, env={"SHOP": f"postgresql://me:{SECRET}@127.0.0.1:1/x?connect_timeout=1"})
    assert "127.0.0.1" in done.stderr and SECRET not in done.stderr
    done = lite.process("plan", file, env={"SHOP": "sqlite:////no/such/folder/x.db"})
    assert "/no/such/folder/x.db" in done.stderr


@pytest.mark.fault(82)
@pytest.mark.parametrize("command", ["check", "run"])
def test_and_in_what_is_said_of_the_file_itself(command: str, write: Write, lite: Any) -> None:
    file = write(
        "wrong.yaml", "store: ${secret:SHOP_URL}\nresources: {a: {rate: '${secret:SHOP_URL}'}}\npipelines: {}\n"
    )
    done = lite.process(command, file, "-v" if command == "run" else "--json", env={"SHOP_URL": SECRET})
    assert done.returncode == 4
    assert "the value of a secret variable is given, expected a rate" in done.stdout + done.stderr
    assert SECRET not in done.stdout + done.stderr


# The schema -----------------------------------------------------------------------------------------------------------


def test_the_schema_is_printed_as_json(lite: Any) -> None:
    assert json.loads(lite("schema").stdout) == schema()


def test_an_error_of_a_job_file_can_be_caught_by_a_program(write: Write) -> None:
    with pytest.raises(JobFileError) as caught:
        load(write("wrong.yml", "pipelines: 3\n"), None)
    assert (caught.value.line, caught.value.column, caught.value.path) == (1, 12, "pipelines")
