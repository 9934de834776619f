"""Metrics as a scraper sees them: fetched over HTTP, read by Prometheus's own parser, checked by Prometheus's own tool."""

from __future__ import annotations

import shutil
import socket
import subprocess
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fetch(port: int, path: str = "/metrics") -> tuple[int, str]:
    """Status and text; status 0 if nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def samples(text: str) -> Samples:
    return {
        (one.name, frozenset(one.labels.items())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def value(text: str, name: str, **labels: str) -> float | None:
    return samples(text).get((name, frozenset(labels.items())))


def total(text: str, name: str, **labels: str) -> float:
    """The sum of all series of a metric that have these labels."""
    wanted = labels.items()
    return sum(n for (found, had), n in samples(text).items() if found == name and wanted <= set(had))


def check_with_promtool(text: str) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: `make system-deps` installs Debian's prometheus")
    done = subprocess.run([promtool, "check", "metrics"], input=text, text=True, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
