"""Kill workers at random points, thousands of times, and let the provider be the judge; `make torture`.

    python -m tools.torture --kills 10000 --store sqlite
    python -m tools.torture --kills 500 --store postgresql://…?schema=torture --seed 7

Real worker processes run a pipeline with paid calls, rows of the user's own, children and follow-ons. They are killed with
SIGKILL: at a point drawn by lot (between any two statements, around any commit), at a time drawn by lot, in the middle
of an effect, and by the provider right after it has sent its reply. Then the rest is worked off in peace, and:

- no call was paid for twice without a crash between the call and its record, and without an `in_doubt` event;
- one idempotency key per paid call of an item, and none shared;
- the user's tables are, row by row, what an undisturbed run over the same items writes;
- every item has ended `done`, every follow-on and child is there once, and the counts add up.

Prints a summary, and exits with 1 if one of these does not hold. `--store` is `sqlite` or `postgres`, each with a database
of its own that goes with the run, or the address of an empty store.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from holdfast import Holdfast
from holdfast.answers import ListedItem, LoggedEvent
from holdfast.model.states import OPEN
from holdfast.store.postgres_address import read_url
from holdfast.worker import Settings
from tests.support import paid_books
from tests.support.cluster import Cluster
from tests.support.paid_books import PARTS, Tables, app_for
from tests.support.paid_server import VARIABLE, Call, PaidServer
from tests.support.paid_workers import Herd

#: How many books are under way at a time.
IN_FLIGHT = 24
#: Points a worker passes before it is killed, at most: a few hundred are a short but full life.
MOST_POINTS = 600
#: A run in which nothing has moved for so long is stuck.
STUCK_SECONDS = 120.0
#: What may go wrong with an attempt here, beside the death of its worker.
EXPECTED = ("ProviderRefused", "Overloaded: ", "ProcessDied: ")


@dataclass
class Verdict:
    """What a run has shown."""

    books: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    names: int = 0
    in_doubt: int = 0
    #: Calls beyond the first of their name: each after a crash between call and record.
    repeated: int = 0
    #: Items that so many workers died over that nobody tried any more, until a person sent them back.
    given_up: int = 0
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        total = sum(self.kills.values())
        yield f"{total:,} kills in {self.seconds:.0f} s over {self.books:,} books: " + ", ".join(
            f"{n:,} {how}" for how, n in sorted(_by_kind(self.kills).items())
        )
        yield f"{self.names:,} paid calls by name, {self.calls:,} made; {self.repeated:,} made again after a crash"
        yield f"{self.in_doubt:,} calls were in doubt; {self.given_up:,} items were sent back by a person"
        yield from (f"VIOLATION: {one}" for one in self.violations[:50])
        yield f"{len(self.violations):,} violations" if self.violations else "no violation"


def torture(url: str, folder: Path, kills: int, *, seed: int = 0, workers: int = 3, say: bool = False) -> Verdict:
    """Run until so many workers were killed, work off the rest, and judge."""
    rng = random.Random(seed)
    began = time.monotonic()
    own = Tables(None if url.startswith("sqlite:") else read_url(url)[1])
    with PaidServer(folder / "calls") as server, app_for(url) as app:
        app.register()
        own.create(url)
        server.fails = lambda key, name: rng.random() < 0.01
        server.delay = lambda key, name: rng.random() * 0.01
        with Herd(url, folder, "books", server.environment) as herd:
            books = _kill(app, server, herd, rng, kills, workers, say)
            server.after_reply = lambda call: None
            for pid in herd.alive():
                herd.kill(pid)
            given_up = _work_off(app, herd)
            verdict = _judge(app, server, herd, own.read(url), books)
    verdict.given_up = given_up
    verdict.seconds = time.monotonic() - began
    return verdict


# The killing ----------------------------------------------------------------------------------------------------------


def _kill(
    app: Holdfast, server: PaidServer, herd: Herd, rng: random.Random, kills: int, workers: int, say: bool
) -> list[str]:
    """Keep workers alive and work before them until so many were killed; return the books that were added."""
    books: list[str] = []
    #: When to kill whom, for those who are killed at some time.
    due: dict[int, float] = {}
    look_at = say_at = 0.0
    moved = (time.monotonic(), 0)

    def after_reply(call: Call) -> None:
        if rng.random() < 0.05:
            paid_books.tell_of(herd.ledger, killed=call.pid, how="after the provider's reply")
            with _gone_is_fine():
                os.kill(call.pid, signal.SIGKILL)

    server.after_reply = after_reply
    while (done := len(herd.told("killed"))) < kills:
        now = time.monotonic()
        alive = herd.alive()
        for pid in [pid for pid in due if pid not in alive or due[pid] <= now]:
            if due.pop(pid) <= now and pid in alive:
                herd.kill(pid)
                alive.remove(pid)
        while len(alive) < workers:
            alive.append(_start(herd, rng, due))
        if now >= look_at:
            look_at = now + 0.25
            fresh = [f"book-{len(books) + n}" for n in range(IN_FLIGHT - _unfinished(app))]
            if fresh:
                app.add("books", fresh)
                books += fresh
        if done > moved[1]:
            moved = (now, done)
        elif now - moved[0] > STUCK_SECONDS:
            raise RuntimeError(f"nobody was killed for {STUCK_SECONDS:.0f} s: {app.status()}\n{herd.said}")
        if say and now >= say_at:
            say_at = now + 10
            print(f"{done:,} of {kills:,} kills, {len(books):,} books", file=sys.stderr, flush=True)
        time.sleep(0.01)
    return books


def _start(herd: Herd, rng: random.Random, due: dict[int, float]) -> int:
    """A worker whose end is settled when it begins."""
    concurrency = rng.choice([1, 2, 4, 8])
    fate = rng.random()
    if fate < 0.6:
        # As many early ends as late ones: most of the trouble is near the beginning and in the first commits.
        return herd.start(die_after=max(1, round(MOST_POINTS ** rng.random())), concurrency=concurrency)
    environment = {"HOLDFAST_TEST_DIE_IN_EFFECT": "0.2"} if fate < 0.9 else {}
    pid = herd.start(concurrency=concurrency, environment=environment)
    due[pid] = time.monotonic() + rng.uniform(0.05, 1.0)
    return pid


def _unfinished(app: Holdfast) -> int:
    """How many books have not come to their last stage."""
    [books] = [one for one in app.status().pipelines if one.name == "books"]
    added = sum(books.stages[0].states.values())
    return int(added - books.stages[-1].states.get("done", 0))


def _work_off(app: Holdfast, herd: Herd) -> int:
    """Let two workers finish in peace. What too many workers died over is sent back, as a person would."""
    given_up = 0
    herd.start()
    herd.start()
    give_up_at = time.monotonic() + STUCK_SECONDS
    while True:
        states = Counter[str]()
        for pipeline in app.status().pipelines:
            for stage in pipeline.stages:
                states.update(stage.states)
        if not OPEN & states.keys():
            if not states["exhausted"]:
                return given_up
            given_up += sum(app.retry(states=["exhausted"], by="torture").values())
        if time.monotonic() > give_up_at:
            raise RuntimeError(f"not done within {STUCK_SECONDS:.0f} s: {app.status()}\n{herd.said}")
        time.sleep(0.05)


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    try:
        yield
    except ProcessLookupError:
        pass


# The judgement --------------------------------------------------------------------------------------------------------


def _judge(
    app: Holdfast, server: PaidServer, herd: Herd, rows: Mapping[str, list[tuple[Any, ...]]], books: list[str]
) -> Verdict:
    deaths = herd.told("killed")
    verdict = Verdict(books=len(books), kills=Counter(death["how"] for death in deaths))
    dead = {death["killed"] for death in deaths}
    # On a busy machine, one that was not killed may be taken for dead: its name is its process number.
    dead |= {int(event.data["name"][1:]) for event in _events(app, "worker_died")}
    _judge_calls(verdict, app, server.calls(), dead)
    _judge_items(verdict, app, books)
    _judge_rows(verdict, rows, undisturbed(books))
    return verdict


def _judge_calls(verdict: Verdict, app: Holdfast, calls: list[Call], killed: set[int]) -> None:
    """The provider's book against the event log."""
    doubts = Counter(event.data["idempotency_key"] for event in _events(app, "in_doubt"))
    by_key: dict[str, list[Call]] = {}
    for call in calls:
        by_key.setdefault(call.idempotency, []).append(call)
    names = {(call.key, call.name) for call in calls}
    verdict.calls, verdict.names, verdict.in_doubt = len(calls), len(names), sum(doubts.values())
    if len(by_key) != len(names):
        verdict.violations.append(f"{len(names)} paid calls had {len(by_key)} idempotency keys")
    for key, same in by_key.items():
        what = f"{same[0].name!r} of {same[0].key!r}"
        if len({(call.key, call.name) for call in same}) > 1:
            verdict.violations.append(f"the idempotency key of {what} was used for another call")
        verdict.repeated += len(same) - 1
        for earlier in same[:-1]:
            if not killed & {earlier.pid, earlier.worker}:
                verdict.violations.append(f"{what} was paid for again though nobody was killed who had called before")
        if len(same) - 1 > doubts[key]:
            verdict.violations.append(f"{what} was paid for {len(same)} times and was {doubts[key]} times in doubt")
    price = Decimal(str(paid_books.PRICE))
    books = app.costs(("pipeline",)).total
    paid, in_doubt = books.costs, books.in_doubt
    if paid != len(names) * price:
        verdict.violations.append(f"{paid} are on the books for {len(names)} paid calls")
    if paid + in_doubt < len(calls) * price:
        verdict.violations.append(f"{len(calls)} calls were charged, and {paid} + {in_doubt} in doubt are on the books")
    if in_doubt != verdict.in_doubt * price:
        verdict.violations.append(f"{in_doubt} are in doubt for {verdict.in_doubt} calls in doubt")


