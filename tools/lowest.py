"""Prints the lowest versions that pyproject.toml allows of what users install, as constraints for pip; `make lowest`.

    python -m tools.lowest                   # name==bound, for the dependencies and the extras of users
    python -m tools.lowest --beside FILE     # FILE, from `pip freeze`, and constraints.txt for everything that is not in it

The second is for what tests need beside them: it must not change what is tested.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
#: What users install; the other extras are for people who work on holdfast, or try its examples.
EXTRAS = ("asyncio", "html", "postgres")

_BOUNDED = re.compile(r"(?P<name>[\w.-]+)(\[[\w,. -]*\])?\s*>=\s*(?P<bound>\d[\w.]*)")


def bounds(project: Mapping[str, Any]) -> list[str]:
    """A constraint for each dependency; of one that is named twice, the higher bound is the one that counts."""
    found: dict[str, str] = {}
    extras = project["optional-dependencies"]
    for text in [*project["dependencies"], *(text for extra in EXTRAS for text in extras[extra])]:
        match = _BOUNDED.fullmatch(text.strip())
        if match is None:
            raise SystemExit(
                f"pyproject.toml: {text!r} has no lower bound that can be tested; write it as name>=version"
            )
        name, bound = _normal(match["name"]), match["bound"]
        found[name] = max(found.get(name, bound), bound, key=_release)
    return [f"{name}=={bound}" for name, bound in sorted(found.items())]


def beside(installed: Iterable[str], tested: Iterable[str]) -> list[str]:
    """What is installed stays as it is; everything else has its tested version."""
    kept = {_name(line): line for line in installed if "==" in line and not line.startswith("#")}
    rest = {_name(line): line for line in tested if "==" in line and not line.startswith("#")}
    return sorted({**rest, **kept}.values())


def main(arguments: Sequence[str]) -> None:
    if arguments:
        _, file = arguments
        lines = beside(Path(file).read_text().splitlines(), (ROOT / "constraints.txt").read_text().splitlines())
    else:
        lines = bounds(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])
    print("\n".join(lines))


def _name(line: str) -> str:
    return _normal(line.partition("==")[0])


def _normal(name: str) -> str:
    """The same for every spelling of a name: PyYAML, pyyaml; typing_extensions, typing-extensions."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


if __name__ == "__main__":
    main(sys.argv[1:])
