"""`holdfast metrics`: the gauges of a whole store, for a Prometheus; printed once, or served until stopped."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import click

from holdfast.app import Holdfast
from holdfast.cli import options
from holdfast.errors import StoreUnavailable, UsageError
from holdfast.signals import caught
from holdfast.telemetry.http_server import HttpServer, Page
from holdfast.telemetry.metrics_counts import Counts
from holdfast.telemetry.metrics_gauges import Sample
from holdfast.telemetry.metrics_otel import observe_store
from holdfast.telemetry.metrics_prometheus import CONTENT_TYPE, require_extra, text_of

#: How long a scraper waits for an answer; and how long an answer is used, also in times of what it took: however many scrape,
#: the store has little to do.
LIMIT_SECONDS = 5.0
FRESH_SECONDS = 1.0
TIMES_TAKEN = 20


@click.command(short_help="The state of the store for a Prometheus.")
@click.option("--port", type=click.IntRange(0, 65535), help="Serve /metrics on this port until stopped; 0 for any.")
@click.option("--once", is_flag=True, help="Print the metrics and exit.")
@click.option(
    "--host", type=options.text, default="127.0.0.1", show_default=True, help="The address or name to listen on."
)
@options.common(json=False, log_format=True)
def metrics(port: int | None, once: bool, host: str, store: str | None) -> None:
    """Serve what is true of the whole store, as gauges in the format of Prometheus: stages by state, how long work has been
    due, budgets, paid calls in doubt, resources, workers.

    Run it once per store. What workers count themselves they serve with --metrics-port. The store is only read.
    """
    if (port is None) != once:
        raise UsageError("give --port or --once")
    require_extra()
    with options.open_to_ask(store) as app:
        if port is None:
            click.echo(text_of(Counts(), app.gauges()), nl=False)
        else:
            _serve(SharedGauges(app), host, port)


def _serve(gauges: SharedGauges, host: str, port: int) -> None:
    asked: list[int] = []
    server: HttpServer | None = None
    try:
        # Before the port opens: a process that sees it open may stop this one at once.
        with caught(asked.append):
            pages = {"/metrics": lambda: Page(text_of(Counts(), gauges.read()), 200, CONTENT_TYPE)}
            server = HttpServer(host, port, pages)
            observe_store(gauges.read)
            server.start()
            click.echo(f"http://{f'[{host}]' if ':' in host else host}:{server.port}/metrics")
            # Not an event: a signal handler may interrupt what holds its lock.
            while not asked:
                time.sleep(0.2)
    finally:
        if server is not None:
            server.close()
        gauges.close()


class SharedGauges:
    """The gauges of a store, asked for by one thread, for all who want to know."""

    def __init__(self, app: Holdfast) -> None:
        self._app = app
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-metrics")
        self._lock = threading.Lock()
        self._asked: Future[tuple[Sample, ...]] | None = None
        self._fresh_until = 0.0
        #: How often the store was asked.
        self.count = 0

    def read(self) -> tuple[Sample, ...]:
        """The newest answer, or one that is hardly older. Raises StoreUnavailable if there is none in time."""
        with self._lock:
            if self._asked is None or (self._asked.done() and time.monotonic() >= self._fresh_until):
                self._asked = self._thread.submit(self._ask)
            asked = self._asked
        try:
            return asked.result(LIMIT_SECONDS)
        except TimeoutError:
            raise StoreUnavailable(f"the store did not answer within {LIMIT_SECONDS:g} s") from None

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _ask(self) -> tuple[Sample, ...]:
        began = time.monotonic()
        self.count += 1
        try:
            return self._app.gauges()
        finally:
            ended = time.monotonic()
            self._fresh_until = ended + max(FRESH_SECONDS, TIMES_TAKEN * (ended - began))
