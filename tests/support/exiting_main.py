"""The worker of `tests.support.worker_main`, ended as the command line ends one: one line, and the exit code of the error."""

from __future__ import annotations

import sys

from holdfast.errors import HoldfastError
from tests.support import worker_main


def main() -> None:
    try:
        worker_main.main()
    except HoldfastError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