def _judge_items(verdict: Verdict, app: Holdfast, books: list[str]) -> None:
    expected = {
        "books": set(books),
        "connections": set(books),
        "pieces": {f"{book}/{n}" for book in books for n in range(PARTS)},
    }
    for pipeline in app.status().pipelines:
        name = pipeline.name
        there = {row.key for row in _items(app, name)}
        if there != expected[name]:
            verdict.violations.append(
                f"{name}: {len(expected[name] - there)} items are missing, {len(there - expected[name])} extra"
            )
        for stage in pipeline.stages:
            if stage.states != {"done": len(expected[name])}:
                verdict.violations.append(f"{name}/{stage.name}: {stage.states}, not {len(expected[name])} done")
    verdict.violations += app.check()
    for event in _events(app, "attempt_failed"):
        if not event.data["error"].startswith(EXPECTED):
            verdict.violations.append(f"an attempt failed: {event.data['error']}")


def _judge_rows(
    verdict: Verdict, rows: Mapping[str, list[tuple[Any, ...]]], expected: Mapping[str, list[tuple[Any, ...]]]
) -> None:
    for table, wanted in expected.items():
        missing, extra = Counter(wanted) - Counter(rows[table]), Counter(rows[table]) - Counter(wanted)
        if missing or extra:
            verdict.violations.append(
                f"table {table}: {missing.total()} rows are missing, {extra.total()} extra, such as "
                f"{list(missing)[:2]} and {list(extra)[:2]}"
            )


