"""Watch a job file: while it is in use its tuning may change, but not its spec."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import UsageError
from holdfast.jobfile.job import JobDefinition
from holdfast.jobfile.problems import JobFileError, Problem, below
from holdfast.jobfile.reading import read_file

#: A file changed more recently than this may change again without a new modification time.
RACY_SECONDS = 2.0
#: How long a file must be unchanged, since writing it in place takes time; and how often to check.
QUIET_SECONDS = 0.05
PATIENCE = 6


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The tuning has changed, the spec has not."""

    job: JobDefinition


@dataclass(frozen=True, slots=True)
class Broken:
    """The file cannot be used as it is now; nothing changes."""

    errors: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class SpecChanged:
    """The file describes another job now; nothing changes until a restart. `what` names the differences."""

    what: tuple[str, ...]


class JobFileWatch:
    """Checks a job file repeatedly, and reports each change once."""

    def __init__(self, path: str | os.PathLike[str], job: JobDefinition, load: Callable[[Path], JobDefinition]) -> None:
        """`job` is the file as it was at the start; `load` reads it again, and imports nothing twice."""
        self._path = Path(path)
        self.job = job
        self._load = load
        self._stamp: tuple[int, ...] | None = None
        self._digest = b""
        self._reported: tuple[str, ...] = ()

    def one_pass(self) -> Reloaded | Broken | SpecChanged | None:
        """What has changed, or None. A missing file counts as unchanged."""
        if not self._has_changed():
            return None
        try:
            found = self._load(self._path)
        except JobFileError as error:
            self._reported = ()
            return Broken(error.problems)
        except UsageError:
            # It was removed after the check. When it is back it is checked again.
            self._stamp, self._digest = None, b""
            return None
        what = differences(self.job, found)
        if what:
            news = what != self._reported
            self._reported = what
            return SpecChanged(what) if news else None
        self._reported = ()
        if (found.resources, found.tunings) == (self.job.resources, self.job.tunings):
            return None
        self.job = found
        return Reloaded(found)

    def _has_changed(self) -> bool:
        stamp = self._look()
        if stamp is None or stamp == self._stamp:
            return False
        for _ in range(PATIENCE):
            # A file that is being written in place is not complete yet.
            if time.time_ns() - stamp[0] > QUIET_SECONDS * 1e9 or time.time_ns() < stamp[0]:
                break
            time.sleep(QUIET_SECONDS)
            again = self._look()
            if again is None:
                return False
            stamp = again
        else:
            return False
        try:
            digest = hashlib.blake2b(read_file(self._path), digest_size=16).digest()
        except UsageError:
            return False
        settled = time.time_ns() - stamp[0] > RACY_SECONDS * 1e9
        self._stamp = stamp if settled and self._look() == stamp else None
        if digest == self._digest:
            return False
        self._digest = digest
        return True

    def _look(self) -> tuple[int, ...] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev


def differences(old: JobDefinition, new: JobDefinition) -> tuple[str, ...]:
    """The parts in which the specs of two jobs differ; tunings are not compared."""
    found = [key for key in ("store", "blobs") if getattr(old, key) != getattr(new, key)]
    before, after = ({spec.name: spec for spec in job.pipelines} for job in (old, new))
    for name in [*before, *(one for one in after if one not in before)]:
        path = below("pipelines", name)
        if name not in before or name not in after:
            found.append(path)
            continue
        stages = [{stage.name: stage for stage in spec.stages} for spec in (before[name], after[name])]
        found += _differing(f"{path}.stages", *stages)
        if old.merges.get(name) != new.merges.get(name):
            found.append(f"{path}.merge")
        sources = (job.written["sources"].get(name, {}) for job in (old, new))
        found += _differing(f"{path}.sources", *sources)
    return (*found, *_differing("alerts", old.written["alerts"], new.written["alerts"]))


def _differing(path: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    names = [*old, *(one for one in new if one not in old)]
    return [below(path, name) for name in names if name not in old or name not in new or old[name] != new[name]]
