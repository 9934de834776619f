"""The command line: reads arguments, calls the app, prints what it answered.

A command's module is imported when the command is used, so that `holdfast --help` waits for none of them.
"""

from __future__ import annotations

import sys
from importlib import import_module

import click

from holdfast import __version__
from holdfast.cli.exit_codes import exit_code

#: Every command: its home, and what it does in a few words.
COMMANDS = {
    "run": ("run", "Run every item through every stage, then exit."),
    "worker": ("worker", "Run until stopped: work whenever there is some."),
    "add": ("add", "Add items to a pipeline."),
    "crashtest": ("crashtest", "Kill a pipeline at every durable boundary, and compare the results."),
    "check": ("check", "Check a job file, or a file with pipelines or loops."),
    "schema": ("schema", "The JSON Schema of the job file, for editors."),
    "discover": ("discover", "Look for items in sources, now."),
    "sources": ("sources", "Sources: when they were and will be looked at, and what was found."),
    "status": ("status_and_items", "How many items are in which state, how long stages take, which workers run."),
    "items": ("status_and_items", "List items."),
    "show": ("show_and_why", "One item: its data, stages and history."),
    "why": ("show_and_why", "What keeps an item from running, and when it clears."),
    "errors": ("errors", "What fails, grouped by cause."),
    "export": ("export", "Write results to a file: JSON lines, CSV or Parquet."),
    "events": ("events", "What happened, oldest first."),
    "audit": ("audit", "Who did what, when and why."),
    "alerts": ("alerts", "Alert rules and their notifications."),
    "costs": ("costs", "What was spent."),
    "matrix": ("matrix", "Items × stages: how far the items of a pipeline are, from the first to the last."),
    "throughput": ("throughput", "Attempts over time, and how long they take."),
    "retry": ("retry_and_cancel", "Run failed, exhausted or cancelled stages again."),
    "cancel": ("retry_and_cancel", "Cancel open stages."),
    "pause": ("limits", "Pause a pipeline, a stage or a resource."),
    "resume": ("limits", "Resume a paused pipeline, stage or resource."),
    "tune": ("limits", "Change limits and guards of running work."),
    "limits": ("limits", "The limits of resources, their use, and what blocks them."),
    "resolve": ("resolve", "Settle paid calls in doubt."),
    "forget": ("forget", "Reject recorded answers of paid calls: the next attempt calls again."),
    "plan": ("plan", "What is stale, and what reprocessing it would cost."),
    "reprocess": ("reprocess", "Run again what is stale."),
    "accept": ("reprocess", "Accept stale results as they are."),
    "delete": ("delete", "Delete items permanently, with everything that belongs to them."),
    "actions": ("actions", "Bulk actions: list, continue, stop, undo."),
    "adopt-sql": ("adopt_sql", "Print a migration that prepares your own table."),
    "loop": ("loop", "Run a loop over your own table."),
    "import-legacy": ("legacy", "Import items from the database of an earlier program."),
    "prune": ("prune", "Delete old events, items that ended long ago, and unreferenced blobs."),
    "db": ("database", "Manage the database: upgrade, check, grants."),
    "sql": ("sql", "Print queries for other programs."),
    "ui": ("ui", "Serve the dashboard."),
    "metrics": ("metrics", "The state of the store, for Prometheus."),
    "top": ("top", "Watch pipelines, money and workers live, and steer them by keys."),
    "doctor": ("database", "Diagnose the installation, the database and its workers."),
}


class Group(click.Group):
    """A group that says of an unknown command which ones there are."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            from holdfast.model.did_you_mean import there_are

            raise click.UsageError(
                f"there is no command {args[0]!r}; {there_are(args[0], self.list_commands(ctx))}", ctx
            )
        return super().resolve_command(ctx, args)


class Commands(Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        home = import_module(f"holdfast.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(home, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, what) for name, (_, what) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> None:
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="backslashreplace")
        ctx.exit(exit_code(ctx, super().invoke))


def note_verbose(ctx: click.Context, param: click.Parameter, value: int) -> int:
    ctx.meta["holdfast.verbose"] = ctx.meta.get("holdfast.verbose", 0) + value
    return value


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, message="holdfast %(version)s")
@click.option(
    "-v",
    "--verbose",
    count=True,
    callback=note_verbose,
    expose_value=False,
    help="Log more to stderr; give it twice to log everything.",
)
def commands() -> None:
    """Run every item through every stage, and lose nothing: on a SQLite file or on PostgreSQL.

    Exit codes: 0 all is well, 2 wrong usage, 3 some items failed, 4 wrong pipeline, 5 the database, 7 already running.
    """


def main() -> None:
    """The program `holdfast`."""
    commands.main(prog_name="holdfast")
