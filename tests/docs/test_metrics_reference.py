"""The page of metrics and the code name the same metrics, with the same types and labels."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.telemetry.metrics import OUTCOMES
from holdfast.telemetry.metrics_table import OF_STORE, OF_WORKERS, Metric

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
SECTIONS = {"Of workers": OF_WORKERS, "Of a store": OF_STORE}

pytestmark = pytest.mark.req("P18")


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def rows(title: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    found = re.findall(r"^\| `(holdfast_\w+)` \| (\w+) \| (.*?) \|", section(title), re.MULTILINE)
    return {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in found}


@pytest.mark.parametrize("title", list(SECTIONS))
def test_every_metric_is_on_the_page_with_its_type_and_labels(title: str) -> None:
    def told(metric: Metric) -> tuple[str, tuple[str, ...]]:
        return str(metric.kind), metric.labels

    assert rows(title) == {metric.name: told(metric) for metric in SECTIONS[title]}


def test_the_page_names_every_outcome() -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith("| `holdfast_attempts_total`"))
    assert [word for word in re.findall(r"`(\w+)`", row) if word in OUTCOMES] == list(OUTCOMES)


def test_queries_of_the_guide_name_metrics_that_exist() -> None:
    guide = (ROOT / "docs" / "guide" / "monitoring.md").read_text(encoding="utf-8")
    known = {metric.name for metric in (*OF_WORKERS, *OF_STORE)}
    named = {name.removesuffix("_bucket") for name in re.findall(r"\bholdfast_\w+", guide)}
    assert named
    assert named <= known | {"holdfast_demand"}
