"""Runs all tests side by side, and once more alone those that failed; `make tests`.

    python -m tools.run_tests --processes 4      # what is given is for the first run only

A test that fails beside others and passes alone is flaky: it, or what it tests, does not stand a busy machine. It does not fail
the run, but the last lines count and name such tests, also when there are none. The exit code is that of pytest: a run that
broke down is not repeated, and a test that fails alone, too, has failed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.turns import set_turn

#: Where pytest keeps the names of tests that failed.
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")
ALL_PASSED, SOME_FAILED = 0, 1


def main(arguments: Sequence[str]) -> int:
    """Run the tests of this folder; 0 if each has passed, beside others or alone."""
    # The same tests the second time, also if the day has ended meanwhile.
    set_turn()
    # What failed before, and is not part of this run, is none of its business.
    code = _pytest("--cache-clear", *arguments)
    failed = _last_failed() if code == SOME_FAILED else set()
    if failed:
        print("Once more, alone:", flush=True)
        code = _pytest("--last-failed", "--last-failed-no-failures=none")
    if code in (ALL_PASSED, SOME_FAILED):
        _tell(failed - _last_failed())
    return code


def _pytest(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


def _last_failed() -> set[str]:
    return set(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else set()


def _tell(flaky: set[str]) -> None:
    # A line of its own, also after a process that did not end its last one.
    print("\n".join(["", f"flaky: {len(flaky)}", *(f"  {test}" for test in sorted(flaky))]), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
