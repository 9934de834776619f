"""A worker that does nothing but alerting, as a process of its own: for a test that kills it."""

from __future__ import annotations

import json
import os
import sys
import time

from holdfast.engine import workers
from holdfast.engine.workers import Identity
from holdfast.model.alert import AlertRule
from holdfast.store import open_store
from holdfast.store.store import new_identity
from holdfast.worker import machine
from holdfast.worker.alerting import Alerting


def main() -> None:
    url, name, given = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    store = open_store(url)
    who = Identity(new_identity(), name, machine.this_host(), machine.this_process(), 60_000_000)
    store.write(lambda tx: workers.join(tx, who, [], {}))
    alerting = Alerting(store, [AlertRule.read("a", given)], lambda: who.id, poll_seconds=0.05)
    alerting.start()
    print("ready", os.getpid(), flush=True)
    time.sleep(60)
