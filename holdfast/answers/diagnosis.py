"""Diagnosis: facts about the installation, the database and the workers, for a person who looks for trouble."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from holdfast.answers.answer import Answer
from holdfast.answers.text_tables import table, to_the_second
from holdfast.answers.worker import Workers
from holdfast.model.log_lines import printable


class Diagnosis(Answer, frozen=True):
    """What `doctor` found."""

    _brief: ClassVar = ("is_well", "cannot_write", "schema")

    #: The versions of holdfast and Python, and the system.
    here: Mapping[str, str]
    #: About the database, by name; which ones there are depends on the kind of database.
    store: Mapping[str, Any]
    #: Why nothing can be saved now, a full disk say.
    cannot_write: str | None
    #: The version of the tables.
    schema: int
    workers: Workers
    #: What a person should look at: silent workers, work that waits and that no worker runs, paid calls in doubt, a
    #: transaction that was left open.
    findings: tuple[str, ...] = ()

    @property
    def is_well(self) -> bool:
        """Whether the file is undamaged, as far as it was looked at, and can be written to."""
        return self.store.get("integrity", "ok") in ("ok", "unchecked") and not self.cannot_write

    def lines(self, width: int | None = None) -> list[str]:
        lines = [f"cannot write: {printable(self.cannot_write)}"] if self.cannot_write else []
        for name, value in {**self.here, **self.store, "holdfast schema": self.schema}.items():
            lines.append(f"{name.replace('_', ' ')}: {'unknown' if value is None else printable(value)}")
        silent = [one for one in self.workers if not one.alive]
        lines.append(f"workers: {len(self.workers) - len(silent)} alive, {len(silent)} silent")
        if silent:
            rows = [[one.name, one.process, to_the_second(one.heartbeat_at)] for one in silent]
            lines += table(["silent", "process", "last heartbeat"], rows, width=width, indent="  ")
        return lines + [f"to look at: {printable(line)}" for line in self.findings]
