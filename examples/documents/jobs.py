"""The pipelines for the command line: `holdfast worker examples/documents/jobs.py`, `holdfast plan …`, and so on."""

from __future__ import annotations

from examples.documents.pipeline import Documents
from examples.documents.settings import Settings

_application = Documents(Settings.read())

documents = _application.documents
connections = _application.connections
