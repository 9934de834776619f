"""The same answer as JSON, which is that of the command line, and as CSV that no spreadsheet executes."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from starlette.responses import Response

from holdfast.answers.json_of import json_names, json_of
from holdfast.answers.text_tables import as_text
from holdfast.export.text_files import harmless, harmless_json
from holdfast.model.log_lines import printable


def json_response(value: Any, status: int = 200) -> Response:
    return Response(as_text(value, indent=2) + "\n", status, media_type="application/json")


def readable(value: Any, indent: int | None = None) -> str:
    """JSON for people, which is valid JSON, too: letters of every script as they are, and what cannot be printed, or turns the
    direction of a text around, as an escape."""
    # Line feeds within texts are escapes by then.
    return "\n".join(map(_escaped, json.dumps(value, indent=indent, ensure_ascii=False).split("\n")))


def _escaped(line: str) -> str:
    return line if line.isprintable() else "".join(one if one.isprintable() else as_text(one)[1:-1] for one in line)


def csv_response(name: str, columns: Sequence[str], rows: Iterable[Any]) -> Response:
    headers = {"content-disposition": f'attachment; filename="holdfast-{name}.csv"'}
    return Response(as_csv(columns, rows), media_type="text/csv; charset=utf-8", headers=headers)


def columns_of(answer: type) -> tuple[str, ...]:
    """The columns of lines that are answers of this class."""
    return tuple(json_names(answer).values())


def as_csv(columns: Sequence[str], rows: Iterable[Any]) -> str:
    """A line of names, then a line per row: an answer, or a mapping. What is neither text nor a number is JSON.

    Control characters, and those that turn the direction of a text around, are escapes, as on the pages: files are read in
    terminals, too.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([_cell(name) for name in columns])
    for row in rows:
        found = row if isinstance(row, Mapping) else json_of(row)
        writer.writerow([_cell(json_of(found.get(name))) for name in columns])
    return out.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return harmless(printable(value)) if isinstance(value, str) else harmless_json(readable(value))
