"""Files that match a pattern, all below one root.

Only names and times are read, not contents (unless `content` asks for a hash), and only regular files are found: a FIFO or a
device cannot block a look. A symbolic link counts if its target is below the root too.
"""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from holdfast.errors import UsageError
from holdfast.sources import readers
from holdfast.sources.contract import Found, Kept, Reader, Source, SourceFailed
from holdfast.sources.read_lines import opened

MAX_DEPTH = 100
#: How many names of a folder are sorted at a time; a larger folder comes in several sorted runs.
SORTED = 20_000
_PIECE = 1024 * 1024
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WILD = re.compile(r"[*?\[]")


def _pattern(value: Any, what: str) -> str:
    given = readers.text(value, what)
    if ".." in Path(given).parts:
        raise UsageError(f"{what}: {value!r}: '..' leads out of the root; write the path without it")
    return given


@dataclass(frozen=True, slots=True)
class _Step:
    """One step of a pattern: which names in a folder match."""

    wanted: re.Pattern[str]
    #: The step for the content of a matching folder; None if files are wanted.
    after: int | None
    #: Whether all folders below are searched too.
    is_deep: bool
    #: Whether names that begin with a dot match.
    shows: bool

    @classmethod
    def at(cls, place: int, parts: tuple[str, ...]) -> _Step:
        is_deep = parts[place] == "**"
        place += is_deep
        name = parts[place] if place < len(parts) else "*"
        after = place + 1 if place + 1 < len(parts) else None
        return cls(re.compile(fnmatch.translate(name)), after, is_deep, name.startswith("."))


def _below_folder(name: str, steps: Iterable[tuple[int, _Step]]) -> Iterator[int]:
    """The steps of the pattern that apply inside a folder of this name."""
    for place, step in steps:
        if step.is_deep:
            yield place
        if step.after is not None and step.wanted.match(name):
            yield step.after


class Files(Source):
    """Regular files whose path below the root matches."""

    kind = "files"
    options: ClassVar[Mapping[str, Reader]] = {
        "files": _pattern,
        "root": readers.text,
        "content": readers.flag,
        "settle": readers.length,
        "hidden": readers.flag,
    }

    @classmethod
    def agree(cls, settings: Mapping[str, Any], where: str, folder: Path) -> None:
        _below(settings["files"], settings.get("root") or _fixed(settings["files"]), folder, where)

    def look(self, memory: dict[str, Any]) -> Iterator[Found | Kept]:
        given = self.settings["files"]
        root, parts = _below(given, self.settings.get("root") or _fixed(given), self.folder, "files")
        if not root.is_dir():
            raise SourceFailed(f"{root} is not a folder")
        self._root = root
        self._real = os.path.realpath(root)
        self._hidden = self.settings.get("hidden", False)
        self._settled_before = time.time() - self.settings.get("settle", 0.0)
        self._steps = [_Step.at(place, parts) for place in range(len(parts))]
        yield from self._walk(root, frozenset({0}), frozenset())

    def _walk(self, folder: Path, places: frozenset[int], above: frozenset[tuple[int, int]]) -> Iterator[Found]:
        """List a folder once, for all steps of the pattern that apply to it."""
        self.check()
        steps = [(place, self._steps[place]) for place in sorted(places)]
        try:
            facts = os.stat(folder)
            entries = os.scandir(folder)
        except OSError as error:
            self._leave_out(folder, error.strerror)
            return
        here = (facts.st_dev, facts.st_ino)
        if here in above or len(above) >= MAX_DEPTH:
            entries.close()
            if here not in above:
                self._leave_out(folder, f"deeper than {MAX_DEPTH} folders")
            # Otherwise it is a link back up.
            return
        with entries:
            while names := sorted(entry.name for entry in islice(entries, SORTED)):
                for name in names:
                    self.check()
                    open_to = [one for one in steps if one[1].shows or self._hidden or not name.startswith(".")]
                    facts_of = self._facts(path := folder / name) if open_to else None
                    if facts_of is None:
                        continue
                    if stat.S_ISDIR(facts_of.st_mode):
                        if below := frozenset(_below_folder(name, open_to)):
                            yield from self._walk(path, below, above | {here})
                    elif any(step.after is None and step.wanted.match(name) for _, step in open_to):
                        found = self._found(path, facts_of)
                        if found is not None:
                            yield found

    def _leave_out(self, path: Path, why: str | None) -> None:
        """Count what cannot be read. The items in it have not vanished."""
        self.missed = True
        self.skip(f"{path}: {why}")

    def _facts(self, path: Path) -> os.stat_result | None:
        """What a name refers to, with links followed; None if it is not a file to be found."""
        try:
            facts = os.lstat(path)
            if stat.S_ISLNK(facts.st_mode):
                real = os.path.realpath(path, strict=True)
                if os.path.commonpath([real, self._real]) != self._real:
                    return None
                facts = os.stat(real)
        except (FileNotFoundError, NotADirectoryError):
            # Removed in the meantime, or a broken link.
            return None
        except OSError as error:
            if error.errno != errno.ELOOP:
                self._leave_out(path, error.strerror)
            return None
        return facts if stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode) else None

    def _found(self, path: Path, facts: os.stat_result) -> Found | None:
        if facts.st_mtime > self._settled_before and self.settings.get("settle"):
            # It may still be written to: a later look finds it, and it has not vanished.
            self.missed = True
            return None
        key = path.relative_to(self._root).as_posix()
        modified = _EPOCH + timedelta(microseconds=facts.st_mtime_ns // 1000)
        data = {"path": str(path), "size": facts.st_size, "modified_at": modified.isoformat()}
        content = (lambda: self._hash(path)) if self.settings.get("content") else None
        return Found(key, data, f"{facts.st_mtime_ns}:{facts.st_size}", content=content)

    def _hash(self, path: Path) -> str:
        digest = hashlib.blake2b(digest_size=16)
        with opened(path) as file:
            while piece := file.read(_PIECE):
                self.check()
                digest.update(piece)
        return digest.hexdigest()


def _fixed(pattern: str) -> str:
    """The folder in which a pattern starts: its steps before the first wildcard, or before the last."""
    parts = Path(pattern).parts
    plain = next((n for n, part in enumerate(parts) if _WILD.search(part)), len(parts) - 1)
    return str(Path(*parts[:plain]))


def _below(pattern: str, root: str, folder: Path, where: str) -> tuple[Path, tuple[str, ...]]:
    """The root as a path, and the steps of the pattern below it."""
    top = Path(os.path.abspath(folder / root))
    full = Path(os.path.abspath(folder / pattern))
    try:
        parts = full.relative_to(top).parts
    except ValueError:
        raise UsageError(f"{where}: files: {pattern!r} does not lie below its root, {root!r}") from None
    # Two in a row mean the same as one.
    steps = tuple(part for n, part in enumerate(parts) if not (part == "**" and parts[n - 1 : n] == ("**",)))
    if not steps:
        raise UsageError(f"{where}: files: {pattern!r} is the root itself; write what is below it, like '{pattern}/*'")
    return top, steps
