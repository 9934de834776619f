"""Run a job file: open its store, and let its workers follow changes of the file."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from holdfast import jobfile
from holdfast.app import Holdfast
from holdfast.discovery import discovering
from holdfast.engine.change_limits import Declared, declare
from holdfast.jobfile import Broken, JobDefinition, JobFileWatch, Reloaded
from holdfast.model.alert import AlertRule
from holdfast.model.log_lines import logger
from holdfast.model.redact import remember_secret
from holdfast.runtime.services import Service, ServiceContext
from holdfast.sources import read_source
from holdfast.store import Transaction

log = logger("holdfast.worker")

#: A changed file takes effect within two seconds: to notice it, to store it, and for other workers to follow.
LOOK_SECONDS = 0.5


def load_job(path: Path) -> JobDefinition:
    """The content of a job file, checked."""
    job = jobfile.load(path, read_source=read_source, read_alert=AlertRule.read)
    # From here on no value of a secret variable is stored, logged or shown.
    job.secrets.remember(remember_secret)
    return job


def open_job(job: JobDefinition, url: str | None = None, *, create: bool = True) -> Holdfast:
    """The store of a job, with everything that the job defines."""
    return Holdfast(
        url or job.store,
        job.pipelines,
        resources=job.resources,
        tunings=job.tunings,
        merges=job.merges,
        alerts=job.alerts,
        services=[partial(JobFileFollower, job=job), discovering(job.sources, job.merges, job.pipelines)],
        blobs=job.blobs,
        create=create,
    )


class JobFileFollower(Service):
    """Applies changes of a job file's tuning while workers run."""

    name = "job-file"
    retry_seconds = 5.0

    def __init__(self, context: ServiceContext, job: JobDefinition) -> None:
        self._store = context.store
        self._watch = JobFileWatch(job.path, job, load_job)

    def one_pass(self) -> bool:
        self.due = time.monotonic() + LOOK_SECONDS
        return follow(self._watch, self._store.write)

    def end(self) -> None:
        self._store.close()


def follow(watch: JobFileWatch, write: Callable[..., object]) -> bool:
    """Check the file once: apply a changed tuning, or report that the file is broken or needs a restart."""
    told = watch.one_pass()
    if told is None:
        return False
    if isinstance(told, Reloaded):
        write(partial(declare, said=Declared.of(told.job.resources, told.job.tunings)), exclusive=True)
        log.info("%s has changed; its new tuning is in effect", told.job.path.name)
        return True
    name = watch.job.path.name
    if isinstance(told, Broken):
        lines = [str(error) for error in told.errors]
        log.error("%s cannot be used as it is now, and changes nothing: %s", name, "; ".join(lines))
        write(lambda tx: _record(tx, "job_file_broken", name, lines))
    else:
        log.warning("%s describes another job now (%s): restart the workers to follow it", name, ", ".join(told.what))
        write(lambda tx: _record(tx, "job_file_wants_restart", name, list(told.what)))
    return False


def _record(tx: Transaction, event: str, name: str, what: list[str]) -> None:
    tx.record(event, file=name, what=what)
