"""The same answer as JSON, which is that of the command line, and as CSV that no spreadsheet executes."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.responses import Response

from holdfast.answers.json_of import json_of
from holdfast.answers.text_tables import as_text
from holdfast.export.text_files import harmless


def json_response(value: Any, status: int = 200) -> Response:
    return Response(as_text(value, indent=2) + "\n", status, media_type="application/json")


def csv_response(name: str, rows: Iterable[Any]) -> Response:
    headers = {"content-disposition": f'attachment; filename="holdfast-{name}.csv"'}
    return Response(as_csv(rows), media_type="text/csv; charset=utf-8", headers=headers)


def as_csv(rows: Iterable[Any]) -> str:
    """A line per row, with a line of names first: every name that a row has. What is neither text nor a number is JSON."""
    found = [one if isinstance(one, Mapping) else json_of(one) for one in rows]
    names = list(dict.fromkeys(name for row in found for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([harmless(name) for name in names])
    writer.writerows([_cell(json_of(row.get(name))) for name in names] for row in found)
    return out.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return harmless(value) if isinstance(value, str) else as_text(value)
