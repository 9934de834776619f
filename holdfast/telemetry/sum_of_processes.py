"""What worker processes report to the parent that speaks for all of them: counts and health, over the pipe they have."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import msgspec

from holdfast.model.log_lines import logger
from holdfast.telemetry.health import Health
from holdfast.telemetry.metrics import Metrics
from holdfast.telemetry.metrics_counts import SentCounts

log = logger("holdfast.telemetry")

#: A process that has reported nothing for so long hangs.
SILENT_SECONDS = 60.0
#: How long the end of a process waits for its parent to read.
FAREWELL_SECONDS = 2.0


class Report(msgspec.Struct):
    """One line."""

    health: Health
    #: The kind of its store.
    store: str
    counts: SentCounts


_DECODER = msgspec.json.Decoder(Report)


class Reporter:
    """The child's side. A parent that does not read must not keep the child from its work: what does not fit waits."""

    def __init__(self, descriptor: int, store: str) -> None:
        self._descriptor = descriptor
        self._store = store
        self._unsent = b""
        self._pipe = os.fstat(descriptor)
        os.set_blocking(descriptor, False)

    def send(self, metrics: Metrics, health: Health) -> None:
        if not self._unsent:
            self._unsent = msgspec.json.encode(Report(health, self._store, metrics.take().sent())) + b"\n"
        self._write()

    def close(self, metrics: Metrics) -> None:
        """The work has ended: report the rest."""
        give_up_at = time.monotonic() + FAREWELL_SECONDS
        self._wait(give_up_at)
        self.send(metrics, Health(True, False, "the worker has ended"))
        self._wait(give_up_at)
        if self._is_open():
            os.close(self._descriptor)

    def _wait(self, until: float) -> None:
        while self._unsent and time.monotonic() < until:
            self._write()
            if self._unsent:
                time.sleep(0.01)

    def _is_open(self) -> bool:
        """Whether the descriptor is still the pipe: a handler may have closed all it found, and others are opened since."""
        try:
            return os.path.samestat(self._pipe, os.fstat(self._descriptor))
        except OSError:
            return False

    def _write(self) -> None:
        if not self._is_open():
            self._unsent = b""
            return
        try:
            self._unsent = self._unsent[os.write(self._descriptor, self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            # The parent is gone, which others notice.
            self._unsent = b""


class Fleet:
    """The parent's side: adds up the counts of all processes, and knows the last health of each."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._last: dict[int, tuple[float, Health]] = {}
        #: The kind of their store, once one has reported.
        self.store = ""

    def listener(self, place: int) -> Callable[[bytes | None], None]:
        """For one process: takes what it writes, in pieces of any length, and None at its end. Half a line of a process that
        was killed is dropped."""
        unread = b""

        def listen(read: bytes | None) -> None:
            nonlocal unread
            if read is None:
                self._last.pop(place, None)
                return
            *lines, unread = (unread + read).split(b"\n")
            for line in lines:
                self._take(place, line)

        return listen

    def health(self) -> Health:
        """Live, unless one of the processes hangs; ready if one is. A process that has died is started again by its parent."""
        now, last = self._clock(), dict(self._last)
        for place, (at, health) in sorted(last.items()):
            if not health.live:
                return Health(False, False, f"process {place + 1}: {health.reason}")
            if now - at > SILENT_SECONDS:
                return Health(False, False, f"process {place + 1} has reported nothing for {now - at:.0f} s")
        if any(health.ready for _, health in last.values()):
            return Health(True, True)
        reasons = [f"process {place + 1}: {health.reason}" for place, (_, health) in sorted(last.items())]
        return Health(True, False, "; ".join(reasons) or "no worker process has begun to work")

    def _take(self, place: int, line: bytes) -> None:
        try:
            report = _DECODER.decode(line)
        except msgspec.MsgspecError as error:
            log.warning("process %d: its report cannot be read: %s", place + 1, error)
            return
        self._last[place] = self._clock(), report.health
        self.store = report.store
        self._metrics.add(report.counts)
