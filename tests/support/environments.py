"""An environment with exactly the packages that an extra of pyproject.toml asks for, in a second and without a network.

    make_environment(clone / ".venv", clone, "examples")         # as `pip install -e '.[examples]'` in CLONE would leave it
    make_environment(folder / "venv", clone, wheel=wheel)        # as `pip install WHEEL`

Its packages are links to those of the environment that tests run in. What the extra does not name, and what no package that it
names asks for, is not there.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

OURS = "holdfast"


def make_environment(place: Path, clone: Path, extra: str = "", wheel: Path | None = None) -> None:
    """Make it at PLACE, with what is in the wheel or else the package of this clone by way of its folder, and its command."""
    python = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}"
    subprocess.run([python, "-m", "venv", "--without-pip", place], check=True)
    [packages] = place.glob("lib/python*/site-packages")
    for found in needed(clone, extra):
        for name in _top_names(found):
            link = packages / name
            # Several may have a part of one package.
            if not link.exists():
                link.symlink_to(Path(str(found.locate_file(name))))
    if wheel is None:
        (packages / f"{OURS}.pth").write_text(f"{clone}\n")
    else:
        zipfile.ZipFile(wheel).extractall(packages)
    project = tomllib.loads((clone / "pyproject.toml").read_text())["project"]
    for command, function in project["scripts"].items():
        module, _, name = function.partition(":")
        program = place / "bin" / command
        program.write_text(
            f"#!{place / 'bin' / 'python'}\nimport sys\n\nfrom {module} import {name}\n\nsys.exit({name}())\n"
        )
        program.chmod(0o755)


def needed(clone: Path, extra: str) -> list[Distribution]:
    """Every package that this extra asks for, as it is installed here, and what those ask for in turn."""
    project = tomllib.loads((clone / "pyproject.toml").read_text())["project"]
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()

    def add(lines: Iterable[str], extra: str) -> None:
        for line in lines:
            wanted = Requirement(line)
            name = canonicalize_name(wanted.name)
            if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
                continue
            for one in ("", *sorted(wanted.extras)):
                if (name, one) in seen:
                    continue
                seen.add((name, one))
                if name == OURS:
                    add(project["optional-dependencies"][one] if one else project["dependencies"], one)
                else:
                    found.setdefault(name, distribution(name))
                    add(found[name].requires or [], one)

    add([f"{OURS}[{extra}]"], "")
    return list(found.values())


def _top_names(found: Distribution) -> Iterator[str]:
    """What it has put into the folder of packages."""
    names = {file.parts[0] for file in found.files or ()}
    yield from sorted(names - {"..", "__pycache__"})
