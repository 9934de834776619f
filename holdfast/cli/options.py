"""Options that several commands share, and what they are turned into."""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from holdfast.app import DEFAULT_URL, URL_VARIABLE, Holdfast
from holdfast.blobs import BLOBS_VARIABLE
from holdfast.cli import note_verbose
from holdfast.cli.logs import FORMATS, set_up
from holdfast.errors import StoreBroken, UsageError
from holdfast.model.durations import seconds
from holdfast.model.stage import PipelineSpec
from holdfast.model.states import State
from holdfast.worker import Settings

#: Where the context of a command has what --log-format said.
LOG_FORMAT = "holdfast.log_format"

Function = TypeVar("Function", bound=Callable[..., Any])
Decorator = Callable[[Function], Function]


def text(value: str) -> str:
    """Text that a database can hold: a shell may pass bytes that are none."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{value!r} is not valid UTF-8") from None
    return value


def address(given: str | None) -> str:
    """Which store: that of --store, then that of HOLDFAST_URL, then the default."""
    return given or text(os.environ.get(URL_VARIABLE, "")) or DEFAULT_URL


def logs(level: int, *, formats: bool) -> Callable[[Function], Function]:
    """-v and, with `formats`, --log-format. `level` is how much is logged without -v: 0 warnings, 1 what a command does."""

    def start(ctx: click.Context) -> None:
        # Called for each of the options, in any order: the last call knows both.
        set_up(level + ctx.meta.get("holdfast.verbose", 0), ctx.meta.get(LOG_FORMAT, FORMATS[0]))

    def note_more(ctx: click.Context, param: click.Parameter, value: int) -> int:
        note_verbose(ctx, param, value)
        start(ctx)
        return value

    def note_format(ctx: click.Context, param: click.Parameter, value: str) -> str:
        ctx.meta[LOG_FORMAT] = value
        start(ctx)
        return value

    more = click.option(
        "-v",
        "--verbose",
        count=True,
        expose_value=False,
        callback=note_more,
        is_eager=True,
        help="Log more to stderr; give it twice to log everything.",
    )
    form = click.option(
        "--log-format",
        type=click.Choice(FORMATS),
        default=FORMATS[0],
        show_default=True,
        expose_value=False,
        callback=note_format,
        is_eager=True,
        help="How lines of the log look.",
    )
    return together(form, more) if formats else more


def common(
    *, json: bool = True, level: int = 0, file: bool = False, log_format: bool = False
) -> Callable[[Function], Function]:
    """--store, --json and -v; for commands that run user code, or until stopped, also --log-format. `level` is how much this
    command logs unless told otherwise: 0 warnings, 1 what it does; `file` says that the command has a FILE, which may name a
    store."""
    otherwise = f"{'what FILE names, then ' if file else ''}${URL_VARIABLE}, then {DEFAULT_URL}"

    def decorate(function: Function) -> Function:
        function = logs(level, formats=log_format)(function)
        if json:
            function = click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)
        return click.option(
            "--store", metavar="URL", type=text, help=f"sqlite:///PATH or postgresql://… [default: {otherwise}]"
        )(function)

    return decorate


def together(*several: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Several options as one decorator, in the order in which they are shown."""

    def decorated(function: Function) -> Function:
        for option in reversed(several):
            function = option(function)
        return function

    return decorated


#: Where content is that handlers have kept.
blobs = click.option(
    "--blobs",
    type=text,
    metavar="ADDRESS",
    help=f"Where kept content is. [default: ${BLOBS_VARIABLE}, then the folder beside a SQLite file]",
)


def open_to_ask(store: str | None, pipelines: Sequence[PipelineSpec] = (), *, blobs: str | None = None) -> Holdfast:
    """The store as it is: nothing is made, neither a file nor tables."""
    return existing(Holdfast(address(store), pipelines, blobs=blobs, create=False))


def existing(app: Holdfast) -> Holdfast:
    """The same, if there are tables in its store."""
    try:
        if app.schema_version() == 0:
            raise StoreBroken("there are no holdfast tables in this store yet: add items, or run `holdfast db upgrade`")
    except BaseException:
        app.close()
        raise
    return app


#: The options of a worker.
work = together(
    click.option(
        "--concurrency",
        type=click.IntRange(min=1),
        default=16,
        show_default=True,
        help="How many handlers run at a time.",
    ),
    click.option(
        "--lease",
        type=text,
        default="30s",
        show_default=True,
        help="How long it may go without a heartbeat before others take over its work.",
    ),
    click.option(
        "--grace",
        type=text,
        default="10s",
        show_default=True,
        help="How long a graceful shutdown waits for running handlers.",
    ),
    click.option(
        "--poll",
        type=text,
        default="1s",
        show_default=True,
        help="How often to check for work if no notification arrives.",
    ),
    click.option("--name", type=text, default="", help="A label for this worker. [default: host and process]"),
    click.option(
        "--stages",
        type=text,
        default="",
        metavar="A,B",
        help="Run only these stages, given as STAGE or PIPELINE/STAGE.",
    ),
)

#: New work that has a price may run.
yes = click.option(
    "--yes",
    is_flag=True,
    envvar="HOLDFAST_YES",
    help="Run the work that a changed pipeline requires, whatever it costs. [env: HOLDFAST_YES]",
)

#: The filters of commands that look for what is stale.
stale = together(
    click.option("--pipeline", type=text, help="Only this pipeline of FILE."),
    click.option("--stage", type=text),
    click.option("--key", type=text, metavar="PATTERN", help="* and ? are wildcards."),
)
fast = click.option(
    "--fast",
    is_flag=True,
    help="Only work that is expected to be free and to take at most 5 s per item, including the work it may cause.",
)


def read_settings(concurrency: int, lease: str, grace: str, poll: str, name: str, stages: str) -> Settings:
    return Settings(
        concurrency=concurrency,
        lease_seconds=seconds(lease, what="--lease"),
        grace_seconds=seconds(grace, what="--grace"),
        poll_seconds=seconds(poll, what="--poll"),
        name=name,
        stages=tuple(part.strip() for part in stages.split(",") if part.strip()),
    )


#: Which items, by their keys.
keys = click.option(
    "--key",
    type=text,
    multiple=True,
    metavar="PATTERN",
    help="* and ? are wildcards, [*] and [?] are not. May be given several times.",
)

#: Which items, by the states of their stages.
states = click.option(
    "--state",
    "states",
    type=click.Choice([state.value for state in State]),
    multiple=True,
    help="Items with a stage in this state. May be given several times.",
)


#: One item, and how to answer.
one_item = together(
    click.argument("key", type=text),
    click.option("--pipeline", type=text, help="The pipeline, if several have this key."),
    common(),
)

#: Of commands that change many items.
dry_run_and_reason = together(
    click.option("--dry-run", is_flag=True, help="Only count."),
    click.option("--reason", type=text, default="", help="A reason to record in the events."),
)

#: Which failures, by what they have in common.
group = click.option("--group", type=text, metavar="ID", help="An error group, as listed by `holdfast errors`.")


def user() -> str:
    """Who acts, for the events."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a number without a name, as in many containers
        return "unknown"


def finish(code: int) -> None:
    """End the command with this exit code, once all of its output is out."""
    sys.stdout.flush()
    click.get_current_context().exit(code)
