"""The suite notices bugs: five engines that are wrong in one place each do not pass a small part of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.mutants.bugs import MUTANTS, VARIABLE
from tests.support.effort import effort
from tests.support.processes import ROOT

#: Quick, and aimed at what a late, dead or simultaneous worker may do.
PART = ("tests/engine/test_fence.py", "tests/engine/test_reap.py", "tests/crash/test_interleavings.py")
SEEDS = {"sqlite": "20", "postgres": "6"}


def run_part(database: str, mutant: str) -> tuple[int, dict[str, int], str]:
    """Run the part on one database; the exit code, how many tests ended how, and what was printed."""
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "tests.mutants.plugin", "-p", "no:cacheprovider", "-p", "no:xdist",
        "-k", database, "--tb=line", *(["-x"] if mutant else []), *PART,
    ]  # fmt: skip
    environment = {**os.environ, VARIABLE: mutant, "HOLDFAST_SEEDS": SEEDS[database]}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|error)", done.stdout)}
    return done.returncode, counts, done.stdout + done.stderr


@pytest.mark.usefixtures("postgres")
def test_the_part_passes_without_a_bug(database):
    code, counts, said = run_part(database, "")
    assert code == 0, said
    assert counts["passed"] > 20 and set(counts) == {"passed"}, said


@pytest.mark.usefixtures("postgres")
@pytest.mark.parametrize("mutant", MUTANTS)
@pytest.mark.parametrize("database", ["sqlite", "postgres"][: effort(1, 2)])
def test_the_part_fails_with_the_bug(database, mutant):
    code, counts, said = run_part(database, mutant)
    assert code == 1 and counts.get("failed", 0) >= 1, f"{mutant} was not noticed on {database}:\n{said}"
    assert "error" not in counts, said
