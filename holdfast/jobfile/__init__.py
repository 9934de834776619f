"""The job file, `holdfast.yaml`: read, checked with file and line, turned into pipelines and tuning, and watched.

It says without code what a `Pipeline` says with it. Sources and alerts are read by whoever loads it.
"""

from holdfast.jobfile.environment import Secrets
from holdfast.jobfile.job import AsWritten, JobDefinition
from holdfast.jobfile.loading import load
from holdfast.jobfile.problems import JobFileError, Problem
from holdfast.jobfile.schema import schema
from holdfast.jobfile.watch import Broken, JobFileWatch, Reloaded, SpecChanged

__all__ = [
    "AsWritten",
    "Broken",
    "JobDefinition",
    "JobFileError",
    "JobFileWatch",
    "Problem",
    "Reloaded",
    "Secrets",
    "SpecChanged",
    "load",
    "schema",
]
