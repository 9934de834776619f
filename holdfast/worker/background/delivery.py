"""One delivery of one alert, in its own thread: a webhook, a command, or a line in the log.

The error text is short. It never contains the address or anything that was sent to it.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO

import msgspec

from holdfast.engine.alert_rules import Delivery
from holdfast.model import urls
from holdfast.model.alert import AlertRule
from holdfast.model.error_fingerprint import storable
from holdfast.model.log_lines import logger
from holdfast.runtime.allowed_addresses import HostRefused
from holdfast.runtime.fork_server import exit_in_words, kill_all_of
from holdfast.runtime.http_request import HttpFailed, HttpLimits, basic_authorization, request

log = logger("holdfast.alert")

#: How long a webhook may take to answer, and a command to end.
WEBHOOK_SECONDS, COMMAND_SECONDS = 10.0, 30.0
#: After this much longer a delivery is abandoned, for example if a host name does not resolve or a response trickles
#: in.
MARGIN_SECONDS = 5.0
#: How many bytes of a command's stderr are kept.
OUTPUT_BYTES = 400


class NotDelivered(Exception):
    """The delivery failed; the text says why and contains no secrets."""


def longest_request_seconds() -> float:
    """After how long a webhook is over, whatever its address does."""
    return WEBHOOK_SECONDS + MARGIN_SECONDS


class OngoingDelivery:
    """A delivery in progress. It is over when it ends or exceeds its time limit."""

    def __init__(self, rule: AlertRule | None, delivery: Delivery, on_end: Callable[[], None]) -> None:
        self.delivery = delivery
        #: Why it failed, once it is over.
        self.error: str | None = None
        self._rule = rule
        self._on_end = on_end
        self._ended = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._abandoned = False
        self._began = time.monotonic()
        self._limit = {"webhook": WEBHOOK_SECONDS, "command": COMMAND_SECONDS}.get(delivery.by, 1.0) + MARGIN_SECONDS

    @property
    def is_request(self) -> bool:
        """Whether the other side may act on it whatever becomes of it here."""
        return self.delivery.by == "webhook"

    def start(self) -> None:
        threading.Thread(target=self._run, name="holdfast-delivery", daemon=True).start()

    def is_over(self, now: float) -> bool:
        """Whether it is over. A delivery that has exceeded its time limit is abandoned here."""
        if self._ended.is_set():
            return True
        if now - self._began < self._limit:
            return False
        self.abandon()
        self.error = self.error or f"no end within {self._limit:.0f} s"
        return True

    def abandon(self) -> None:
        """Abandon it. A command is killed with every process in its group."""
        self._abandoned = True
        if self._process is not None:
            _kill(self._process)

    def _run(self) -> None:
        try:
            self._deliver()
        except NotDelivered as error:
            self.error = storable(str(error), 500)
        except BaseException as error:
            self.error = storable(f"{type(error).__name__}: {error}", 500)
        finally:
            self._ended.set()
            self._on_end()

    def _deliver(self) -> None:
        rule, one = self._rule, self.delivery
        if rule is None or one.by not in rule.ways:
            raise NotDelivered(f"the alert has no {one.by} any more")
        if one.by == "log":
            log.warning("alert %s", one.body["text"])
        elif one.by == "webhook":
            assert rule.webhook is not None
            post(rule.webhook, rule.headers, msgspec.json.encode(one.body), f"holdfast-alert-{one.id}")
        else:
            self._call(rule.command, msgspec.json.encode(one.body))

    def _call(self, command: tuple[str, ...], body: bytes) -> None:
        with tempfile.TemporaryFile() as output:
            try:
                # In its own process group, so that its child processes can be killed with it.
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=output, start_new_session=True
                )
            except (OSError, ValueError) as error:
                raise NotDelivered(
                    f"the command cannot be started: {getattr(error, 'strerror', None) or error}"
                ) from None
            self._process = process
            if self._abandoned:
                _kill(process)
            try:
                process.communicate(body, timeout=COMMAND_SECONDS)
            except subprocess.TimeoutExpired:
                _kill(process)
                process.wait()
                raise NotDelivered(f"the command did not end within {COMMAND_SECONDS:.0f} s and was killed") from None
            if process.returncode != 0:
                raise NotDelivered(f"the command ended with {exit_in_words(process.returncode)}{_last_output(output)}")


def post(address: str, headers: Mapping[str, str], body: bytes, idempotency_key: str) -> None:
    """Post a JSON body to an address; raises NotDelivered unless the response is a success. A redirect is none: the body would
    be lost."""
    limits = HttpLimits(WEBHOOK_SECONDS, WEBHOOK_SECONDS, WEBHOOK_SECONDS, allow_private=True)
    sent = {"Content-Type": "application/json", "User-Agent": "holdfast", "Idempotency-Key": idempotency_key}
    try:
        parts = urls.split(address)
        sent = {**sent, "Connection": "close", **basic_authorization(parts), **headers}
        with request(parts, sent, body, limits, limits.deadline()) as answer:
            status = answer.status
    except HttpFailed as failed:
        raise NotDelivered(_in_words(failed.__cause__)) from None
    except Exception as error:
        # The error's own text may contain the address.
        raise NotDelivered(_in_words(error)) from None
    if not 200 <= status < 300:
        raise NotDelivered(f"the address answered {status}")


def _in_words(error: object) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {WEBHOOK_SECONDS:.0f} s"
    if isinstance(error, HostRefused):
        return f"the address cannot be reached: its host {error}"
    if isinstance(error, OSError):
        return f"the address cannot be reached: {error.strerror or type(error).__name__}"
    return f"the address cannot be reached: {type(error).__name__}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a command and its process group, unless it has ended: by then its pid may belong to another process."""
    if process.poll() is None:
        kill_all_of(process.pid)


def _last_output(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - OUTPUT_BYTES))
    text = output.read().decode(errors="replace").strip()
    return f": {text}" if text else ""
