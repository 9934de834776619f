"""Arrow arrays made from their buffers: the same as pyarrow makes of a list, without what that loads."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from holdfast.export.arrow import schema_of
from holdfast.export.arrow_arrays import values_of
from holdfast.export.columns import Column, Kind

pytestmark = pytest.mark.req("P14")

LARGE = 2**63 - 1
VALUES: dict[Kind, list[Any]] = {
    Kind.TEXT: ["", "plain", "é and 💡", "a\0b", "long" * 5_000],
    Kind.JSON: ['{"a": 1}', '"é"', "[]"],
    Kind.INT: [0, 1, -1, LARGE, -LARGE - 1],
    Kind.FLOAT: [0.0, -0.5, 1e300, float("inf")],
    Kind.BOOL: [True, False, True, True, False],
    Kind.MONEY: [0, 250_000, -1, LARGE, -LARGE - 1],
    Kind.TIME: [0, 1_700_000_000_000_000, -1],
}

#: A process that loads what reading a store takes, and writes two groups of rows to a Parquet file. It prints the memory
#: it took, and whether it loaded pandas.
EXPORT = """
import sys
import psycopg
from holdfast import Holdfast
from holdfast.engine.results import ResultRow
from holdfast.export.arrow import GROUP_ROWS, Parquet
from holdfast.export.columns import ExportRow, read_columns

with open(sys.argv[1], "wb") as out:
    file = Parquet(out, read_columns(None))
    for number in range(2 * GROUP_ROWS):
        values = (number, 1, f"item-{number}", "done", 1, "1", number, number, number, 5, None, '{"n": 1}', f'"{number}"', 0)
        file.write(ExportRow(ResultRow(*values), "p", "a"))
    file.close()
with open("/proc/self/status") as status:
    [most] = [line.split()[1] for line in status if line.startswith("VmHWM:")]
print(int(most) >> 10, "pandas" in sys.modules)
"""


def stored(kind: Kind, value: Any) -> Any:
    """As pyarrow wants it."""
    return Decimal(value).scaleb(-6) if kind is Kind.MONEY and value is not None else value


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize(
    "arranged",
    [
        pytest.param(lambda values: values, id="values only"),
        pytest.param(lambda values: [None, *values, None, *values, *values, None], id="some missing"),
        pytest.param(lambda values: [None] * 9, id="all missing"),
        pytest.param(lambda values: [], id="empty"),
    ],
)
def test_an_array_is_the_one_that_pyarrow_makes_of_a_list(kind: Kind, arranged: Any) -> None:
    values = arranged(VALUES[kind])
    [field] = schema_of([Column("it", kind, lambda row: None)])
    column = values_of(kind)
    for value in values:
        column.append(value)
    made = column.array(field.type)
    made.validate(full=True)
    assert made.equals(pyarrow.array([stored(kind, value) for value in values], type=field.type))
    assert made.null_count == values.count(None)


def test_a_parquet_file_takes_less_than_150_megabytes_and_does_not_load_pandas(tmp_path: Path) -> None:
    """pyarrow loads pandas, if it is installed, to make an array of a list: 50 MB that an export has no use for."""
    assert pytest.importorskip("pandas")
    path = tmp_path / "out.parquet"
    done = subprocess.run([sys.executable, "-c", EXPORT, path], capture_output=True, text=True, check=True)
    megabytes, has_pandas = done.stdout.split()
    assert has_pandas == "False"
    assert int(megabytes) < 150
    assert pyarrow.parquet.read_metadata(path).num_row_groups >= 2
