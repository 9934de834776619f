"""The command line of the example: it reads arguments, calls, and prints.

python -m examples.fiction plan TITLE
python -m examples.fiction scheduler | weaver | resumer | fulfiller [--drain]
python -m examples.fiction show [--json]
python -m examples.fiction story PLAN
python -m examples.fiction again ITEM
python -m examples.fiction demo
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
import sqlalchemy as sa

from examples.fiction.counting import Counters, kept
from examples.fiction.database import Database
from examples.fiction.demo import demo as run_demo
from examples.fiction.fakes.fake_storyteller import FakeStoryteller
from examples.fiction.lore import fulfiller as fulfiller_loop
from examples.fiction.models import Item, Status
from examples.fiction.planning import add_plan
from examples.fiction.resumer import Resumer
from examples.fiction.running import Stop, keep_going
from examples.fiction.scheduler import Scheduler
from examples.fiction.settings import Settings
from examples.fiction.status import is_explained, is_finished, shown, status
from examples.fiction.status import story as story_of
from examples.fiction.weaver import Weaver
from holdfast import Backoff, HoldfastError

drains = click.option("--drain", is_flag=True, help="End when no item is left to be written.")
as_json = click.option("--json", "is_json", is_flag=True, help="For programs.")


@click.group(help="A writer's backlog, worked off by several processes.")
def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)


@contextmanager
def opened(settings: Settings) -> Iterator[Database]:
    database = settings.open()
    try:
        database.create()
        yield database
    finally:
        database.close()


@main.command(help="Write down a plan with its backlog.")
@click.argument("title")
@click.option("--premise", default="Nobody has come back from the lamp road.", show_default=True)
@click.option("--chapters", type=click.IntRange(1), default=3, show_default=True)
@click.option("--scenes", type=click.IntRange(1), default=2, show_default=True, help="Of each chapter.")
@as_json
def plan(title: str, premise: str, chapters: int, scenes: int, is_json: bool) -> None:
    with opened(Settings.read()) as database, database.sessions.begin() as session:
        key = add_plan(session, title, premise, chapters=chapters, scenes=scenes)
    _tell({"plan": key}, f"plan {key}: {title}", is_json)


@main.command(help="Enqueue items that are ready, and resume those that went stale.")
@drains
@as_json
def scheduler(drain: bool, is_json: bool) -> None:
    def begin(database: Database, settings: Settings, stop: Stop) -> tuple[Callable[[], int], Counters]:
        role = Scheduler(database, guarded=settings.guarded)
        resumer = Resumer(database, stale=settings.stale, counters=role.counters)
        return lambda: resumer.one_pass() + role.one_pass(), role.counters

    _run("scheduler", begin, drain, is_json)


@main.command(help="Write what was enqueued, a piece at a time.")
@drains
@as_json
def weaver(drain: bool, is_json: bool) -> None:
    def begin(database: Database, settings: Settings, stop: Stop) -> tuple[Callable[[], int], Counters]:
        retry, beat = Backoff(first_seconds=settings.retry), min(10.0, settings.stale / 4)
        role = Weaver(database, _storyteller(settings), retry=retry, beat=beat, stop=stop)
        return role.one_pass, role.counters

    _run("weaver", begin, drain, is_json)


@main.command(help="Only resume what went stale; a scheduler does so as well.")
@drains
@as_json
def resumer(drain: bool, is_json: bool) -> None:
    def begin(database: Database, settings: Settings, stop: Stop) -> tuple[Callable[[], int], Counters]:
        role = Resumer(database, stale=settings.stale)
        return role.one_pass, role.counters

    _run("resumer", begin, drain, is_json)


@main.command(help="Give every requirement its entry in the world bible.")
@drains
@as_json
def fulfiller(drain: bool, is_json: bool) -> None:
    settings = Settings.read()
    with opened(settings) as database:
        loop = fulfiller_loop(
            database,
            _storyteller(settings),
            stale=settings.stale,
            guarded=settings.guarded,
            retry=Backoff(first_seconds=settings.retry),
            poll=settings.poll,
            grace=settings.grace,
        )
        with kept(database, "fulfiller", loop.counters):
            if not drain:
                loop.run()
            while drain and not loop.stopping:
                loop.run(drain=True)
                if is_explained(database):
                    break
                Stop().wait(settings.poll)
    _tell(loop.counters.as_dict(), str(loop.counters), is_json)


@main.command(help="Where everything is.")
@as_json
def show(is_json: bool) -> None:
    with opened(Settings.read()) as database:
        found = status(database)
    _tell(found, shown(found), is_json)


@main.command(help="Print the scenes that are there.")
@click.argument("plan", type=int)
def story(plan: int) -> None:
    with opened(Settings.read()) as database:
        click.echo(story_of(database, plan))


@main.command(help="Send an item that has failed back to Pending; its attempts begin anew.")
@click.argument("item", type=int)
def again(item: int) -> None:
    with opened(Settings.read()) as database, database.sessions.begin() as session:
        sending = sa.update(Item).where(Item.id == item, Item.status == Status.FAILED)
        done = session.execute(sending.values(status=Status.PENDING, next_attempt_at=None).returning(Item.id)).first()
    if done is None:
        raise click.ClickException(f"item {item} is not Failed: see `show`; nothing was changed")
    click.echo(f"item {item} is Pending")


@main.command(help="Kill a weaver while it writes, and see what comes of it.")
def demo() -> None:
    run_demo()


def _run(
    name: str,
    begin: Callable[[Database, Settings, Stop], tuple[Callable[[], int], Counters]],
    drain: bool,
    is_json: bool,
) -> None:
    """One pass of a role after another, until asked to stop or, if it drains, until no item is left."""
    settings = Settings.read()
    with opened(settings) as database, Stop(settings.grace).on_signals() as stop:
        one_pass, counters = begin(database, settings, stop)
        with kept(database, name, counters):
            is_done = (lambda: is_finished(database)) if drain else None
            keep_going(one_pass, stop, poll_seconds=settings.poll, is_done=is_done)
    _tell(counters.as_dict(), str(counters), is_json)


def _storyteller(settings: Settings) -> FakeStoryteller:
    return FakeStoryteller(settings.pace, settings.fail_one_in)


def _tell(found: object, text: str, is_json: bool) -> None:
    click.echo(json.dumps(found) if is_json else text)


if __name__ == "__main__":
    try:
        main()
    except HoldfastError as error:
        raise SystemExit(f"{error}") from None
