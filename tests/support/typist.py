"""Types the commands of a page into a shell, in the order in which they are printed and exactly as they are.

    page = Page(ROOT / "examples" / "newsroom" / "README.md")
    typed = Typist(folder, environment).type(page.commands[3:])
    typed[-1].printed                                    # the lines that the last command has printed

A block marked `sh` is a command per line; in one marked `console` commands stand behind a `$`, each with lines that it prints.
Blocks without a mark are not typed. A block that names an address of PostgreSQL is for readers who have one.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

from tests.support.waiting import wait_for

#: A page that takes longer than this is stuck.
STUCK_SECONDS = 240.0
#: What was asked to end has ended after this.
END_SECONDS = 15.0
#: Between what a shell prints of its own accord and what commands print.
BEGINS, ENDS = "\x1e", "\x1f"

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_TIME = re.compile(r"(?:< )?\d+(?:\.\d+)? m?s\b")


@dataclass(frozen=True)
class Command:
    text: str
    #: The lines that it is said to print, and the exit code that the page shows for it.
    expected: tuple[str, ...] = ()
    code: int = 0
    on_postgres_only: bool = False


@dataclass(frozen=True)
class Typed:
    command: Command
    printed: tuple[str, ...]
    code: int

    @property
    def is_as_printed(self) -> bool:
        """It ended as the page says, and has printed all the lines of the page in their order, whatever is between them."""
        lines = iter(_timeless(self.printed))
        return self.code == self.command.code and all(line in lines for line in _timeless(self.command.expected))


class Page:
    """The commands of a page."""

    def __init__(self, path: Path) -> None:
        self.commands: list[Command] = []
        blocks = [
            list(_commands(language, text)) for language, text in _BLOCK.findall(path.read_text(encoding="utf-8"))
        ]
        codes: dict[str, int] = {}
        for block in blocks:
            for (text, _), (following, shown) in pairwise(block):
                if following == "echo $?":
                    codes[text] = int(shown[0])
        for block in blocks:
            on_postgres_only = any("postgresql:" in text for text, _ in block)
            self.commands += [Command(text, tuple(said), codes.get(text, 0), on_postgres_only) for text, said in block]


def _commands(language: str, text: str) -> Iterator[tuple[str, list[str]]]:
    if language == "sh":
        yield from ((line, []) for line in re.sub(r"\\\n", "", text).splitlines() if line.strip())
    elif language == "console":
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, *said = part.splitlines()
            yield command, said


def _timeless(lines: Sequence[str]) -> list[str]:
    """Without lengths of time, and the space that is left for them."""
    return [" ".join(_TIME.sub("TIME", line).split()) for line in lines]


class Typist:
    """Types into one shell per call. A server that a page starts is waited for, at its port; one that it leaves running is an
    error."""

    def __init__(self, folder: Path, environment: Mapping[str, str], port: int | None = None) -> None:
        self._folder, self._environment, self._port = folder, dict(environment), port

    def type(self, commands: Sequence[Command], timeout: float = STUCK_SECONDS) -> list[Typed]:
        """Type all, up to the first that ends otherwise than the page says."""
        script = "\n".join(["set -m", *(self._around(number, one) for number, one in enumerate(commands))])
        with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
            shell = subprocess.Popen(
                ["bash", "-c", script],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            is_stuck, left = _end(shell, timeout)
            output.seek(0)
            said = output.read()
        assert not is_stuck, f"not at its end after {timeout:.0f} s:\n{said}"
        typed = self._read(commands, said)
        # One that has ended otherwise than it should is the last that was typed.
        assert not left or typed[-1].code != typed[-1].command.code, f"left running: {left}\n{said}"
        return typed

    def _around(self, number: int, command: Command) -> str:
        """A command, and what tells its words and its exit code from those of others."""
        wait = ""
        if self._port is not None and command.text.split("#")[0].rstrip().endswith("&"):
            wait = f"until (exec 3<>/dev/tcp/127.0.0.1/{self._port}) 2>/dev/null || ! kill -0 $!; do sleep 0.05; done\n"
        return (
            f"printf '{BEGINS}{number}\\n'; (exit ${{code:-0}})\n{command.text}\ncode=$?\n{wait}"
            f"printf '{ENDS}%d\\n' $code; test $code -eq {command.code} || exit 1"
        )

    def _read(self, commands: Sequence[Command], said: str) -> list[Typed]:
        found = []
        for part in said.split(BEGINS)[1:]:
            words, _, code = part.partition(ENDS)
            number, *printed = words.splitlines()
            found.append(Typed(commands[int(number)], tuple(printed), int(code.split()[0])))
        return found


def _end(shell: subprocess.Popen[bytes], timeout: float) -> tuple[bool, list[psutil.Process]]:
    """Wait for the end of a shell and of all that it has started; whether it is stuck, and what had to be killed."""
    is_stuck = False
    try:
        shell.wait(timeout)
        wait_for(lambda: not running_in(shell.pid), END_SECONDS)
    except subprocess.TimeoutExpired:
        is_stuck = True
    except AssertionError:
        pass
    left = running_in(shell.pid)
    for process in left:
        process.kill()
    shell.wait()
    return is_stuck, left


def running_in(session: int) -> list[psutil.Process]:
    """The processes of a session that have not ended."""
    found = []
    for process in psutil.process_iter(["pid", "status"]):
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if process.info["status"] != psutil.STATUS_ZOMBIE and os.getsid(process.info["pid"]) == session:
                found.append(process)
    return found
