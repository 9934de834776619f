"""The front of the command line: what it loads, lists and says about itself."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from holdfast import __version__
from holdfast.cli import COMMANDS, commands

HEAVY = ("asyncio", "msgspec", "rich", "sqlite3", "psycopg", "holdfast.app", "holdfast.worker")


def test_help_loads_nothing_that_only_commands_need() -> None:
    """`holdfast --help` answers at once because it imports next to nothing."""
    script = (
        "import sys\n"
        "from holdfast.cli import commands\n"
        "try: commands.main(['--help'])\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_command_says_of_itself(name: str) -> None:
    command = commands.get_command(click.Context(commands), name)
    assert command is not None
    assert command.name == name
    assert command.short_help == COMMANDS[name][1]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    result = CliRunner().invoke(commands, [name, "--help"])
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage:")


def test_it_tells_its_version() -> None:
    assert CliRunner().invoke(commands, ["--version"]).stdout == f"holdfast {__version__}\n"


@pytest.mark.parametrize("args", [["nonsense"], ["status", "--nonsense"], ["items", "--state", "nonsense"], ["show"]])
def test_wrong_usage_is_one_line_and_exit_code_2(args: list[str]) -> None:
    result = CliRunner().invoke(commands, args, prog_name="holdfast")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("holdfast: ")
    assert result.stderr.count("\n") == 1
    assert "--help" in result.stderr


def test_an_argument_that_is_no_text_is_wrong_usage() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "show", b"caf\xe9"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "holdfast: 'caf\\udce9' is not valid UTF-8\n"
