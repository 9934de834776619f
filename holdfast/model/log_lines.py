"""Log records without secrets and on one line each, whatever their arguments contain."""

from __future__ import annotations

import logging

from holdfast.model.redact import redact


def printable(text: object) -> str:
    """The text with control characters escaped, line feeds included."""
    text = str(text)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class _OnOneLine(str):
    """A message with its control characters escaped, for whatever writes it out; `plain` is what it was, without secrets."""

    plain: str


def plain_message(record: logging.LogRecord) -> str:
    """The message of a record with its line feeds and other control characters, for a format that escapes them itself."""
    plain: str = getattr(record.msg, "plain", "")
    return plain or record.getMessage()


class CleanRecords(logging.Filter):
    """Removes secrets and line feeds from log records. The filter of a logger does not see records of its child loggers, so it
    is added to handlers and to each of our loggers."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            said = record.getMessage()
        except Exception:
            said = f"{record.msg} (its arguments do not fit)"
            record.msg, record.args = said, ()
        plain = redact(said)
        clean = printable(plain)
        if clean != said:
            record.msg, record.args = _OnOneLine(clean), ()
            record.msg.plain = plain
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            # Formatters use this text if it is set, and do not build their own.
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = redact(record.exc_text)
        if record.stack_info:
            record.stack_info = redact(record.stack_info)
        return True


_CLEAN = CleanRecords()


def logger(name: str) -> logging.Logger:
    """The logger of this name, whose records are cleaned before any handler sees them."""
    found = logging.getLogger(name)
    found.addFilter(_CLEAN)
    return found
