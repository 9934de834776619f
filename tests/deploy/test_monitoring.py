"""The Grafana board and the alert rules: they ask for metrics that exist, and each rule fires when it should and only then."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.telemetry.metrics_table import OF_STORE, OF_WORKERS
from tests.support.recipes import DEPLOY, ROOT
from tools.board import board

HISTOGRAM, OTHER = "histogram", "other"
STAGE = {"pipeline", "stage"}
#: Every metric with its kind and labels. Boards and rules of users depend on them.
METRICS: dict[str, tuple[str, set[str]]] = {
    "holdfast_stages": (OTHER, STAGE | {"state"}),
    "holdfast_due_age_seconds": (OTHER, STAGE),
    "holdfast_attempts_total": (OTHER, STAGE | {"outcome"}),
    "holdfast_attempt_duration_seconds": (HISTOGRAM, STAGE),
    "holdfast_wait_seconds": (HISTOGRAM, STAGE),
    "holdfast_cost_total": (OTHER, STAGE | {"resource"}),
    "holdfast_tokens_total": (OTHER, STAGE | {"model", "direction"}),
    "holdfast_budget_remaining": (OTHER, {"resource"}),
    "holdfast_in_doubt": (OTHER, STAGE),
    "holdfast_in_doubt_total": (OTHER, STAGE),
    "holdfast_resource_slots_used": (OTHER, {"resource"}),
    "holdfast_resource_tokens": (OTHER, {"resource"}),
    "holdfast_resource_cooldown_seconds": (OTHER, {"resource"}),
    "holdfast_resource_open": (OTHER, {"resource"}),
    "holdfast_workers": (OTHER, {"version"}),
    "holdfast_worker_beat_age_seconds": (OTHER, {"version"}),
    "holdfast_store_commit_seconds": (HISTOGRAM, {"op"}),
    "holdfast_store_batch_rows": (HISTOGRAM, {"op"}),
    "holdfast_build_info": (OTHER, {"version", "store"}),
    "holdfast_schema_version": (OTHER, {"version", "store"}),
}
#: Every series of a histogram, and every other one.
SERIES = {
    f"{name}{suffix}": labels | ({"le"} if suffix == "_bucket" else set())
    for name, (kind, labels) in METRICS.items()
    for suffix in (("_bucket", "_count", "_sum") if kind == HISTOGRAM else ("",))
}
#: Labels that Prometheus adds to what it scrapes.
SCRAPED = {"job", "instance"}

BOARD: dict[str, Any] = json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))
RULES: list[dict[str, Any]] = yaml.safe_load((DEPLOY / "alerts.yaml").read_text(encoding="utf-8"))["groups"][0]["rules"]
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]

has_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="NOT PROVED HERE: there is no promtool; install prometheus"
)


def promtool(*words: str, folder: Path = DEPLOY) -> str:
    """Run it; return what it says if it complains."""
    done = subprocess.run(["promtool", *words], cwd=folder, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@has_promtool
@pytest.mark.req("P18")
def test_prometheus_accepts_the_configuration_and_would_not_accept_a_wrong_one(tmp_path: Path):
    shutil.copytree(DEPLOY, tmp_path / "deploy")
    assert promtool("check", "config", "prometheus.yaml", folder=tmp_path / "deploy") == ""
    wrong = tmp_path / "deploy" / "prometheus.yaml"
    wrong.write_text(wrong.read_text(encoding="utf-8").replace("scrape_configs:", "scrapes:"), encoding="utf-8")
    assert "scrapes" in promtool("check", "config", "prometheus.yaml", folder=tmp_path / "deploy")


def asked() -> list[tuple[str, str]]:
    """Every question of the board and of the rules, with its place."""
    board = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
    return board + [(rule["alert"], rule["expr"]) for rule in RULES]


def series_in(expression: str) -> set[str]:
    return set(re.findall(r"\bholdfast_\w+", expression))


def labels_in(expression: str) -> set[str]:
    """The labels by which a question selects and groups."""
    matched = re.findall(r"[{,]\s*(\w+)\s*(?:=~|!=|!~|=)", expression)
    grouped = re.findall(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)", expression)
    return set(matched) | {label.strip() for group in grouped for label in group.split(",")}


@pytest.mark.req("P18")
@pytest.mark.parametrize(("place", "expression"), asked(), ids=lambda text: text[:40])
def test_every_metric_and_label_that_is_asked_for_exists(place: str, expression: str):
    found = series_in(expression)
    assert found, place
    assert found - set(SERIES) == set()
    known = set.intersection(*(SERIES[name] for name in found)) | SCRAPED
    # Where two metrics are compared, a selector belongs to one of them.
    selected = set(re.findall(r"[{,]\s*(\w+)\s*(?:=~|!=|!~|=)", expression))
    assert selected - set.union(*(SERIES[name] for name in found)) == set()
    assert labels_in(expression) - selected - known == set()


def test_the_metrics_are_those_of_the_code():
    metrics = (*OF_WORKERS, *OF_STORE)
    kinds = {one.name: (HISTOGRAM if one.kind == HISTOGRAM else OTHER, set(one.labels)) for one in metrics}
    assert kinds == METRICS


@pytest.mark.req("P18")
def test_the_board_shows_every_metric():
    shown = {name for panel in PANELS for target in panel["targets"] for name in series_in(target["expr"])}
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown} == set(METRICS)


def test_names_of_lines_use_labels_that_their_question_keeps():
    for panel in PANELS:
        for target in panel["targets"]:
            kept = re.findall(r"\bby \(([^)]*)\)", target["expr"])[-1].split(", ")
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= set(kept), panel["title"]


def test_names_in_alerts_use_labels_that_their_rule_keeps():
    for rule in RULES:
        texts = " ".join(rule["annotations"].values())
        grouped = re.findall(r"\bby \(([^)]*)\)", rule["expr"])
        every = set.union(*(SERIES[name] for name in series_in(rule["expr"])))
        kept = set(grouped[0].split(", ")) if grouped else every
        assert set(re.findall(r"\$labels\.(\w+)", texts)) <= kept, rule["alert"]


@pytest.mark.req("P18", "P19")
@has_promtool
def test_prometheus_accepts_the_rules():
    assert promtool("check", "rules", "alerts.yaml") == ""


@has_promtool
def test_prometheus_accepts_every_question_of_the_board(tmp_path: Path):
    values = {"$pipeline": ".*", "$__rate_interval": "5m", "$__range": "3h"}
    rules = []
    for number, (_, expression) in enumerate(asked()):
        for name, value in values.items():
            expression = expression.replace(name, value)
        assert "$" not in expression
        rules.append({"record": f"board:{number}", "expr": expression})
    (tmp_path / "board.yaml").write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))
    assert promtool("check", "rules", "board.yaml", folder=tmp_path) == ""


@pytest.mark.req("P18", "P19")
@has_promtool
def test_every_rule_fires_when_it_should_and_only_then():
    assert promtool("test", "rules", "alerts-test.yaml") == ""


def test_every_rule_is_shown_firing_and_not_firing():
    shown: Counter[tuple[str, bool]] = Counter()
    for case in yaml.safe_load((DEPLOY / "alerts-test.yaml").read_text(encoding="utf-8"))["tests"]:
        for question in case["promql_expr_test"]:
            [name] = re.findall(r'alertname="(\w+)"', question["expr"])
            shown[name, bool(question["exp_samples"])] += 1
    assert set(shown) == {(rule["alert"], fires) for rule in RULES for fires in (True, False)}


def test_every_rule_says_how_bad_it_is_and_what_to_do():
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}


def test_the_board_is_what_its_tool_writes():
    assert board() == BOARD, "run: python -m tools.board > deploy/grafana.json"


def test_the_board_has_rows_and_names_no_job_and_no_data_source():
    assert [panel["title"] for panel in BOARD["panels"] if panel["type"] == "row"] == [
        "Work",
        "Latency",
        "Money",
        "Limits",
        "Workers",
        "Store",
    ]
    assert "job" not in {
        label for panel in PANELS for target in panel["targets"] for label in labels_in(target["expr"])
    }
    sources = [panel["datasource"] for panel in PANELS] + [
        one["datasource"] for panel in PANELS for one in panel["targets"]
    ]
    assert {source["uid"] for source in sources} == {"${datasource}"}


def test_panels_of_the_board_have_numbers_of_their_own_and_do_not_overlap():
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


@pytest.mark.req("P18", "P19")
def test_every_metric_that_a_page_names_exists():
    # Elsewhere such names are fixtures, variables and tables.
    pages = [ROOT / "docs" / "guide" / name for name in ("deployment.md", "monitoring.md")]
    texts = [page.read_text(encoding="utf-8") for page in (*pages, DEPLOY / "README.md") if page.exists()]
    named = {name for text in texts for name in re.findall(r"\bholdfast_\w+", text)}
    # The view that says what needs a worker is no metric.
    assert named - set(SERIES) - set(METRICS) == {"holdfast_demand"}
