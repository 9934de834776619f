"""The Dockerfile and the compose file. There is no engine here: they are checked, and their commands run without containers."""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest

from holdfast import Holdfast
from holdfast.model.durations import seconds
from tests.support.recipes import DEPLOY, ROOT, compose, documents, given, longest_stop
from tests.support.waiting import wait_for

DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
#: A tag that names a version down to its last part.
PINNED = re.compile(r"[\w/.-]+:v?\d+\.\d+(\.\d+)?(-[\w.-]+)?")
#: So long may a process take to begin or to end on a busy machine.
PATIENCE = 240
OURS = {name: service for name, service in compose()["services"].items() if service["image"] == "holdfast"}


def copied() -> list[str]:
    """What the Dockerfile takes from the tree."""
    lines = re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
    return [source for line in lines for source in line.split()[:-1]]


def test_every_base_image_is_pinned_by_its_tag():
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    others = [service["image"] for name, service in compose()["services"].items() if name not in OURS]
    assert len(set(bases)) == 1
    assert [image for image in (*bases, *others) if not PINNED.fullmatch(image)] == []


@pytest.mark.req("P19")
def test_the_image_does_not_run_as_root_and_is_asked_for_its_health():
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    assert re.findall(r"^USER (.*)$", last, re.MULTILINE) == ["10001:10001"]
    [probe] = re.findall(r"urlopen\('http://127\.0\.0\.1:(\d+)/livez'", last)
    assert probe == given(OURS["worker"]["command"], "--health-port")


def test_a_worker_that_is_shown_to_run_in_the_image_is_asked_for_its_health_where_it_answers():
    """Without the port, the container would become unhealthy after a minute."""
    [probe] = re.findall(r"127\.0\.0\.1:(\d+)/livez'", DOCKERFILE)
    pages = [*(ROOT / "docs").rglob("*.md"), *DEPLOY.glob("*")]
    texts = [page.read_text(encoding="utf-8") for page in pages if page.is_file()]
    shown = [words for text in texts for words in re.findall(r"docker run [^`\n]*\bworker\b[^`\n]*", text)]
    assert shown
    assert [words for words in shown if f"--health-port {probe}" not in words] == []


def test_the_image_installs_extras_that_exist():
    [extras] = re.findall(r"\*\.whl\)\[([\w,]+)\]", DOCKERFILE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(extras.split(",")) <= set(project["optional-dependencies"])


def test_docker_is_sent_what_the_image_copies_and_nothing_else():
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    assert sorted(rule.removeprefix("!") for rule in rules if rule.startswith("!")) == sorted(copied())


@pytest.mark.req("P19")
def test_what_the_image_copies_is_enough_to_build_the_wheel(tmp_path: Path):
    source = tmp_path / "src"
    source.mkdir()
    for name in copied():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "wheels")]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    [wheel] = (tmp_path / "wheels").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert [fnmatch.filter(names, one) != [] for one in ("*.sql", "*.css", "*.html", "*/py.typed")] == [True] * 4


@pytest.mark.req("P19")
def test_the_compose_file_follows_its_schema():
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*words, str(DEPLOY / "compose.yaml")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", OURS)
def test_a_service_is_confined_and_has_longer_to_stop_than_its_grace(name: str):
    service = OURS[name]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    # Ten seconds is what Docker waits by default.
    assert seconds(service.get("stop_grace_period", "10s")) > longest_stop(service["command"])


def test_services_of_compose_begin_after_the_migration_and_listen_on_this_machine_only():
    services = compose()["services"]
    for name in ("worker", "dashboard", "metrics"):
        assert services[name]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_prometheus_scrapes_the_ports_that_the_services_open():
    [settings] = documents(DEPLOY / "prometheus.yaml")
    workers, store = settings["scrape_configs"]
    [found] = workers["dns_sd_configs"]
    assert found["names"] == ["worker"]
    assert str(found["port"]) == given(OURS["worker"]["command"], "--metrics-port")
    assert store["static_configs"] == [{"targets": [f"metrics:{OURS['metrics']['command'][-1]}"]}]


# As processes -------------------------------------------------------------------------------------------------------


