"""A real Prometheus on loopback that scrapes what it is told to, and answers questions over its HTTP API."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.scrapes import fetch, free_port
from tests.support.waiting import wait_for

#: It has a database to open.
BEGIN_SECONDS = 120.0


class Prometheus:
    def __init__(self, port: int) -> None:
        self._port = port

    def ask(self, query: str) -> dict[str, float]:
        """The answer to a query: by the labels of each series, as text, its value."""
        address = f"http://127.0.0.1:{self._port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with urllib.request.urlopen(address, timeout=20) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return {json.dumps(one["metric"], sort_keys=True): float(one["value"][1]) for one in found["data"]["result"]}

    def number(self, query: str) -> float | None:
        """The answer, if it is one number."""
        found = list(self.ask(query).values())
        return found[0] if len(found) == 1 else None


@contextmanager
def prometheus(folder: Path, targets: Mapping[str, int]) -> Iterator[Prometheus]:
    """Scrapes these ports, by the name of their job."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed: `make system-deps` installs Debian's")
    jobs = [
        {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]} for name, port in targets.items()
    ]
    config = folder / "prometheus.yml"
    # JSON is YAML.
    config.write_text(json.dumps({"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}))
    port = free_port()
    command = [program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with (folder / "prometheus.log").open("wb") as said:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    try:
        wait_for(lambda: process.poll() is not None or fetch(port, "/-/ready")[0] == 200, BEGIN_SECONDS)
        assert process.poll() is None, (folder / "prometheus.log").read_text()
        yield Prometheus(port)
    finally:
        process.kill()
        process.wait()