def undisturbed(books: list[str]) -> dict[str, list[tuple[Any, ...]]]:
    """What a run that nobody disturbs writes for these books."""
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        url = f"sqlite:///{folder}/calm.db"
        with PaidServer(Path(folder) / "calls") as server, app_for(url) as app, _environment(server):
            app.add("books", books)
            Tables(None).create(url)
            app.run(Settings(concurrency=16))
            return Tables(None).read(url)


@contextmanager
def _environment(server: PaidServer) -> Iterator[None]:
    """The undisturbed run is in this process."""
    names = (VARIABLE, paid_books.SCHEMA)
    before = {name: os.environ.pop(name, None) for name in names}
    os.environ.update(server.environment)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _events(app: Holdfast, event: str) -> Iterator[LoggedEvent]:
    after = 0
    while page := app.events(event=event, after=after, most=5000):
        yield from page
        after = page[-1].id


def _items(app: Holdfast, pipeline: str) -> Iterator[ListedItem]:
    after = 0
    while page := app.items(pipeline=pipeline, after=after, most=5000):
        yield from page
        after = page[-1].id


def _by_kind(kills: Counter[str]) -> Counter[str]:
    """Points by what they are; the rest by its name."""
    kinds = Counter[str]()
    for how, n in kills.items():
        known = how in ("at some time", "effect", "after the provider's reply")
        kinds[how if known else "before a statement" if how.startswith("store.") else f"at {how}"] += n
    return kinds


# The command ----------------------------------------------------------------------------------------------------------


@contextmanager
def _store(given: str, folder: Path) -> Iterator[str]:
    if given == "sqlite":
        yield f"sqlite:///{folder}/torture.db"
    elif given == "postgres":
        with Cluster() as cluster:
            yield cluster.url()
    else:
        yield given


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.torture", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10_000)
    parser.add_argument("--store", default="sqlite", help="sqlite, postgres, or the address of an empty store")
    parser.add_argument("--seed", type=int, default=None, help="draws the same lots; the machine still has its say")
    parser.add_argument("--workers", type=int, default=3)
    given = parser.parse_args()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1_000_000)
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-torture-") as folder, _store(given.store, Path(folder)) as url:
        verdict = torture(url, Path(folder), given.kills, seed=seed, workers=given.workers, say=True)
    print("\n".join(verdict.lines()))
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
