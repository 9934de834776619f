"""W12: what people who look cost those who work: 20 open tabs, and a dashboard that is stopped or killed meanwhile."""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.contenders import Contender
from benchmarks.dashboard import Ui, sessions_of, stop_in_a_read, watched_log
from benchmarks.databases import Database
from benchmarks.place import fresh_place
from benchmarks.tabs import TABS
from benchmarks.workload import Case, Figure, Figures, Options, Workload, ratio, whole

NOBODY = "nobody looks"
#: Tabs need some seconds to be worth anything.
TIMES_ITEMS = 5


class Watching(Workload):
    """A worker drains items that do nothing, as in W2, while a process of `holdfast ui` is looked at. A tab has a page of its
    own and the stream of it, and goes to another page now and then.

    Tabs of another store show what it costs a worker that the machine has something else to do."""

    name = "W12"
    title = f"drain while a dashboard is open in {TABS} tabs"
    base_title = "against nobody"
    figures = (
        Figure("worker_us", "worker CPU µs/step", lambda value: f"{value:.1f}", rises=False),
        Figure("server_us", "server CPU µs/step", whole, rises=False),
        Figure("rate", "items/s", whole),
        Figure("ui_share", "dashboard, of a core", lambda value: f"{100 * value:.0f} %", rises=False),
        Figure("seen", "updates/s of a tab", ratio),
        Figure("log_mb", "longest log, MB", whole, rises=False),
    )

    def cases(self, options: Options) -> list[Case]:
        return [
            Case(NOBODY),
            Case("20 tabs", {"tabs": True}, base=NOBODY),
            Case("20 tabs of another store", {"tabs": True, "elsewhere": True}, base=NOBODY),
            Case("20 tabs, stopped in a read", {"tabs": True, "then": "stop"}, base=NOBODY),
            Case("20 tabs, killed", {"tabs": True, "then": "kill"}, base=NOBODY),
        ]

    def measure(self, contender: Contender, database: Database, case: Case, options: Options) -> Figures:
        items = TIMES_ITEMS * options.items
        with fresh_place(contender, database, options.patience_seconds) as place, ExitStack() as stack:
            place.run("add", items=items)
            watched = place
            if case.settings.get("elsewhere"):
                watched = stack.enter_context(fresh_place(contender, database, options.patience_seconds))
                watched.run("add", items=items)
            database.settle()
            tabs = place.board(TABS)
            ui = None
            if case.settings.get("tabs"):
                ui = stack.enter_context(Ui(watched.url))
                stack.enter_context(place.start("watch", ui=ui.address, board=place.board_file))
            log = stack.enter_context(watched_log(place.url))
            then = case.settings.get("then")
            before, seen = database.cpu_seconds(), sum(tabs.ends)
            spent = ui.cpu_seconds() if ui is not None else None
            sessions = sessions_of(place.url)
            drain = stack.enter_context(place.start("drain", items=items))
            if ui is not None and then == "stop":
                stop_in_a_read(ui, place.url, sessions)
            if ui is not None and then == "kill":
                ui.kill_when(lambda: sum(tabs.ends) > seen + 2 * TABS)
            found = drain.hear()
            after = database.cpu_seconds()
            seconds = found["ended"] - found["began"]
            alive = ui is not None and then is None
            return {
                "worker_us": 1e6 * found["cpu_seconds"] / items,
                "server_us": None if before is None or after is None else 1e6 * (after - before) / items,
                "rate": items / seconds,
                "ui_share": (ui.cpu_seconds() - spent) / seconds if alive and ui and spent is not None else None,
                "seen": (sum(tabs.ends) - seen) / seconds / TABS if alive else None,
                "log_mb": log.most_mb,
            }
