"""How a command that works is watched: ports for scrapers and probes, and a heartbeat file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli import options
from holdfast.model.log_lines import logger
from holdfast.telemetry.health import Health, HeartbeatFile
from holdfast.telemetry.metrics import Metrics
from holdfast.telemetry.metrics_gauges import build_info

if TYPE_CHECKING:
    from holdfast.telemetry.http_server import HttpServer, Page, Pages

log = logger("holdfast.worker")

_port = click.IntRange(0, 65535)

#: The options, which `Monitoring` takes.
monitoring = options.together(
    click.option("--metrics-port", type=_port, help="Serve /metrics for Prometheus on this port."),
    click.option("--health-port", type=_port, help="Serve /livez and /readyz on this port; it may be the same one."),
    click.option(
        "--monitoring-host",
        type=options.text,
        default="127.0.0.1",
        show_default=True,
        metavar="ADDRESS",
        help="The address on which these ports listen.",
    ),
    click.option(
        "--heartbeat-file",
        type=options.text,
        metavar="PATH",
        help="Touch this file every few seconds as long as the worker is live.",
    ),
)


@dataclass
class Monitoring:
    """What the options ask for. Nothing listens before the first tick, when a worker has forked what it forks: other processes
    must not share its ports."""

    metrics_port: int | None
    health_port: int | None
    monitoring_host: str
    heartbeat_file: str | None

    def __post_init__(self) -> None:
        if self.wants_metrics:
            from holdfast.telemetry.metrics_prometheus import require_extra

            require_extra()
        self._file = None if self.heartbeat_file is None else HeartbeatFile(self.heartbeat_file)
        self._metrics: Metrics | None = None
        self._health: Callable[[], Health] = lambda: Health(True, False, "it has not begun")
        self._store: Callable[[], str] = lambda: ""
        self._is_open = False
        self._servers: list[HttpServer] = []
        # What is wrong with a port is said before the work begins.
        for port in self._ports():
            _server(self.monitoring_host, port, {}).close()

    @property
    def is_wanted(self) -> bool:
        return bool(self._ports() or self._file)

    @property
    def wants_metrics(self) -> bool:
        return self.metrics_port is not None

    def of(self, metrics: Metrics | None, health: Callable[[], Health], store: Callable[[], str]) -> None:
        """What is watched: its counts, its health, and the kind of its store."""
        self._metrics, self._health, self._store = metrics, health, store

    def tick(self) -> None:
        """To be called every now and then by the thread that drives the work."""
        if not self._is_open:
            self._is_open = True
            self._listen()
        if self._file is not None:
            self._file.touch(self._health())

    def close(self) -> None:
        for server in self._servers:
            server.close()
        if self._file is not None and self._is_open:
            self._file.remove()

    def _listen(self) -> None:
        for port in self._ports():
            from holdfast.telemetry.http_server import health_pages

            pages: dict[str, Callable[[], Page]] = {}
            if port == self.metrics_port and self._metrics is not None:
                pages |= _metrics_page(self._metrics, self._store)
            if port == self.health_port:
                pages |= health_pages(self._health)
            server = _server(self.monitoring_host, port, pages)
            self._servers.append(server)
            server.start()
            log.info("serving %s on %s port %d", ", ".join(pages), self.monitoring_host, server.port)

    def _ports(self) -> list[int]:
        return list(dict.fromkeys(port for port in (self.metrics_port, self.health_port) if port is not None))


def _server(host: str, port: int, pages: Pages) -> HttpServer:
    # Loaded here: most workers are not watched, and it takes a while.
    from holdfast.telemetry.http_server import HttpServer

    return HttpServer(host, port, pages)


def _metrics_page(metrics: Metrics, store: Callable[[], str]) -> Pages:
    from holdfast.telemetry.http_server import Page
    from holdfast.telemetry.metrics_prometheus import CONTENT_TYPE, text_of

    def page() -> Page:
        kind = store()  # which a parent does not know before one of its processes has reported
        return Page(text_of(metrics.read(), [build_info(kind)] if kind else []), 200, CONTENT_TYPE)

    return {"/metrics": page}


def taken_from(given: dict[str, Any]) -> Monitoring:
    """The options of monitoring, taken out of those of a command."""
    names = ("metrics_port", "health_port", "monitoring_host", "heartbeat_file")
    return Monitoring(**{name: given.pop(name) for name in names})
