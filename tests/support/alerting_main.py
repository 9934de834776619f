"""A worker that does nothing but alerting, as a process of its own: for a test that kills it."""

from __future__ import annotations

import json
import os
import sys
import time

from holdfast.engine import workers
from holdfast.engine.workers import Identity
from holdfast.model.alert import AlertRule
from holdfast.runtime import process_identity as machine
from holdfast.runtime.services import ServiceThread
from holdfast.store import open_store
from holdfast.store.store import new_identity
from holdfast.worker.background.alerts import Alerts


def main() -> None:
    url, name, given = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    store = open_store(url)
    who = Identity(new_identity(), name, machine.this_host(), machine.this_process(), 60_000_000)
    store.write(lambda tx: workers.join(tx, who, {}, {}))
    ServiceThread([Alerts(store.another(), [AlertRule.read("a", given)], lambda: who.id, 0.05)]).start()
    print("ready", os.getpid(), flush=True)
    time.sleep(60)
