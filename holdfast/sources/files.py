"""Files by a pattern, below a root that nothing leads out of.

Only names and times are read, never contents (unless `content` asks for a hash), and only regular files are found: nobody can
make a look wait with a FIFO or a device. A symbolic link counts if what it leads to lies below the root too.
"""

from __future__ import annotations

import errno
import fnmatch
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from holdfast.errors import UsageError
from holdfast.sources import readers
from holdfast.sources.contract import Found, Kept, Reader, Source, SourceFailed
from holdfast.sources.local import opened

MAX_DEPTH = 100
#: So many names of a folder are sorted at a time; a larger folder comes in several sorted runs.
SORTED = 20_000
_PIECE = 1024 * 1024
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WILD = re.compile(r"[*?\[]")


def _pattern(value: Any, what: str) -> str:
    given = readers.text(value, what)
    if ".." in Path(given).parts:
        raise UsageError(f"{what}: {value!r}: '..' leads out of the root; write the path without it")
    return given


class Files(Source):
    """Regular files whose path below the root matches."""

    kind = "files"
    options: ClassVar[Mapping[str, Reader]] = {
        "files": _pattern, "root": readers.text, "content": readers.flag, "settle": readers.length, "hidden": readers.flag,
    }  # fmt: skip

    @classmethod
    def agree(cls, settings: Mapping[str, Any], where: str, folder: Path) -> None:
        _below(settings["files"], settings.get("root") or _fixed(settings["files"]), folder, where)

    def look(self, memory: dict[str, Any]) -> Iterator[Found | Kept]:
        given = self.settings["files"]
        root, steps = _below(given, self.settings.get("root") or _fixed(given), self.folder, "files")
        if not root.is_dir():
            raise SourceFailed(f"{root} is not a folder")
        self._root = root
        self._real = os.path.realpath(root)
        self._settled_before = time.time() - self.settings.get("settle", 0.0)
        yield from self._walk(root, steps, frozenset())

    def _walk(self, folder: Path, steps: tuple[str, ...], above: frozenset[tuple[int, int]]) -> Iterator[Found]:
        self.check()
        step, rest = steps[0], steps[1:]
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
            # Otherwise it is a link that leads back up.
            return
        deep = step == "**"
        wanted = re.compile(fnmatch.translate(rest[0] if deep and rest else "*" if deep else step))
        after = rest[1:] if deep else rest
        shows = self.settings.get("hidden", False) or (rest[0] if deep and rest else step).startswith(".")
        with entries:
            while names := sorted(entry.name for entry in islice(entries, SORTED)):
                for name in names:
                    self.check()
                    if name.startswith(".") and not shows:
                        continue
                    path = folder / name
                    facts_of = self._facts(path)
                    if facts_of is None:
                        continue
                    if stat.S_ISDIR(facts_of.st_mode):
                        if deep:
                            yield from self._walk(path, steps, above | {here})
                        if after and wanted.match(name):
                            yield from self._walk(path, after, above | {here})
                    elif not after and wanted.match(name):
                        found = self._found(path, facts_of)
                        if found is not None:
                            yield found

    def _leave_out(self, path: Path, why: str | None) -> None:
        """Count what cannot be looked at; what is there has not vanished for that."""
        self.missed = True
        self.skip(f"{path}: {why}")

    def _facts(self, path: Path) -> os.stat_result | None:
        """What a name stands for, links followed; None if it is nothing to be found here."""
        try:
            facts = os.lstat(path)
            if stat.S_ISLNK(facts.st_mode):
                real = os.path.realpath(path, strict=True)
                if os.path.commonpath([real, self._real]) != self._real:
                    return None
                facts = os.stat(real)
        except (FileNotFoundError, NotADirectoryError):
            # Gone meanwhile, or a link to nowhere.
            return None
        except OSError as error:
            if error.errno != errno.ELOOP:
                self._leave_out(path, error.strerror)
            return None
        return facts if stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode) else None

    def _found(self, path: Path, facts: os.stat_result) -> Found | None:
        if facts.st_mtime > self._settled_before and self.settings.get("settle"):
            # Somebody may still be writing it; it comes with a later look, and has not vanished.
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
    """The folder that a pattern begins in: its steps up to the first that is wild, or up to its last."""
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
    # Two of these in a row mean what one means.
    steps = tuple(part for n, part in enumerate(parts) if not (part == "**" and parts[n - 1 : n] == ("**",)))
    if not steps:
        raise UsageError(f"{where}: files: {pattern!r} is the root itself; write what is below it, like '{pattern}/*'")
    return top, steps
