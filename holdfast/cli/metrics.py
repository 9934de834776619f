"""`holdfast metrics`: the gauges of a whole store, for a Prometheus; printed once, or served until stopped."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import click

from holdfast.app import Holdfast
from holdfast.cli import options
from holdfast.errors import StoreError, StoreUnavailable, UsageError
from holdfast.model.log_lines import logger
from holdfast.signals import caught
from holdfast.telemetry.http_server import HttpServer, Page
from holdfast.telemetry.metrics_counts import Counts
from holdfast.telemetry.metrics_gauges import Sample
from holdfast.telemetry.metrics_otel import meter, observe_store
from holdfast.telemetry.metrics_prometheus import CONTENT_TYPE, has_extra, require_extra, text_of

log = logger("holdfast.metrics")

#: How long a scraper waits for an answer; and how long an answer is used, also in times of what it took: however many scrape,
#: the store has little to do.
LIMIT_SECONDS = 5.0
FRESH_SECONDS = 1.0
TIMES_TAKEN = 20


@click.command(short_help="The state of the store, for Prometheus.")
@click.option("--port", type=click.IntRange(0, 65535), help="Serve /metrics on this port until stopped; 0 for any.")
@click.option("--once", is_flag=True, help="Print the metrics and exit.")
@click.option(
    "--host", type=options.text, default="127.0.0.1", show_default=True, help="The address or name to listen on."
)
@options.common(json=False, log_format=True)
def metrics(port: int | None, once: bool, host: str, store: str | None) -> None:
    """Serve gauges about the whole store in the format of Prometheus: stages by state, how long work has been due,
    budgets, paid calls in doubt, resources, workers.

    Run it once per store. Workers serve their own counters with --metrics-port. The store is only read.
    """
    if (port is None) != once:
        raise UsageError("give --port or --once")
    if port is None or meter() is None:
        require_extra()
    with options.open_to_ask(store) as app:
        if port is None:
            click.echo(text_of(Counts(), app.gauges()), nl=False)
        else:
            _serve(SharedGauges(app), host, port)


def _serve(gauges: SharedGauges, host: str, port: int) -> None:
    asked: list[int] = []
    server: HttpServer | None = None
    is_observed = False
    try:
        # Before the port opens: a process that sees it open may stop this one at once.
        with caught(asked.append):
            server = HttpServer(host, port, {"/metrics": lambda: _page(gauges)})
            is_observed = observe_store(gauges.read_if_possible)
            server.start()
            click.echo(f"http://{f'[{host}]' if ':' in host else host}:{server.port}/metrics")
            # Not an event: a signal handler may interrupt what holds its lock.
            while not asked:
                time.sleep(0.2)
    finally:
        if server is not None:
            server.close()
        if is_observed:
            # An SDK exports once more when the process ends.
            gauges.read_if_possible()
        gauges.close()


def _page(gauges: SharedGauges) -> Page:
    if not has_extra():
        return Page(b"the metrics go to OpenTelemetry; for this page, install holdfast[metrics]\n", 501)
    return Page(text_of(Counts(), gauges.read()), 200, CONTENT_TYPE)


class SharedGauges:
    """The gauges of a store, asked for by one thread, for all who want to know."""

    def __init__(self, app: Holdfast) -> None:
        self._app = app
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-metrics")
        self._lock = threading.Lock()
        self._asked: Future[tuple[Sample, ...]] | None = None
        self._give_up_at = 0.0
        self._fresh_until = 0.0
        #: What the store last answered.
        self._newest: tuple[Sample, ...] = ()
        self._is_closed = False
        self._has_complained = False
        #: How often the store was asked.
        self.count = 0

    def read(self) -> tuple[Sample, ...]:
        """The newest answer, or one that is hardly older. Raises StoreUnavailable if there is none in time."""
        with self._lock:
            if self._is_closed:
                return self._newest
            if self._asked is None or (self._asked.done() and time.monotonic() >= self._fresh_until):
                self._asked = self._thread.submit(self._ask)
                self._give_up_at = time.monotonic() + LIMIT_SECONDS
            asked = self._asked
        try:
            # All who wait for one answer give up together: an SDK asks for each of its instruments, one after another.
            return asked.result(max(0.0, self._give_up_at - time.monotonic()))
        except TimeoutError:
            raise StoreUnavailable(f"the store did not answer within {LIMIT_SECONDS:g} s") from None

    def read_if_possible(self) -> tuple[Sample, ...]:
        """The same for an SDK, which logs a traceback for each instrument that raises: nothing, and one line, if the store does
        not answer."""
        try:
            found = self.read()
        except StoreError as error:
            if not self._has_complained:
                log.warning("there are no gauges until the store answers: %s", error)
            self._has_complained = True
            return ()
        self._has_complained = False
        return found

    def close(self) -> None:
        """End the thread. Who still reads gets the newest answer."""
        with self._lock:
            self._is_closed = True
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _ask(self) -> tuple[Sample, ...]:
        began = time.monotonic()
        self.count += 1
        try:
            self._newest = self._app.gauges()
            return self._newest
        finally:
            ended = time.monotonic()
            self._fresh_until = ended + max(FRESH_SECONDS, TIMES_TAKEN * (ended - began))
