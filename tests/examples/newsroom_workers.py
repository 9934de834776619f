"""Real processes of `holdfast`, begun in a hundredth of the time: a process that has loaded everything forks one for each.

    workers = the_workers()
    pid = workers.start(["worker", "holdfast.yaml", "--poll", "0.2s"], environment, said)
    os.kill(pid, signal.SIGKILL)
    workers.wait(pid)                                   # its exit code; a signal's number is negative

Each runs the command line from its first word to its exit code, with connections, threads and children of its own.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
PR_SET_PDEATHSIG = 1


class Workers:
    """Begins processes, and tells how they ended. It ends with this process, and they with it."""

    def __init__(self) -> None:
        # What a test has set for itself is no matter of those that come later.
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "NEWSROOM_", "PG"))}
        self._mother = subprocess.Popen(
            [sys.executable, "-m", "tests.examples.newsroom_workers"], cwd=ROOT, stdin=subprocess.PIPE, text=True,
            stdout=subprocess.PIPE, env={**clean, "PYTHONPATH": str(ROOT)}, start_new_session=True,
        )  # fmt: skip

    def start(self, words: Sequence[str], environment: Mapping[str, str], said: Path, folder: Path) -> int:
        """Begin `holdfast WORDS` in a folder, with these variables on top; what it says is in a file. Its number."""
        order = {"words": list(words), "environment": dict(environment), "said": str(said), "folder": str(folder)}
        return self._ask({"start": order})

    def wait(self, pid: int) -> int:
        """Wait for the end of one; its exit code."""
        return self._ask({"wait": pid})

    def _ask(self, order: dict[str, Any]) -> int:
        assert self._mother.stdin is not None and self._mother.stdout is not None
        self._mother.stdin.write(json.dumps(order) + "\n")
        self._mother.stdin.flush()
        answer = self._mother.stdout.readline()
        assert answer, "the process that begins workers has ended"
        return int(answer)


@functools.cache
def the_workers() -> Workers:
    """One for all tests of this process."""
    return Workers()


# The mother process ---------------------------------------------------------------------------------------------------


def main() -> None:
    _die_with_parent()
    import sqlalchemy.dialects.postgresql.psycopg
    import sqlalchemy.dialects.sqlite  # noqa: F401 - loaded once, for all

    import holdfast.cli.run
    import holdfast.cli.worker  # noqa: F401
    from examples.newsroom import guards, stages  # noqa: F401

    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            print(os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1]), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            _run(**order["start"])
        print(pid, flush=True)


def _run(words: list[str], environment: dict[str, str], said: str, folder: str) -> None:
    code = 1
    try:
        _die_with_parent()
        null = os.open(os.devnull, os.O_RDWR)
        out = os.open(said, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        for number, file in enumerate((null, out, out)):
            os.dup2(file, number)
        os.environ.update(environment)
        os.chdir(folder)
        sys.argv = ["holdfast", *words]
        from holdfast.cli import main as holdfast

        holdfast()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
