"""The suite notices bugs: engines that are wrong in one place each do not pass a small part of it."""

from __future__ import annotations

import os
import re

import pytest

from tests.mutants.bugs import OF_MONEY, OF_QUESTIONS, OF_WORK, VARIABLE
from tests.support.effort import effort
from tests.support.mother import Piped

#: Quick, and aimed at what a late, dead or simultaneous worker may do.
PART = ("tests/engine/test_fence.py", "tests/engine/test_reap.py", "tests/crash/test_interleavings.py")
#: Those that prove V13 and V14: every one of them says so.
MONEY = ("tests/engine/test_honest_money.py",)
QUESTIONS = ("tests/cli/test_only_reading.py::test_the_owners_questions_change_nothing_either",)
SEEDS = {"sqlite": "20", "postgres": "6"}


def run_part(database: str, mutant: str, part: tuple[str, ...] = PART) -> tuple[int, dict[str, int], str]:
    """Run a part on one database; the exit code, how many tests ended how, and what was printed."""
    arguments = [
        "-q",
        "-p",
        "tests.mutants.plugin",
        "-p",
        "no:cacheprovider",
        *(["-k", database] if database else []),
        "--tb=line",
        *(["-x"] if mutant else []),
        *part,
    ]
    environment = {**os.environ, VARIABLE: mutant, "HOLDFAST_SEEDS": SEEDS.get(database, "1")}
    process = Piped("tests.mutants.part", arguments, environment)
    said, errors = process.communicate(timeout=120)
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|error)", said)}
    return process.wait(), counts, said + errors


@pytest.mark.usefixtures("postgres")
def test_the_part_passes_without_a_bug(database):
    code, counts, said = run_part(database, "")
    assert code == 0, said
    assert counts["passed"] > 20 and set(counts) == {"passed"}, said


@pytest.mark.usefixtures("postgres")
@pytest.mark.parametrize("mutant", OF_WORK)
@pytest.mark.parametrize("database", ["sqlite", "postgres"][: effort(1, 2)])
def test_the_part_fails_with_the_bug(database, mutant):
    assert_noticed(mutant, database, *run_part(database, mutant))


@pytest.mark.req("V13")
@pytest.mark.usefixtures("postgres")
@pytest.mark.parametrize("mutant", OF_MONEY)
@pytest.mark.parametrize("database", ["sqlite", "postgres"][: effort(1, 2)])
def test_money_does_not_add_up_with_the_bug(database, mutant):
    assert_noticed(mutant, database, *run_part(database, mutant, MONEY))


@pytest.mark.req("V14")
@pytest.mark.parametrize("mutant", OF_QUESTIONS)
def test_looking_is_not_free_with_the_bug(mutant):
    assert_noticed(mutant, "sqlite", *run_part("", mutant, QUESTIONS))


def assert_noticed(mutant, database, code, counts, said):
    assert code == 1 and counts.get("failed", 0) >= 1, f"{mutant} was not noticed on {database}:\n{said}"
    assert "error" not in counts, said