class Composed:
    """The services of the compose file as processes of this machine, in the folder of the compose file."""

    def __init__(self, url: str, folder: Path) -> None:
        self._folder = folder
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HOLDFAST_URL": url,
            "HOLDFAST_UI_TOKEN": "a-token-that-nobody-guesses",
        }
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, words: list[str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "holdfast", *words]
        with (self._folder / f"{len(self.running)}-{words[0]}.log").open("wb") as said:
            process = subprocess.Popen(command, cwd=DEPLOY, env=self._environment, stdout=said, stderr=said)
        self.running.append(process)
        return process

    def said(self) -> str:
        return "\n".join(f"{log.name}: {log.read_text()}" for log in sorted(self._folder.glob("*.log")))


@pytest.fixture
def composed(bare_url: str, tmp_path: Path) -> Iterator[Composed]:
    """On a store that has no tables yet."""
    composed = Composed(bare_url, tmp_path)
    yield composed
    for process in composed.running:
        process.kill()
        process.wait()


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def elsewhere(words: list[str], ports: dict[str, str]) -> list[str]:
    """The same command on ports of its own: one machine has every port once."""
    options = ("--port", "--metrics-port", "--health-port")
    return [
        ports.setdefault(word, free_port()) if before in options else word
        for before, word in zip(["", *words], words, strict=False)
    ]


@pytest.mark.req("P19")
def test_the_commands_of_the_compose_file_work_together(composed: Composed, bare_url: str):
    """Migration, two workers, dashboard and metrics, from an empty database to a stop that loses nothing."""
    assert composed.start(OURS["migrate"]["command"]).wait(PATIENCE) == 0, composed.said()
    names = ["worker", "worker", "dashboard", "metrics"]
    ports: list[dict[str, str]] = [{} for _ in names]
    services = [composed.start(elsewhere(OURS[name]["command"], of)) for name, of in zip(names, ports, strict=True)]
    with Holdfast(bare_url, create=False) as app:
        wait_for(lambda: len(app.workers()) == 2, PATIENCE)
        assert composed.start(["add", "books", "walden", "emma"]).wait(PATIENCE) == 0, composed.said()
        wait_for(lambda: all(app.show(key).status == "done" for key in ("walden", "emma")), PATIENCE)
    for name, of in zip(names, ports, strict=True):
        port, path = health_check(name)
        wait_for(partial(answers, f"http://127.0.0.1:{of[port]}{path}"), PATIENCE)
    for process in services:
        process.terminate()
    # uvicorn ends by the signal once it has stopped.
    allowed = [{0, -signal.SIGTERM} if name == "dashboard" else {0} for name in names]
    ended = [process.wait(PATIENCE) for process in services]
    assert [code in codes for code, codes in zip(ended, allowed, strict=True)] == [True] * len(names), composed.said()


def health_check(name: str) -> tuple[str, str]:
    """The port and the path that the health check of a service asks for; a worker has that of the image."""
    text = DOCKERFILE if name == "worker" else OURS[name]["healthcheck"]["test"][-1]
    [found] = re.findall(r"urlopen\('http://127\.0\.0\.1:(\d+)(/[^']*)'", text)
    return found


def answers(address: str) -> bool:
    try:
        with urlopen(address, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


@pytest.mark.req("P19")
@pytest.mark.skipif(
    shutil.which("unshare") is None or os.geteuid() != 0,
    reason="NOT PROVED HERE: only root can make a process the first of its own; run as root, with util-linux",
)
def test_a_worker_that_is_process_1_stops_when_it_is_asked_to(bare_url: str, tmp_path: Path):
    """The kernel ignores signals to process 1 that it does not handle; in a container a worker is process 1."""
    words = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, "-m", "holdfast"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOLDFAST_URL": bare_url}
    worker = subprocess.Popen([*words, "worker", "books.py", "--processes", "1"], cwd=DEPLOY, env=environment)
    try:
        with Holdfast(bare_url) as app:
            wait_for(lambda: app.workers(), PATIENCE)
        [first] = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
        os.kill(int(first), signal.SIGTERM)
        assert worker.wait(PATIENCE) == 0
    finally:
        worker.kill()
        worker.wait()
