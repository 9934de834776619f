"""The list of requirements cannot lie: `tools/requirements.py`, on a page of its own."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
main = runpy.run_path(str(ROOT / "tools" / "requirements.py"))["main"]

PAGE = """
| id | status | what it asks |
|---|---|---|
| A1 | delivered | Items are added. |
| A2 | open | Items are weighed. |
| 7 | delivered | The roof falls in. |
"""

ENOUGH = """
import pytest

@pytest.mark.req("A1")
@pytest.mark.fault(7)
def test_items_are_added(): ...
"""


@pytest.fixture
def check(tmp_path, capsys):
    """Run the tool over the page and one test file; return its exit code, its list and its complaints."""

    def run(tests, page=PAGE):
        (tmp_path / "tests").mkdir(exist_ok=True)
        (tmp_path / "tests" / "test_sample.py").write_text(tests)
        (tmp_path / "page.md").write_text(page)
        code = main(tmp_path / "page.md", tmp_path / "tests")
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_every_id_is_listed_with_its_tests_and_open_ones_are_not_hidden(check):
    code, listed, complaints = check(ENOUGH)
    assert (code, complaints) == (0, "")
    lines = [line.split() for line in listed.splitlines()]
    assert lines[:5] == [
        ["A1", "delivered", "Items", "are", "added."],
        ["tests/test_sample.py::test_items_are_added"],
        ["A2", "open", "Items", "are", "weighed."],
        ["fault", "7", "delivered", "The", "roof", "falls", "in."],
        ["tests/test_sample.py::test_items_are_added"],
    ]
    assert listed.endswith("3 ids: 2 delivered, 1 open\n")


def test_a_delivered_id_without_a_test_fails(check):
    code, _, complaints = check(ENOUGH.replace('@pytest.mark.req("A1")', ""))
    assert code == 1
    assert complaints == "problem: A1 is delivered and has no test\n"


def test_a_fault_without_a_test_fails(check):
    code, _, complaints = check(ENOUGH.replace("@pytest.mark.fault(7)", ""))
    assert code == 1
    assert complaints == "problem: fault 7 is delivered and has no test\n"


@pytest.mark.parametrize("mark", ['req("A3")', 'req("7")', "fault(8)", "fault(row)"])
def test_a_test_that_carries_an_unknown_id_fails(check, mark):
    code, _, complaints = check(f"{ENOUGH}\n@pytest.mark.{mark}\ndef test_more(): ...\n")
    assert code == 1
    assert "tests/test_sample.py::test_more carries" in complaints


def test_an_open_id_shows_the_tests_it_already_has(check):
    code, listed, _ = check(ENOUGH.replace('"A1"', '"A1", "A2"'))
    assert code == 0
    assert listed.count("test_items_are_added") == 3


IN_A_CLASS = """
pytestmark = pytest.mark.req("A1")

class TestA:
    @pytest.mark.fault(7)
    def test_it(self): ...
"""
ON_A_CLASS = """
@pytest.mark.req("A1")
class TestA:
    pytestmark = [pytest.mark.fault(7)]

    async def test_it(self): ...
"""
ON_A_SUBCLASS = """
@pytest.mark.req("A1")
@pytest.mark.fault(7)
class TestA(Suite): ...
"""
ON_A_PARAMETER = """
CASES = [pytest.param(1, marks=[pytest.mark.fault(7), pytest.mark.req("A1")])]

@pytest.mark.parametrize("n", CASES)
def test_it(n): ...
"""
ON_A_MACHINE = """
TestA = Machine.TestCase
TestA.pytestmark = [pytest.mark.fault(7), pytest.mark.req("A1")]
"""


@pytest.mark.parametrize("tests", [IN_A_CLASS, ON_A_CLASS, ON_A_SUBCLASS, ON_A_PARAMETER, ON_A_MACHINE])
def test_marks_count_wherever_pytest_takes_them(check, tests):
    code, _, complaints = check(tests)
    assert (code, complaints) == (0, "")


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        (PAGE + "| A1 | open | Again. |\n", "A1 is listed twice"),
        (PAGE.replace("| open |", "| soon |"), "A2 has the status 'soon'"),
        ("nothing here", "lists no requirement"),
    ],
)
def test_a_page_that_contradicts_itself_fails(check, page, complaint):
    code, _, complaints = check(ENOUGH, page)
    assert code == 1
    assert complaint in complaints


def test_the_page_lists_every_id(tmp_path, capsys):
    main(tests=tmp_path)
    listed = {line[:9].strip() for line in capsys.readouterr().out.splitlines() if line[:1].strip()}
    for letter, most in {"F": 9, "J": 21, "S": 7, "D": 11, "V": 12}.items():
        assert {f"{letter}{number}" for number in range(1, most + 1)} <= listed
