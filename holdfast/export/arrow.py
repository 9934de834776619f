"""Rows as Arrow tables and Parquet files, with the types that their columns declare."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, BinaryIO

from holdfast.errors import UsageError
from holdfast.export.arrow_arrays import values_of
from holdfast.export.columns import Column, ExportRow, Kind, cell

#: A group of rows is written when it has so many rows, or so many characters.
GROUP_ROWS, GROUP_CHARACTERS = 10_000, 4_000_000


def required(module: str, package: str, what: str) -> Any:
    """A package that only some users need."""
    try:
        return import_module(module)
    except ImportError as error:
        raise UsageError(f"{what} needs {package}: pip install {package} ({error})") from error


def schema_of(columns: Sequence[Column]) -> Any:
    """The Arrow schema of these columns."""
    pa = required("pyarrow", "pyarrow", "this")
    kinds = {
        Kind.TEXT: pa.string(),
        Kind.JSON: pa.string(),
        Kind.INT: pa.int64(),
        Kind.FLOAT: pa.float64(),
        Kind.BOOL: pa.bool_(),
        Kind.MONEY: pa.decimal128(24, 6),
        Kind.TIME: pa.timestamp("us", tz="UTC"),
    }
    return pa.schema([pa.field(one.name, kinds[one.kind]) for one in columns])


class Group:
    """Rows that become one record batch."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._schema = schema_of(columns)
        self._clear()

    def _clear(self) -> None:
        self._values = [values_of(one.kind) for one in self._columns]
        self._rows = self._characters = 0

    def add(self, row: ExportRow) -> bool:
        """Take a row; returns whether the group is full."""
        for column, values in zip(self._columns, self._values, strict=True):
            value = cell(column, row)
            if isinstance(value, str):
                self._characters += len(value)
            values.append(value)
        self._rows += 1
        return self._rows >= GROUP_ROWS or self._characters >= GROUP_CHARACTERS

    def batch(self) -> Any:
        """The rows as a record batch; the group is empty afterwards."""
        pa = required("pyarrow", "pyarrow", "this")
        arrays = [values.array(one.type) for values, one in zip(self._values, self._schema, strict=True)]
        self._clear()
        return pa.record_batch(arrays, schema=self._schema)


def batches(rows: Iterable[ExportRow], columns: Sequence[Column]) -> Iterator[Any]:
    """Record batches of these rows."""
    group = Group(columns)
    for row in rows:
        if group.add(row):
            yield group.batch()
    yield group.batch()


class _Sink(io.RawIOBase):
    """Where a Parquet file goes, until it is given up."""

    def __init__(self, out: BinaryIO) -> None:
        self.out: BinaryIO | None = out

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if self.out is not None:
            self.out.write(data)
        return len(data)


class Parquet:
    """A Parquet file. Without its end, which is written last, nobody can read it."""

    def __init__(self, out: BinaryIO, columns: Sequence[Column]) -> None:
        parquet = required("pyarrow.parquet", "pyarrow", "a Parquet file")
        self._group = Group(columns)
        self._sink = _Sink(out)
        self._writer = parquet.ParquetWriter(self._sink, schema_of(columns), compression="zstd")

    def write(self, row: ExportRow) -> None:
        if self._group.add(row):
            self._writer.write_batch(self._group.batch())

    def close(self) -> None:
        self._writer.write_batch(self._group.batch())
        self._writer.close()

    def give_up(self) -> None:
        # The library writes the end of a file whenever it lets go of it.
        self._sink.out = None
        self._writer.close()
