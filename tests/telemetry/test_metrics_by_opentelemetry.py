"""A program that has set up the SDK of OpenTelemetry gets the same metrics there; one that has not pays nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from holdfast import Holdfast, Pipeline
from holdfast.telemetry.metrics_otel import observe_gauges
from holdfast.telemetry.metrics_table import OF_STORE
from tests.docs.test_guides import blocks
from tests.support.mother import ROOT
from tests.support.scrapes import fetch

pytestmark = pytest.mark.req("P18")

PROGRAM = """
import sys
from holdfast import Holdfast, Pipeline, Permanent

if "set-up" in sys.argv:
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))

books = Pipeline("books")

@books.stage()
def extract(item, ctx):
    ctx.once("ask", lambda: 1, cost="0.25", facts={"model": "m", "tokens_in": 3})
    if item.key == "bad":
        raise Permanent("no")

with Holdfast(sys.argv[1], [books.spec]) as app:
    for keys in (["a", "b", "bad"], ["c"]):  # two workers, one after the other, in one process
        app.add("books", keys)
        worker = app.worker()
        worker.run(until_drained=True)
    if "set-up" not in sys.argv:
        assert worker.metrics is None
        assert not [name for name in sys.modules if name.startswith(("opentelemetry", "prometheus_client"))]
        print("nothing")
    else:
        for resource in reader.get_metrics_data().resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        labels = ",".join(f"{name}={one}" for name, one in sorted(point.attributes.items()))
                        value = point.count if hasattr(point, "count") else point.value
                        print(f"{metric.name}{{{labels}}} {value} {metric.unit}")
"""


def run_program(url: str, folder: Path, *words: str) -> list[str]:
    file = folder / "program.py"
    file.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(file), url, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "already" not in done.stderr  # an instrument is made once
    return done.stdout.splitlines()


def test_an_sdk_of_the_user_gets_every_metric_of_the_workers(url: str, tmp_path: Path) -> None:
    lines = run_program(url, tmp_path, "set-up")
    assert "holdfast_attempts_total{outcome=done,pipeline=books,stage=extract} 3 " in lines
    assert "holdfast_attempts_total{outcome=failed,pipeline=books,stage=extract} 1 " in lines
    assert "holdfast_attempts_total{outcome=lost,pipeline=books,stage=extract} 0 " in lines
    assert "holdfast_attempt_duration_seconds{pipeline=books,stage=extract} 4 s" in lines
    assert "holdfast_wait_seconds{pipeline=books,stage=extract} 4 s" in lines
    assert "holdfast_cost_total{pipeline=books,resource=,stage=extract} 1.0 " in lines
    assert "holdfast_tokens_total{direction=in,model=m,pipeline=books,stage=extract} 12 " in lines
    assert any(line.startswith("holdfast_store_commit_seconds{op=cycle}") for line in lines)
    assert any(line.startswith("holdfast_build_info{") for line in lines)


def test_without_an_sdk_nothing_is_counted_and_nothing_is_imported(url: str, tmp_path: Path) -> None:
    assert run_program(url, tmp_path) == ["nothing"]


def test_an_sdk_reads_the_gauges_of_a_store(url: str) -> None:
    pipeline = Pipeline("books", store=url)

    @pipeline.stage()
    def only(item: Any, ctx: Any) -> None:
        return None

    pipeline.add(["a", "b"])
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    with Holdfast(url, create=False) as app:
        observe_gauges(provider.get_meter("test"), OF_STORE, app.gauges)
        data = reader.get_metrics_data()
        provider.shutdown()
    assert data is not None
    [metrics] = [scope.metrics for one in data.resource_metrics for scope in one.scope_metrics]
    found = {
        (metric.name, *sorted((point.attributes or {}).items())): point.value  # type: ignore[union-attr]
        for metric in metrics
        for point in metric.data.data_points
    }
    where = (("pipeline", "books"), ("stage", "only"))
    assert found["holdfast_stages", *where, ("state", "pending")] == 2
    assert found["holdfast_in_doubt", *where] == 0


def test_the_lines_of_the_guide_report_what_a_worker_did(url: str) -> None:
    [lines] = blocks(ROOT / "docs" / "guide" / "monitoring.md", "python")
    program = f"""{lines}
from holdfast import Pipeline
books = Pipeline("books", store={url!r})
books.stage(name="extract")(lambda item, ctx: None)
books.add(["a", "b"])
books.run()
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert '"name": "holdfast_attempts"' in ran.stdout or '"name": "holdfast_attempts_total"' in ran.stdout


METRICS_COMMAND = """
import sys
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader

set_meter_provider(MeterProvider([PeriodicExportingMetricReader(ConsoleMetricExporter())]))  # once a minute, and at the end
if "alone" in sys.argv:
    sys.modules["prometheus_client"] = None
    sys.argv.remove("alone")

from holdfast.cli import main
main()
"""


@pytest.mark.parametrize("alone", [[], ["alone"]])
def test_the_command_for_the_store_exports_at_its_end_and_needs_nothing_but_the_api(url: str, alone: list[str]) -> None:
    Holdfast(url).close()
    program = [sys.executable, "-c", METRICS_COMMAND, "metrics", "--port", "0", "--store", url, *alone]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = subprocess.Popen(
        program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert running.stdout is not None
    address = running.stdout.readline().strip()
    status, text = fetch(int(address.rsplit(":", 1)[1].removesuffix("/metrics")))
    assert (status, "install holdfast[metrics]" in text) == ((501, True) if alone else (200, False))
    running.terminate()
    said, complaints = running.communicate(timeout=60)
    assert (running.returncode, "Traceback" in complaints) == (0, False), complaints
    assert '"name": "holdfast_schema_version"' in said
