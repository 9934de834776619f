"""Exit codes: the one place where an error of any command becomes a line on stderr and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import IO, Any

import click

from holdfast.errors import HoldfastError
from holdfast.model.log_lines import printable

#: Exit codes of commands that end when nothing is left to do: something failed; rows of a user's own table were left.
SOME_FAILED, SOME_LEFT = 3, 6
#: Said by the shell of a program that wrote to a closed pipe, and of one that was interrupted.
BROKEN_PIPE, INTERRUPTED = 141, 130


def exit_code(ctx: click.Context, invoke: Callable[[click.Context], Any]) -> int:
    """Invoke a command; the exit code, once it has been said what went wrong."""
    code = 0
    try:
        invoke(ctx)
        sys.stdout.flush()
    except KeyboardInterrupt as error:
        code = _complain(ctx, *getattr(error, "__notes__", ()), code=INTERRUPTED)
    except HoldfastError as error:
        said = getattr(error, "lines", [str(error)])
        code = _complain(ctx, *said, *getattr(error, "__notes__", ()), code=error.exit_code)
    except click.ClickException as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else ctx.command_path
        code = _complain(ctx, f"{error.format_message()} (see {command} --help)", code=error.exit_code)
    except (click.exceptions.Exit, click.Abort):
        raise
    except OSError as error:
        if error.errno == errno.EPIPE:
            code = BROKEN_PIPE
        else:
            code = _complain(ctx, f"{type(error).__name__}: {error}", code=1)
        _let_go(sys.stdout)
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        code = _complain(ctx, f"{what} (not expected, perhaps a bug in holdfast; -v tells where)", code=1)
    return code


def _complain(ctx: click.Context, *messages: str, code: int) -> int:
    """One line for each message, without secrets."""
    from holdfast.model.redact import redact

    try:
        if ctx.meta.get("holdfast.verbose"):
            import traceback

            for line in redact(traceback.format_exc()).splitlines():
                click.echo(printable(line), err=True)
        for message in messages:
            click.echo(f"holdfast: {printable(' '.join(redact(message).split()))}", err=True)
    except OSError:
        _let_go(sys.stderr)
    return code


def _let_go(stream: IO[str]) -> None:
    """Nobody reads this any more: what is still in the buffer must not make trouble when the process ends."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
    except OSError:
        pass
