"""Whether a worker is live and ready: over HTTP, by a file, and through a parent that speaks for several processes."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Pipeline
from holdfast.engine import workers
from holdfast.engine.workers import Identity
from holdfast.errors import UsageError
from holdfast.telemetry.health import Health, HeartbeatFile
from holdfast.telemetry.http_server import HttpServer, health_pages
from holdfast.telemetry.metrics import Metrics
from holdfast.telemetry.sum_of_processes import SILENT_SECONDS, Fleet, Reporter
from holdfast.worker import health as health_of_worker
from tests.cli.conftest import BOOKS, Commands
from tests.docs.test_guides import ROOT, blocks
from tests.support.bench import Bench
from tests.support.scrapes import fetch, free_port
from tests.support.steps import ask
from tests.support.waiting import wait_for

pytestmark = pytest.mark.req("P18")

PATIENCE = 120.0


def plain() -> Pipeline[Any]:
    pipeline = Pipeline("books")

    @pipeline.stage()
    def only(item: Any, ctx: Any) -> None:
        return None

    return pipeline


def test_a_worker_that_works_is_live_and_ready_and_one_that_stops_is_not_ready(run: Bench) -> None:
    with run.serving(plain(), ["a"]) as (worker, ran):
        wait_for(lambda: ran.states("only").get("done") == 1)
        assert worker.health() == Health(True, True)
        worker.stop()
        assert worker.health()[:2] == (True, False)
        assert "stopping" in worker.health().reason


def test_a_worker_without_accepted_heartbeats_is_live_but_not_ready(
    run: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run.serving(plain(), lease_seconds=30.0) as (worker, _):
        wait_for(lambda: worker.health().ready)
        monkeypatch.setattr(worker._heartbeat, "_beaten", time.monotonic() - 31)
        found = worker.health()
        assert (found.live, found.ready) == (True, False)
        assert "no heartbeat" in found.reason


@pytest.mark.parametrize("part", ["committer", "main thread"])
def test_a_worker_with_a_thread_that_hangs_is_not_live(run: Bench, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    with run.serving(plain()) as (worker, _):
        wait_for(lambda: worker.health().ready)
        committer, heartbeat = worker._committer, worker._heartbeat
        looked_at = time.monotonic()
        if part == "committer":
            # Somebody holds the turn and does not come back.
            with committer._turn:
                monkeypatch.setattr(health_of_worker, "STUCK_SECONDS", 0.0)
                monkeypatch.setattr(health_of_worker, "STUCK_LEASES", 0)
                patience = worker.settings.poll_seconds
                wait_for(lambda: time.monotonic() - committer.progress_at > patience)
                found = health_of_worker.health_of(committer, heartbeat, time.monotonic(), worker.settings, False)
        else:
            hung = looked_at - health_of_worker.STUCK_SECONDS - 4 * worker.settings.lease_seconds
            found = health_of_worker.health_of(committer, heartbeat, hung, worker.settings, False)
        assert (found.live, found.ready) == (False, False)
        assert part in found.reason


def test_a_database_in_trouble_does_not_make_a_worker_dead(run: Bench) -> None:
    """A new process could not reach it either."""
    with run.serving(plain()) as (worker, _):
        wait_for(lambda: worker.health().ready)
        committer = worker._committer
        with committer._turn:
            committer._last = 0.0
            assert time.monotonic() - committer.progress_at > 0.0
            from holdfast.errors import StoreUnavailable

            committer._complain(StoreUnavailable("no route to host"))
            assert worker.health().live


def test_probes_are_answered_with_200_or_503_and_the_reason() -> None:
    said = [Health(True, True)]
    server = HttpServer("127.0.0.1", 0, health_pages(lambda: said[-1]))
    server.start()
    try:
        assert fetch(server.port, "/livez") == (200, "ok\n")
        assert fetch(server.port, "/readyz?verbose") == (200, "ok\n")
        said.append(Health(True, False, "the store is away"))
        assert fetch(server.port, "/livez")[0] == 200
        assert fetch(server.port, "/readyz") == (503, "the store is away\n")
        said.append(Health(False, False, "it hangs"))
        assert fetch(server.port, "/livez") == (503, "it hangs\n")
        assert fetch(server.port, "/metrics")[0] == 404
        with pytest.raises(UsageError, match=f"port {server.port}"):
            HttpServer("127.0.0.1", server.port, {})
    finally:
        server.close()
    assert fetch(server.port, "/livez")[0] == 0


def test_a_process_that_a_handler_forks_does_not_keep_the_port() -> None:
    server = HttpServer("127.0.0.1", 0, health_pages(lambda: Health(True, True)))
    server.start()
    port = server.port
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(read, 1)
        os._exit(0)
    try:
        assert fetch(port, "/livez")[0] == 200
        server.close()
        HttpServer("127.0.0.1", port, {}).close()
    finally:
        os.write(write, b".")
        assert os.waitpid(child, 0)[1] == 0
        os.close(read)
        os.close(write)


def test_a_reporter_writes_into_no_other_file_that_has_got_its_descriptor(tmp_path: Path) -> None:
    read, write = os.pipe()
    reporter = Reporter(write, "sqlite")
    with (tmp_path / "other").open("wb") as other:
        os.dup2(other.fileno(), write)
        try:
            reporter.send(Metrics(), Health(True, True))
            reporter.close(Metrics())
            assert (tmp_path / "other").stat().st_size == 0
        finally:
            os.close(write)
    os.close(read)


def test_a_heartbeat_file_is_touched_while_the_process_is_live_and_removed_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.telemetry.health.TOUCH_SECONDS", 0.0)
    path = tmp_path / "beat"
    file = HeartbeatFile(path)
    file.touch(Health(False, False, "it hangs"))
    assert not path.exists()
    file.touch(Health(True, False))
    os.utime(path, (1, 1))
    file.touch(Health(False, False))
    assert path.stat().st_mtime == 1
    file.touch(Health(True, True))
    assert path.stat().st_mtime > 1
    file.remove()
    assert not path.exists()
    HeartbeatFile(tmp_path / "missing" / "beat").touch(Health(True, True))
    assert "heartbeat file cannot be written" in caplog.text


def check_as_the_guide_does(beat: Path) -> bool:
    """Whether the line of docs/guide/monitoring.md finds the worker live, with this heartbeat file."""
    lines = [line for block in blocks(ROOT / "docs/guide/monitoring.md", "sh") for line in block.splitlines()]
    [check] = [line for line in lines if line.startswith("test ")]
    assert "/run/holdfast/beat" in check
    typed = check.replace("/run/holdfast/beat", str(beat))
    return subprocess.run(["sh", "-c", typed], capture_output=True).returncode == 0


def test_a_command_serves_health_and_metrics_on_one_port_and_keeps_its_file(cli: Commands, tmp_path: Path) -> None:
    (tmp_path / "books.py").write_text(BOOKS)
    port, beat = free_port(), tmp_path / "beat"
    worker = cli.start(
        "worker",
        str(tmp_path / "books.py"),
        f"--metrics-port={port}",
        f"--health-port={port}",
        f"--heartbeat-file={beat}",
    )
    wait_for(lambda: fetch(port, "/readyz")[0] == 200, PATIENCE)
    assert fetch(port, "/livez")[0] == 200
    assert "holdfast_build_info" in fetch(port)[1]
    wait_for(beat.exists)
    assert check_as_the_guide_does(beat)
    # Of two that want one port, the second says so before it begins.
    second = cli("worker", str(tmp_path / "books.py"), f"--health-port={port}", code=2)
    assert f"port {port}" in second.stderr
    worker.terminate()
    assert worker.wait(60) == 0
    assert not beat.exists()
    assert not check_as_the_guide_does(beat)


def test_the_check_of_the_guide_fails_once_the_heartbeat_file_is_older_than_it_says(tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    beat.touch()
    for age, is_live in ((0, True), (600, False)):
        os.utime(beat, (time.time() - age,) * 2)
        assert check_as_the_guide_does(beat) == is_live, age


def test_a_parent_speaks_for_the_health_and_the_counts_of_its_processes() -> None:
    now = [1000.0]
    total = Metrics()
    fleet = Fleet(total, lambda: now[0])
    assert fleet.health()[:2] == (True, False)
    first, second = fleet.listener(0), fleet.listener(1)
    child = Metrics()
    child.begin([("p", "s")])
    read, write = os.pipe()
    reporter = Reporter(write, "sqlite")
    child.committed("cycle", 3, 0.01, None)
    reporter.send(child, Health(True, True))
    line = os.read(read, 65_536)
    # However it arrives.
    for place in range(len(line)):
        first(line[place : place + 1])
    assert (fleet.health(), fleet.store) == (Health(True, True), "sqlite")
    assert total.read().sent() == child.read().sent()
    second(line.replace(b"[true,true", b"[true,false"))
    assert fleet.health() == Health(True, True)
    now[0] += SILENT_SECONDS + 1
    assert not fleet.health().live
    # One that has died is replaced by its parent, and does not count.
    first(b'{"half a li')
    first(None)
    second(None)
    assert fleet.health()[:2] == (True, False)
    os.close(read)
    reporter.close(child)


def test_a_parent_that_does_not_read_keeps_no_child_from_its_work() -> None:
    read, write = os.pipe()
    child, total = Metrics(), Metrics()
    child.begin((f"pipeline-{n}", "stage") for n in range(500))
    reporter = Reporter(write, "sqlite")
    fleet = Fleet(total)
    listen = fleet.listener(0)
    for n in range(50):
        child.committed("cycle", n, 0.01, None)
        reporter.send(child, Health(True, True))  # would block for ever if it waited
    os.set_blocking(read, False)

    def drain() -> bool:
        try:
            while piece := os.read(read, 65_536):
                listen(piece)
        except BlockingIOError:
            pass
        return value_of(total) == value_of(child)

    def value_of(metrics: Metrics) -> int:
        return sum(total for _, _, _, total in metrics.read().spreads())

    def send_and_drain() -> bool:
        reporter.send(child, Health(True, True))
        return drain()

    wait_for(send_and_drain)
    os.close(read)
    reporter.close(child)


def test_doctor_tells_a_script_what_a_person_should_look_at(cli: Commands) -> None:
    pipeline = Pipeline("books", store=cli.url)

    @pipeline.stage()
    def only(item: Any, ctx: Any) -> None:
        return None

    cli("db", "upgrade")
    assert cli.json("doctor", "--exit-code")["findings"] == []
    pipeline.add(["a"])
    # A worker may be about to start.
    cli("doctor", "--exit-code")
    with Holdfast(cli.url, [pipeline.spec]) as app:
        app.store.write(lambda tx: ask(tx, "UPDATE holdfast_waiting SET since = since - 61000000"))
        assert "no living worker runs this stage" in cli("doctor", "--exit-code", code=1).stdout
        cli("doctor")
        app.pause("books")
        cli("doctor", "--exit-code")
        app.resume("books")
        worker = app.worker()
        worker.start()
        try:
            wait_for(lambda: not app.doctor().findings)
        finally:
            worker.stop()
            worker._finish()
        who = Identity(4711, "gone", "elsewhere", "1 1", 1)
        app.store.write(lambda tx: workers.join(tx, who, {}, {}))
        wait_for(lambda: app.doctor().findings == ("worker gone is silent",))
        cli("doctor", "--exit-code", code=1)
