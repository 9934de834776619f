"""The files for a public forge: valid, calling what exists, with everything from elsewhere pinned."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.pythons import promised

ROOT = Path(__file__).resolve().parents[2]
FORGE = ROOT / ".github"
WORKFLOWS = sorted((FORGE / "workflows").glob("*.yml"))
SCHEMAS = {
    **dict.fromkeys(WORKFLOWS, "vendor.github-workflows"),
    **{file: "vendor.github-issue-forms" for file in (FORGE / "ISSUE_TEMPLATE").glob("*.yml") if file.stem != "config"},
    FORGE / "ISSUE_TEMPLATE" / "config.yml": "vendor.github-issue-config",
}


def workflow(name: str = "tests.yml") -> dict[str, Any]:
    return dict(yaml.safe_load((FORGE / "workflows" / name).read_text(encoding="utf-8")))


def steps() -> list[dict[str, Any]]:
    return [step for file in WORKFLOWS for job in workflow(file.name)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("file", sorted(SCHEMAS), ids=lambda file: file.name)
def test_the_file_follows_the_schema_of_the_forge(file: Path):
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", SCHEMAS[file], str(file)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_workflows_call_targets_of_make_that_exist():
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    called = [step["run"].split() for step in steps() if "run" in step]
    assert {words[0] for words in called} == {"make"}
    assert {word for words in called for word in words[1:] if "=" not in word} <= targets
    assert ["make", "test", "PYTHON=python"] in called


def test_every_action_is_pinned_to_a_commit_and_may_only_read():
    used = [step["uses"] for step in steps() if "uses" in step]
    assert used
    assert [one for one in used if not re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", one)] == []
    for file in WORKFLOWS:
        assert workflow(file.name)["permissions"] == {"contents": "read"}


def test_everything_that_is_promised_is_tested_on_the_forge():
    jobs = workflow()["jobs"]
    assert promised() == jobs["test"]["strategy"]["matrix"]["python"]
    assert jobs["postgres"]["strategy"]["matrix"]["postgres"] == ["14", "15", "16", "17", "18"]


def test_the_roadmap_names_open_requirements_and_no_dates():
    text = (ROOT / "ROADMAP.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| (P\d+) \| (\w+) \|", (ROOT / "docs" / "requirements.md").read_text(), re.MULTILINE))
    named = re.findall(r"\((P\d+)\)", text)
    assert named and {rows[one] for one in named} == {"open"}
    assert re.findall(r"\b20\d\d\b|\bQ[1-4]\b", text) == []
