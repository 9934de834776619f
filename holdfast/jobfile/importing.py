"""Import user code, and say in one line where in it something went wrong."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from holdfast.errors import HoldfastError

#: The folder of this package, which may be inside the user's.
_HERE = f"{Path(__file__).resolve().parent.parent}{os.sep}"


def look_first_in(folder: Path) -> None:
    """Search this folder for modules before all others."""
    if sys.path[:1] != [str(folder)]:
        sys.path.insert(0, str(folder))


def look_also_in(folder: Path) -> None:
    """Search this folder for modules, before all others unless it is on the path already."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def place(error: BaseException, root: Path) -> str | None:
    """File and line of the innermost frame in the user's own folder."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{near(error.filename)}, line {error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        own = frame.filename.startswith(f"{root}{os.sep}") and "site-packages" not in frame.filename
        if own and not frame.filename.startswith(_HERE):
            return f"{near(frame.filename)}, line {frame.lineno}"
    return None


def near(filename: str) -> str:
    """The path relative to this folder, if it is below it."""
    try:
        return str(Path(filename).relative_to(Path.cwd()))
    except ValueError:
        return filename


def said(error: BaseException) -> str:
    """The message of an error, with its class unless it is one of ours."""
    if isinstance(error, HoldfastError):
        return str(error)
    if isinstance(error, SystemExit):
        return 'it ends the program when imported: put that under if __name__ == "__main__"'
    words = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
