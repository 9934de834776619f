"""Results: what the items of a pipeline came out as, to iterate over, as a data frame, or as a file."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Generic, Literal, Protocol, TypeVar, get_args

from holdfast.answers.answer import html_table
from holdfast.engine.results import ResultWalk
from holdfast.errors import UsageError
from holdfast.export.arrow import Parquet, batches, required, schema_of
from holdfast.export.columns import Column, ExportRow, needs, read_columns, shown
from holdfast.export.result import Result
from holdfast.export.text_files import Csv, JsonLines
from holdfast.export.whole_file import whole_file
from holdfast.model.did_you_mean import there_are
from holdfast.model.item_filter import Which
from holdfast.model.stage import StageSpec
from holdfast.runtime.async_caller import in_thread
from holdfast.store import Store

V = TypeVar("V")

Format = Literal["jsonl", "csv", "parquet"]
FORMATS: tuple[Format, ...] = get_args(Format)

#: Rows that a notebook shows.
SHOWN = 20
#: Rows that a thread reads for an event loop at a time.
AT_ONCE = 100

#: Opens a connection to read with.
Open = Callable[[], AbstractContextManager[Store]]
Progress = Callable[[int], None]


class _Writer(Protocol):
    def write(self, row: ExportRow) -> None: ...

    def close(self) -> None: ...

    def give_up(self) -> None: ...


_WRITERS: dict[str, Callable[[BinaryIO, list[Column]], _Writer]] = {
    "jsonl": JsonLines,
    "csv": Csv,
    "parquet": Parquet,
}


class Results(Generic[V]):
    """The results that a filter selects. Nothing is read before it is iterated over, and each iteration reads anew, page by
    page and in constant memory."""

    def __init__(
        self,
        open_store: Open,
        which: Which,
        columns: str | Iterable[str] | None = None,
        since: str | None = None,
        stages: Iterable[StageSpec] = (),
    ) -> None:
        """`stages` are those whose results have a type that this program knows."""
        self._specs = {stage.name: stage for stage in stages if stage.result_type is not None}
        self._open = open_store
        self._which = which
        self._columns = read_columns(columns)
        self._since = since
        #: Where the next export goes on (`since`), once everything was read; None before that, and for a selection by age.
        self.cursor: str | None = None
        #: Whether everything was read although a cursor was given: all rows by which it knows its store have changed since.
        self.is_all_again = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns, in frames and files."""
        return tuple(one.name for one in self._columns)

    async def __aiter__(self) -> AsyncGenerator[Result[V]]:
        """For `async for`: rows are read in threads, and the event loop goes on meanwhile."""
        rows = self.__iter__()
        try:
            while some := await in_thread(lambda: [*islice(rows, AT_ONCE)], _wait):
                for one in some:
                    yield one
        finally:
            await in_thread(rows.close, _wait)

    def __iter__(self) -> Generator[Result[V]]:
        for one in self._rows(with_data=True, with_result=True):
            yield Result.of(one.row, one.pipeline, one.stage, self._specs.get(one.stage))

    def to_arrow(self) -> Any:
        """A `pyarrow.Table`, with the types that the columns declare."""
        pa = required("pyarrow", "pyarrow", "to_arrow()")
        return pa.Table.from_batches([*batches(self._wanted(), self._columns)], schema=schema_of(self._columns))

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame`."""
        required("pandas", "pandas", "to_pandas()")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """A `polars.DataFrame`."""
        polars = required("polars", "polars", "to_polars()")
        return polars.from_arrow(self.to_arrow())

    def write(
        self, to: str | Path | BinaryIO, format: Format | None = None, *, progress: Progress | None = None
    ) -> int:
        """Write a file, or to an open one; returns the number of rows. A file gets its name when it is complete. Without a
        format, the name decides: `.csv`, `.parquet` or, like no ending, `.jsonl`. `progress` gets the number of rows so far,
        now and then."""
        if isinstance(to, (str, Path)):
            path = Path(to)
            made = _writer_of(format or path.suffix.removeprefix(".") or "jsonl")
            with whole_file(path) as out:
                return self._write(made(out, self._columns), progress)
        return self._write(_writer_of(format or "jsonl")(to, self._columns), progress)

    def _write(self, writer: _Writer, progress: Progress | None) -> int:
        rows = 0
        try:
            for rows, row in enumerate(self._wanted(), start=1):
                writer.write(row)
                if progress is not None and not rows % 1000:
                    progress(rows)
        except BaseException:
            writer.give_up()
            raise
        writer.close()
        return rows

    def __repr__(self) -> str:
        where = f"{self._which.pipeline}/{self._which.stage}" if self._which.stage else str(self._which.pipeline)
        return f"<Results of {where}: {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        """The first rows, everything escaped."""
        first = [[shown(column, row) for column in self._columns] for row in islice(self._wanted(), SHOWN + 1)]
        more = f"<p>The first {SHOWN}; there are more.</p>" if len(first) > SHOWN else ""
        return html_table(self.columns, first[:SHOWN]) + more

    def _wanted(self) -> Iterator[ExportRow]:
        return self._rows(with_data=needs(self._columns, "data"), with_result=needs(self._columns, "result"))

    def _rows(self, **content: bool) -> Iterator[ExportRow]:
        pipeline = str(self._which.pipeline)
        with self._open() as store:
            walk = ResultWalk(store, self._which, self._since, **content)
            self.is_all_again, names = walk.is_all_again, walk.stages
            for row in walk:
                yield ExportRow(row, pipeline, names[row.stage])
            self.cursor = walk.cursor


def _wait() -> None:
    """What a cancelled caller does about the rows that a thread is reading: nothing else may use the connection until then."""


def _writer_of(format: str) -> Callable[[BinaryIO, list[Column]], _Writer]:
    if format not in _WRITERS:
        raise UsageError(f"there is no format {format!r}; {there_are(format, FORMATS)}")
    return _WRITERS[format]
