"""A log record is one line without secrets, whoever wrote the texts in it and whoever writes it down."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.cli import logs
from holdfast.model.log_lines import logger, printable

pytestmark = [pytest.mark.req("V12"), pytest.mark.fault(82)]

FORGED = "a\n2026-01-01T00:00:00Z ERROR holdfast.worker: forged\r\x1b[2J\u2028b"


@pytest.fixture
def plain() -> Iterator[io.StringIO]:
    """What the plainest of all handlers writes of what we log."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logging.getLogger("holdfast").addHandler(handler)
    yield written
    logging.getLogger("holdfast").removeHandler(handler)


def test_what_we_log_is_a_line_without_secrets_in_anybodys_handler(plain: io.StringIO):
    logger("holdfast.worker").warning("worker %s says %s", FORGED, "password=hunter22")
    [line] = plain.getvalue().splitlines()
    assert line == f"WARNING worker {printable(FORGED)} says password=***"
    assert r"\n2026-01-01" in line


def test_every_logger_of_ours_is_such_a_one():
    package = Path(holdfast.__file__).parent
    for file in sorted(package.rglob("*.py")):
        if file not in (package / "model/log_lines.py", package / "cli/logs.py"):
            found = re.findall(r"getLogger\(.*", file.read_text(encoding="utf-8"))
            assert not found, f"{file}: take holdfast.model.log_lines.logger"


@pytest.fixture
def stderr(capsys: pytest.CaptureFixture[str]) -> Iterator[pytest.CaptureFixture[str]]:
    logs.set_up(2)
    yield capsys
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, logs._ToStderr)]:
        root.removeHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("holdfast").setLevel(logging.NOTSET)


def test_on_the_command_line_a_record_is_one_line_with_its_traceback_and_its_stack(
    stderr: pytest.CaptureFixture[str],
):
    try:
        raise ValueError(FORGED)
    except ValueError:
        logging.getLogger("mine").exception("it failed: %s", FORGED, stack_info=True)
    [line] = stderr.readouterr().err.splitlines()
    assert line.isprintable()
    assert "Traceback (most recent call last)" in line
    assert line.count("ERROR mine: it failed") == 1
