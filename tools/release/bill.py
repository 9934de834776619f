"""The software bill of materials: what is installed with holdfast and all of its extras, as CycloneDX JSON.

It is read from the metadata of an environment into which the release was installed, and names for each package its version, its
licence and what it depends on. The same environment gives the same text.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

import msgspec
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OURS = "holdfast"
SPECIFICATION = "1.6"
#: Installers, which venv puts there; nothing that is installed needs them.
NOT_OURS = frozenset({"pip", "setuptools", "wheel"})
#: Classifiers of licences that have an identifier of SPDX, for packages that give no identifier themselves.
LICENCES = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}


def bill(packages: Path, extras: Sequence[str], python: str, epoch: int) -> dict[str, Any]:
    """The bill of the environment whose packages are in this folder; `python` is its version."""
    found = {str(canonicalize_name(one.name)): one for one in distributions(path=[str(packages)])}
    installed = {name: one for name, one in sorted(found.items()) if name not in NOT_OURS}
    environment = {"python_version": python, "python_full_version": f"{python}.0"}
    components = [_component(one) for name, one in installed.items() if name != OURS]
    ours = _component(installed[OURS])
    depends = [
        {
            "ref": _address(one),
            "dependsOn": sorted(
                _address(installed[needed])
                for needed in _needed(one, extras if name == OURS else (), environment)
                if needed in installed and needed != name
            ),
        }
        for name, one in installed.items()
    ]
    content = {
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": ours,
            "properties": [{"name": f"{OURS}:python", "value": python}],
        },
        "components": components,
        "dependencies": depends,
    }
    number = uuid.uuid5(uuid.NAMESPACE_URL, msgspec.json.encode(content, order="deterministic").decode())
    return {
        "$schema": f"http://cyclonedx.org/schema/bom-{SPECIFICATION}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": SPECIFICATION,
        "serialNumber": f"urn:uuid:{number}",
        "version": 1,
        **content,
    }


def _address(one: Distribution) -> str:
    return f"pkg:pypi/{canonicalize_name(one.name)}@{one.version}"


def _component(one: Distribution) -> dict[str, Any]:
    described: dict[str, Any] = {
        "type": "library",
        "bom-ref": _address(one),
        "name": one.name,
        "version": one.version,
        "purl": _address(one),
    }
    if summary := _field(one, "Summary"):
        described["description"] = summary
    if licences := _licences(one):
        described["licenses"] = licences
    return described


def _licences(one: Distribution) -> list[dict[str, Any]]:
    """An expression of SPDX if the package gives one; else the names that its classifiers give."""
    if expression := _field(one, "License-Expression"):
        return [{"expression": expression}]
    named = [line.rpartition(" :: ")[2] for line in one.metadata.get_all("Classifier") or () if _is_licence(line)]
    if named:
        return [{"license": {"id": LICENCES[name]} if LICENCES.get(name) else {"name": name}} for name in named]
    # Some have the whole text there.
    written = _field(one, "License").partition("\n")[0]
    return [{"license": {"name": written}}] if written else []


def _field(one: Distribution, name: str) -> str:
    return str(next(iter(one.metadata.get_all(name) or ()), "")).strip()


def _is_licence(line: str) -> bool:
    return line.startswith("License :: ") and line != "License :: OSI Approved"


def _needed(one: Distribution, extras: Iterable[str], environment: dict[str, str]) -> set[str]:
    """What it asks for directly, in this environment and with these extras of it."""
    wanted = set()
    for line in one.requires or ():
        required = Requirement(line)
        marker = required.marker
        if marker is None or any(marker.evaluate({**environment, "extra": extra}) for extra in ("", *extras)):
            wanted.add(str(canonicalize_name(required.name)))
    return wanted
