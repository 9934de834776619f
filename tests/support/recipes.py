"""What `deploy/` says: its files, and every command of holdfast in them, as words."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from holdfast.model.durations import seconds

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def unit_settings(file: Path) -> dict[str, list[str]]:
    """The settings of a unit without its drop-in: each with all its values, in order."""
    settings: dict[str, list[str]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith(("#", ";")):
            settings.setdefault(name, []).append(value)
    return settings


def unit_command(file: Path) -> list[str]:
    """The words behind `holdfast` in the unit's ExecStart."""
    [line] = unit_settings(file)["ExecStart"]
    program, *words = shlex.split(line)
    assert program.endswith("/bin/holdfast"), program
    return words


def documents(file: Path) -> list[Any]:
    return [one for one in yaml.safe_load_all(file.read_text(encoding="utf-8")) if one is not None]


def compose() -> dict[str, Any]:
    [found] = documents(DEPLOY / "compose.yaml")
    return dict(found)


def manifests() -> list[tuple[str, dict[str, Any]]]:
    """Every object of the Kubernetes manifests, with the name of its file."""
    files = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    return [(file.name, one) for file in files for one in documents(file)]


def containers() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Every container: where it is, itself, and its pod."""
    for file, one in manifests():
        if one["kind"] in ("Deployment", "Job"):
            pod = one["spec"]["template"]["spec"]
            for container in pod["containers"]:
                yield f"{file}:{container['name']}", container, pod


def commands() -> list[tuple[str, list[str]]]:
    """Every command of holdfast in `deploy/`: where it is, and its words."""
    found = [(unit.name, unit_command(unit)) for unit in UNITS]
    for name, service in compose()["services"].items():
        if service["image"] == "holdfast":
            found.append((f"compose.yaml:{name}", service["command"]))
    found += [(place, container["args"]) for place, container, _ in containers()]
    return found


def given(words: list[str], option: str) -> str:
    """The value of an option among the words of a command."""
    return words[words.index(option) + 1]


def longest_stop(words: list[str]) -> float:
    """How many seconds the command may take to end after a SIGTERM."""
    if words[0] not in ("run", "worker"):
        return 5.0
    # What a supervisor adds before it kills.
    return seconds(given(words, "--grace")) + (20.0 if "--processes" in words else 0.0)
