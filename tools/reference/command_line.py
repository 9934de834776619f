"""Every command with its arguments, options and exit codes, from the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from holdfast.cli import COMMANDS, commands
from tools.reference import exit_codes
from tools.reference.markdown import cell, code, finished, head, table

#: Options that nearly all commands have, and that are described once.
EVERYWHERE = ("--help", "--verbose")


def every_command() -> Iterator[tuple[str, click.Command]]:
    """Each command by the words that call it, groups left out."""
    context = click.Context(commands, info_name="holdfast")
    for name in COMMANDS:
        command = commands.get_command(context, name)
        assert command is not None, name
        if isinstance(command, click.Group):
            yield from ((f"{name} {sub}", one) for sub, one in command.commands.items())
        else:
            yield name, command


def options_of(command: click.Command) -> list[click.Option]:
    shown = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    return [one for one in shown if not set(one.opts) & {*EVERYWHERE, "-v"}]


def page() -> str:
    lines = head(
        "The command line",
        """Every command of `holdfast`, as `holdfast COMMAND --help` prints it. `-h` and `--help` show help; `-v` and
        `--verbose` log more to stderr, and everything if given twice. [Exit codes](exit-codes.md) and
        [what `--json` prints](json.md) have pages of their own.""",
    )
    lines += table(
        ("command", "what it does"),
        ((f"[`{name}`](#{_anchor(name)})", _short(name, one)) for name, one in every_command()),
    )
    for name, command in every_command():
        lines += _section(name, command)
    return finished(lines)


def _anchor(name: str) -> str:
    return f"holdfast-{name.replace(' ', '-')}"


def _short(name: str, command: click.Command) -> str:
    return COMMANDS[name][1] if name in COMMANDS else command.get_short_help_str(limit=200)


def _section(name: str, command: click.Command) -> list[str]:
    context = click.Context(command, info_name=f"holdfast {name}")
    usage = " ".join(["holdfast", name, *command.collect_usage_pieces(context)])
    lines = [f"## holdfast {name}", "", "```text", usage, "```", "", *_help(command)]
    if rows := [_row(option, context) for option in options_of(command)]:
        lines += table(("option", "meaning", "default"), rows)
    return [*lines, f"Exit codes: {_codes(name)}.", ""]


def _help(command: click.Command) -> list[str]:
    """The help of a command as paragraphs; what is set apart by \\b is kept as it is."""
    lines: list[str] = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b"):
            lines += ["```text", *paragraph.splitlines()[1:], "```", ""]
        elif all(line.startswith(" ") for line in paragraph.splitlines()):
            lines += ["```text", *inspect.cleandoc(paragraph).splitlines(), "```", ""]
        else:
            lines += [_plain(" ".join(paragraph.split())), ""]
    return lines


def _plain(text: str) -> str:
    """Words of a help text that Markdown would take for something else."""
    return re.sub(r"(?<![`\w])(\*|<|>|_)(?!`)", r"\\\1", text)


def _row(option: click.Option, context: click.Context) -> tuple[str, str, str]:
    names = ", ".join(code(one) for one in (*option.opts, *option.secondary_opts))
    takes = "" if option.is_flag or option.count else f" {code(_metavar(option, context))}"
    several = " (may be given several times)" if option.multiple and "several" not in (option.help or "") else ""
    help_, default = _default_in(option.help or "")
    return f"{names}{takes}", f"{_plain(help_)}{several}", default or _default(option)


def _metavar(option: click.Option, context: click.Context) -> str:
    return re.sub(r"(INTEGER|FLOAT)( RANGE)?$", "NUMBER", option.make_metavar(context))


def _default_in(help_: str) -> tuple[str, str]:
    """A help text without the default that it names at its end, and that default."""
    found = re.match(r"(.*?) ?\[default: (.*)\]$", help_, re.DOTALL)
    return (found[1], found[2]) if found else (help_, "")


def _default(option: click.Option) -> str:
    value = option.to_info_dict()["default"]
    if option.is_flag or option.multiple or option.required or value in (None, "", 0, False):
        return "required" if option.required else ""
    return code(cell(str(value)))


def _codes(name: str) -> str:
    return ", ".join(str(one) for one in sorted(exit_codes.of_command(name)))
